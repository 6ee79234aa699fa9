"""The decisions whether a step counts, and how communicators end: without processes and without a device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from elasticjob.checkpoint import lanes
from elasticjob.errors import WorldLostError
from elasticjob.sessions.endings import Endings
from elasticjob.sessions.fence import Fence, Seen
from elasticjob.sessions.process_groups import ProcessGroups
from elasticjob.sessions.sharded import parts
from elasticjob.torchcompat import nccl, threads
from worker.gang_helper import run_alone

pytestmark = pytest.mark.timeout(30)


class World:
    """What a fence asks; each question is noted."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.lost = False
        self.queued = self.waited = self.sent = 0
        hold_all = self.noting("the whole device")

        def ask_all() -> None:
            hold_all()
            self.hold()

        self.of_gloo = 0
        see: Callable[[], Seen] = lambda: Seen(self.queued + self.of_gloo, self.waited, self.sent, self.queued)  # noqa: E731
        self.fence = Fence(self.hold, see, self.noting("meet"), hold_all=ask_all)

    def noting(self, name: str) -> Callable[[], None]:
        return lambda: self.asked.append(name)

    def hold(self) -> None:
        self.asked.append("hold")
        if self.lost:
            raise WorldLostError("a member was lost")


def test_the_world_has_to_hold_before_the_ranks_agree() -> None:
    world = World()
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))
    world.fence.end_applying()
    world.fence.commit(is_applied=True)
    assert world.asked == ["hold", "agree"], "once a step"


def test_a_step_of_a_lost_world_is_not_applied_and_no_rank_says_that_it_can() -> None:
    world = World()
    world.lost = True
    world.fence.begin()
    with pytest.raises(WorldLostError):
        world.fence.begin_applying(world.noting("agree"))
    assert "agree" not in world.asked


def test_a_step_without_the_optimizer_needs_all_ranks() -> None:
    world = World()
    world.fence.begin()
    world.fence.commit(is_applied=False)
    assert world.asked == ["hold", "meet"]
    world.lost = True
    with pytest.raises(WorldLostError):
        world.fence.commit(is_applied=False)


def test_an_optimizer_that_uses_collectives_is_asked_about_again() -> None:
    world = World()
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))
    world.queued += 1
    world.lost = True
    with pytest.raises(WorldLostError):
        world.fence.end_applying()


def test_a_failed_backward_pass_that_the_script_has_caught_is_not_applied() -> None:
    world = World()
    world.fence.begin()
    world.fence.note_failure(RuntimeError("Connection closed by peer"))
    with pytest.raises(WorldLostError):
        world.fence.begin_applying(world.noting("agree"))
    world.fence.begin()  # of a further micro-batch
    with pytest.raises(WorldLostError):
        world.fence.begin_applying(world.noting("agree"))
    world.fence.is_open = False  # the step is broken off
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))


def test_a_loss_that_becomes_known_between_two_optimizers_does_not_tear_the_step() -> None:
    world = World()
    world.fence.is_followed = True
    world.fence.begin()
    for _ in range(2):
        world.fence.begin_applying(world.noting("agree"))
        world.fence.end_applying()
        world.lost = True
        world.waited += 1  # for what was begun before, and is done
    world.fence.commit(is_applied=True)
    assert world.asked == ["the whole device", "hold", "agree"]
    assert not world.fence.is_divided


def test_that_another_optimizer_follows_is_known_from_the_first_step_in_which_it_does() -> None:
    """Until then the first one has waited for its own stream, which says nothing of what the second one uses."""
    world = World()
    for _ in range(2):
        world.fence.begin()
        for _ in range(2):
            world.fence.begin_applying(world.noting("agree"))
            world.fence.end_applying()
        world.fence.commit(is_applied=True)
        assert not world.fence.is_divided
    assert world.asked == ["hold", "agree", *["the whole device", "hold", "agree"] * 2]


def test_the_whole_device_is_not_waited_for_if_a_message_to_it_may_need_this_rank_to_step() -> None:
    """Rank 0 waits for one of rank 2, which sends it when it has stepped, and so waits for one of rank 1, and so on."""
    world = World()
    world.fence.is_followed = True
    world.fence.enter_world()
    world.fence.begin()
    world.sent += 1
    for _ in range(2):
        world.fence.begin_applying(world.noting("agree"))
        world.fence.end_applying()
    assert world.asked == ["hold", "agree"] * 2
    assert world.fence.is_divided
    world.fence.enter_world()
    world.fence.commit(is_applied=True)
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))
    assert world.asked[-3:] == ["the whole device", "hold", "agree"]


def test_collectives_between_two_optimizers_need_a_permission_of_their_own() -> None:
    world = World()
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))
    world.fence.end_applying()
    world.queued += 1
    world.lost = True
    with pytest.raises(WorldLostError):
        world.fence.begin_applying(world.noting("agree"))
    assert world.fence.is_divided
    with pytest.raises(WorldLostError):  # though the script has caught the error
        world.fence.commit(is_applied=True)


