"""Which exceptions mean that the world is lost: torch's real ones do, a script's own do not, whatever their text."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from elasticjob.errors import (
    BufferTouchedError,
    CollectiveFailedError,
    ConfigurationError,
    StepsDifferError,
    WorldLostError,
)
from elasticjob.sessions import process_groups
from elasticjob.sessions.process_groups import find_cause, is_world_failure
from elasticjob.torchcompat import failures
from worker.gang_helper import PROGRAMS, run_gang

LINE = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]"


def raised(action: Callable[[], object]) -> Exception:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def caused(error: Exception, cause: Exception) -> Exception:
    def chain() -> None:
        raise error from cause

    return raised(chain)


def meanwhile(error: Exception, first: Exception) -> Exception:
    def handle() -> None:
        try:
            raise first
        except Exception:
            raise error  # noqa: B904 - an error while another one is handled

    return raised(handle)


def wait_for_a_key() -> object:
    store = dist.HashStore()  # type: ignore[attr-defined]
    store.set_timeout(datetime.timedelta(milliseconds=10))
    return store.get("nobody sets it")


SCRIPTS = [
    RuntimeError("cannot restore the checkpoint"),
    RuntimeError("no connection to the database: socket closed by peer"),
    RuntimeError("gloo and nccl timed out in my process group"),
    RuntimeError("aborted: the feature store is empty"),
    OSError("Connection reset by peer"),
    ConnectionResetError(104, "Connection reset by peer"),
    TimeoutError("the object store timed out"),
    ValueError(f"{LINE} Connection closed by peer"),
    ConfigurationError("another backend"),
    BufferTouchedError("the tensor was changed in place before wait()"),
    raised(lambda: torch.ones(2) + torch.ones(3)),
    raised(torch.ones(1).sum().backward),  # nothing needs a gradient
    raised(lambda: dist.all_reduce(torch.ones(1))),  # without a group
]


@pytest.mark.parametrize("error", SCRIPTS, ids=lambda error: f"{type(error).__name__}: {str(error)[:40]}")
def test_a_mistake_of_the_script_is_raised(error: Exception) -> None:
    assert not is_world_failure(error, lambda: False)


LOST = CollectiveFailedError("Connection closed by peer")
OWN = ValueError("the loss has diverged")
ASSERTED = RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.parametrize(
    ("error", "noted", "cause"),
    [
        pytest.param(LOST, None, LOST, id="a collective"),
        pytest.param(OWN, LOST, LOST, id="own words: they are not told to the operator as the cause"),
        pytest.param(WorldLostError("a collective of this step has failed"), LOST, LOST, id="the fence's words"),
        pytest.param(OWN, None, None, id="a mistake"),
        pytest.param(ASSERTED, ASSERTED, None, id="the device, in a whole world"),
        pytest.param(OWN, ASSERTED, None, id="own words after that"),
        pytest.param(LOST, ASSERTED, LOST, id="a collective after that"),
        pytest.param(StepsDifferError("rank 1 has left block 6"), LOST, None, id="what the ranks find out"),
    ],
)
def test_what_says_that_the_world_is_lost(error: Exception, noted: Exception | None, cause: Exception | None) -> None:
    found = find_cause(error, noted, lambda one: is_world_failure(one, lambda: False))
    assert found == (None if cause is None else str(cause))


def test_a_mistake_in_a_lost_world_is_judged_in_the_next() -> None:
    assert is_world_failure(RuntimeError("cannot restore"), lambda: True)
    assert not is_world_failure(ValueError("a typo"), lambda: True)
    assert not is_world_failure(torch.cuda.OutOfMemoryError("a batch that is too large"), lambda: True)


WORLDS = [
    WorldLostError("a member was lost"),
    CollectiveFailedError("all_reduce failed on rank 0"),
    dist.DistBackendError("NCCL communicator was aborted on rank 0."),
    dist.DistNetworkError("The client socket has timed out"),
    dist.DistStoreError("wait timeout after 100ms"),
    RuntimeError(f"{LINE} Connection closed by peer [127.0.0.1]:56532."),
    RuntimeError(f"Gloo connectFullMesh failed with {LINE} SO_ERROR: Connection refused"),
    RuntimeError("Application timeout caused pair closure"),
    caused(KeyError("my own trainer gave up"), RuntimeError(f"{LINE} Connection closed by peer")),
    meanwhile(ValueError("a mistake in my clean-up"), RuntimeError(f"{LINE} Connection closed by peer")),
    raised(wait_for_a_key),
]


@pytest.mark.parametrize("error", WORLDS, ids=lambda error: f"{type(error).__name__}: {str(error)[-40:]}")
def test_a_broken_world_is_known_before_the_agent_speaks(error: Exception) -> None:
    assert is_world_failure(error, lambda: False)


def test_what_this_torch_raises_when_a_rank_dies() -> None:
    """In each collective, in a backward pass of DDP, after a time-out and when our own sockets are shut down."""
    members = run_gang(PROGRAMS / "lost_world_program.py", 2)
    found = members[0].results
    assert len(found) == 7, members[0].stderr
    assert {name: verdict for name, (verdict, _) in found.items() if not verdict} == {}, found


def test_no_rank_waits_for_a_send_that_gloo_forgot() -> None:
    """If a rank's connections ended when it leaves, one of ten worlds or so would keep the other for the timeout."""
    for member in run_gang(PROGRAMS / "lost_send_program.py", 2):
        assert member.results["longest"] < 4.0


def test_where_the_errors_cannot_be_told_apart_the_agent_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "can_be_recognized", lambda: False)
    monkeypatch.setattr(process_groups, "_WORD_SECONDS", 0.2)
    answers = iter([False, False, True, True])
    assert is_world_failure(RuntimeError("Connection closed by peer"), lambda: next(answers))
    assert not is_world_failure(RuntimeError("cannot restore"), lambda: False)
    assert not is_world_failure(ValueError("a typo"), lambda: False)