def test_a_scaler_has_the_permission_to_skip_a_step() -> None:
    world = World()
    world.fence.begin()
    world.fence.skip()
    assert world.fence.is_skipped
    world.lost = True
    world.fence.commit(is_applied=True)
    assert world.asked == ["hold"], "nobody has to be met"
    world.fence.begin()
    with pytest.raises(WorldLostError):
        world.fence.skip()
    with pytest.raises(WorldLostError):  # though the script has caught the error
        world.fence.commit(is_applied=False)


def test_a_scaler_of_the_only_optimizer_learns_with_its_permission() -> None:
    world = World()
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))
    world.fence.end_applying()
    world.lost = True
    world.fence.skip()
    assert world.asked == ["hold", "agree"]


def test_a_scaler_may_skip_one_optimizer_with_the_permission_of_another() -> None:
    world = World()
    world.fence.is_followed = True
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))
    world.fence.end_applying()
    world.lost = True
    world.fence.skip()
    assert world.fence.is_skipped
    world.fence.commit(is_applied=True)
    assert world.asked == ["the whole device", "hold", "agree"]


def test_a_scaler_needs_a_permission_of_its_own_for_what_was_reduced_since_the_last_one() -> None:
    world = World()
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))
    world.fence.end_applying()
    world.fence.skip()
    world.queued += 1
    world.lost = True
    with pytest.raises(WorldLostError):
        world.fence.skip()


def test_what_is_queued_behind_the_optimizers_is_asked_about_before_the_step_is_committed() -> None:
    """Such as parameters that are averaged, or a reduced loss that a scheduler follows."""
    world = World()
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))
    world.fence.end_applying()
    assert not world.fence.is_trailed()
    world.queued += 1
    assert world.fence.is_trailed()
    world.lost = True
    with pytest.raises(WorldLostError):
        world.fence.commit(is_applied=True)
    assert world.asked == ["hold", "agree", "the whole device", "hold"]


def test_so_is_what_was_begun_before_them_and_is_waited_for_behind_them() -> None:
    world = World()
    world.fence.begin()
    world.queued += 1
    world.fence.begin_applying(world.noting("agree"))
    world.fence.end_applying()
    world.waited += 1
    world.fence.commit(is_applied=True)
    assert world.asked == ["hold", "agree", "the whole device", "hold"]


def test_an_optimizer_that_a_scaler_has_skipped_without_permission_has_no_trail() -> None:
    """Its gradients were not finite, as nobody has reduced them, and nothing is applied."""
    world = World()
    world.fence.begin()
    world.queued += 1
    world.lost = True
    with pytest.raises(WorldLostError):
        world.fence.skip()
    assert not world.fence.is_trailed()


def test_what_gloo_does_behind_them_needs_no_question() -> None:
    """A save asks all ranks, for example: a loss is an error there."""
    world = World()
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))
    world.fence.end_applying()
    world.of_gloo, world.waited = 2, 1
    world.fence.commit(is_applied=True)
    assert world.asked == ["hold", "agree"]


def test_messages_that_may_need_this_rank_to_go_on_are_not_waited_for() -> None:
    world = World()
    world.fence.enter_world()
    world.fence.begin()
    world.fence.begin_applying(world.noting("agree"))
    world.fence.end_applying()
    world.sent += 1
    world.fence.commit(is_applied=True)
    assert world.asked == ["hold", "agree", "hold"]


COMPILED = """
import torch
from elasticjob.sessions.model_state import hook
from worker.programs.saying import say

traced = []

def ask(*_):
    traced.append(torch.compiler.is_compiling())

weight = torch.nn.Parameter(torch.ones(2))
weight.grad = torch.ones(2)
optimizer = torch.optim.SGD([weight], lr=0.1)
hook(optimizer, (ask, ask))
step = torch.compile(optimizer.step, backend="eager")
for _ in range(2):
    step()
say("traced", traced)
"""


@pytest.mark.timeout(240)
def test_the_questions_about_a_compiled_step_are_asked_and_not_traced() -> None:
    """Traced, whether a member is lost would be looked up before the graph that waits for the device begins."""
    assert run_alone(COMPILED, timeout=200).results["traced"] == [False] * 4


class Group:
    """A communicator whose abort needs that of another one to have begun."""

    def __init__(self, others: list[Group], fails: bool = False) -> None:
        self.calls: list[str] = []
        self.begun, self._others, self._fails = threading.Event(), others, fails

    def abort(self) -> None:
        self.calls.append("abort")
        self.begun.set()
        for one in self._others:
            assert one.begun.wait(20)
        if self._fails:
            raise RuntimeError("ncclCommAbort")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_all_communicators_of_a_lost_world_are_aborted_at_once_and_each_once() -> None:
    endings, pair = Endings(), []  # type: ignore[var-annotated]
    pair += [Group(pair), Group(pair, fails=True)]
    endings.abort(pair)  # by the thread that hears of the loss
    groups = list(pair)
    endings.end(groups, broken=True)  # by the main thread
    assert threads.wait(20)
    assert groups == []
    assert [one.calls for one in pair] == [["abort"], ["abort"]]


def test_the_communicators_of_a_world_that_ends_in_order_are_shut_down() -> None:
    endings, group = Endings(), Group([])
    endings.end([group], broken=False)
    assert threads.wait(20)
    assert group.calls == ["shutdown"]


class OldBackend:
    """As ProcessGroupNCCL up to torch 2.6, which torch's `ProcessGroup` does not pass an abort on to."""

    def __init__(self, names: list[str]) -> None:
        self.calls: list[str] = []
        for name in names:
            setattr(self, name, lambda name=name: self.calls.append(name))


class OldGroup:
    """As torch's `ProcessGroup` up to 2.6: it has neither `abort` nor `shutdown`."""

    _device_types: ClassVar = [torch.device("cpu"), torch.device("cuda"), torch.device("meta")]

    def __init__(self, backend: object) -> None:
        self._backends = {"cpu": object(), "cuda": backend, "meta": backend}

    def _get_backend(self, device: torch.device) -> object:
        return self._backends[device.type]


@pytest.mark.parametrize(
    ("names", "broken", "calls"),
    [
        (["abort", "_shutdown"], True, ["abort"]),  # torch 2.5 and 2.6
        (["_shutdown"], True, ["_shutdown"]),  # torch 2.4, whose shutdown aborts
        (["abort", "_shutdown"], False, ["_shutdown"]),
        ([], True, []),
    ],
)
def test_communicators_end_where_a_group_of_torch_has_no_abort(
    names: list[str], broken: bool, calls: list[str]
) -> None:
    endings, backend = Endings(), OldBackend(names)
    endings.end([OldGroup(backend)], broken)
    assert threads.wait(20)
    assert backend.calls == calls


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "0"),  # the watchdog ends the process
        ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "15000", "0"),  # it sleeps for four times that
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "0"),
        ("TORCH_NCCL_ENABLE_MONITORING", "1", "0"),  # another one ends the process if the watchdog is stuck
        ("TORCH_NCCL_RETHROW_CUDA_ERRORS", "1", "0"),  # what follows an abort would end it
        ("TORCH_NCCL_DESYNC_DEBUG", "1", "0"),  # it brings the first one back
    ],
)
def test_whatever_a_launcher_has_set_the_errors_of_a_session_are_its_own(name: str, theirs: str, ours: str) -> None:
    for environ in ({}, {name: theirs}):
        assert nccl.find_variables(environ)[name] == ours


def test_only_variables_that_differ_are_set() -> None:
    """A variable that torchrun has set is replaced; what people set of NCCL's own is theirs."""
    found = nccl.find_variables({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_NVLS_ENABLE": "1"})
    assert found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert "NCCL_NVLS_ENABLE" not in found
    assert nccl.find_variables(found | {"NCCL_NVLS_ENABLE": "1"}) == {}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is called of a device, with the one that is the current one of the thread."""
    here = threading.local()
    calls: list[str] = []

    @contextlib.contextmanager
    def use(device: torch.device) -> Iterator[None]:
        before, here.device = getattr(here, "device", "cuda:0"), str(device)
        yield
        here.device = before

    monkeypatch.setattr(torch.cuda, "device", use)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(here, "device", str(device)))
    calls_here: Any = SimpleNamespace(add=lambda name: calls.append(f"{name} on {getattr(here, 'device', 'cuda:0')}"))
    monkeypatch.setattr(Touching, "calls", calls_here)
    return calls


class Touching:
    """A group or an event of the second device. A new thread is on the first one, and would open a context there."""

    calls: Any = None
    device = torch.device("cuda:1")

    def abort(self) -> None:
        self.calls.add("abort")

    def synchronize(self) -> None:
        self.calls.add("synchronize")


def test_no_thread_opens_a_context_on_the_device_of_another_rank(used: list[str]) -> None:
    """One that ends communicators, that sends copies of shards, or that writes a snapshot."""
    Endings(Touching.device).end([Touching()], broken=True)
    assert threads.wait(20)
    lane: Any = object.__new__(lanes.CudaLane)
    lane._device, lane._copied = Touching.device, Touching()
    for wait in (parts.Parcel("", torch.empty(0), Touching()).wait, lane.wait):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(20)
    assert used == ["abort on cuda:1", "synchronize on cuda:1", "synchronize on cuda:1"]


def test_nor_does_the_one_that_makes_communicators(used: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL makes them on the current device of the thread that asks for the first collective."""
    monkeypatch.setattr(torch, "zeros", lambda *_, device: device)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, group: Touching.calls.add(group))
    made = ProcessGroups("gloo", 10.0, Touching.device)
    made._make_communicators(["of the world", "of a mesh"], lambda: False)
    assert used == ["of the world on cuda:1", "of a mesh on cuda:1"]
