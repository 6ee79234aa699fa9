"""Why a worker failed, from its exit code and the error that it recorded."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from elasticjob.agent import torch_agent
from elasticjob.torchcompat import elastic_agent


@pytest.mark.parametrize(
    ("exit_code", "has_raised", "expected"),
    [
        pytest.param(1, True, (1, None, "ValueError: bad"), id="it raised"),
        pytest.param(-signal.SIGTERM, True, (1, None, "ValueError: bad"), id="stopped while it exited"),
        pytest.param(-signal.SIGKILL, True, (1, None, "ValueError: bad"), id="killed while it exited"),
        pytest.param(-signal.SIGTERM, False, (143, "SIGTERM", None), id="stopped"),
        pytest.param(-signal.SIGSEGV, True, (139, "SIGSEGV", "ValueError: bad"), id="crashed while it exited"),
        pytest.param(3, False, (3, None, None), id="its own code"),
    ],
)
def test_failures(
    exit_code: int, has_raised: bool, expected: tuple[int, str | None, str | None], tmp_path: Path
) -> None:
    file = tmp_path / "error.json"
    if has_raised:
        extra = {"py_callstack": "Traceback ...\nValueError: bad", "timestamp": "1"}
        file.write_text(json.dumps({"message": {"message": "ValueError: bad", "extraInfo": extra}}))
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=exit_code, error_file=str(file))
    found = torch_agent.describe(failure, generation=2, first_rank=0)
    assert (found.exit_code, found.signal, found.message if has_raised else None) == expected


GLOO = "RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:39852"


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        pytest.param([(1, GLOO, 5), (-signal.SIGKILL, "", 6)], 1, id="killed, and seen later"),
        pytest.param([(1, GLOO, 5), (1, "ValueError: bad", 6)], 1, id="raised, and seen later"),
        pytest.param([(1, GLOO, 5), (3, "", 6)], 1, id="ended with a code"),
        pytest.param(
            [(1, "elasticjob.errors.WorldLostError: a member was lost", 5), (1, "ValueError: bad", 6)],
            1,
            id="a lost world",
        ),
        pytest.param([(-signal.SIGTERM, "", 4), (1, GLOO, 5)], 1, id="stopped by torch"),
        pytest.param([(143, "", 4), (1, GLOO, 5)], 1, id="stopped by torch, with a handler of its own"),
        pytest.param([(-signal.SIGKILL, "", 36), (1, GLOO, 5)], 1, id="killed by torch, as it did not stop"),
        pytest.param([(-signal.SIGKILL, "", 36), (3, "", 6)], 1, id="killed by torch after an exit"),
        pytest.param([(-signal.SIGKILL, "", 11), (1, GLOO, 5)], 0, id="killed, and seen at a slow agent's next look"),
        pytest.param([(1, GLOO, 0), (-signal.SIGKILL, "", 36)], 1, id="killed, beside one of no known time"),
        pytest.param([(1, "ValueError: bad", 5), (1, "KeyError: bad", 6)], 0, id="the first of two"),
        pytest.param([(1, GLOO, 6), (1, GLOO, 5)], 1, id="only lost peers"),
        pytest.param([(-signal.SIGABRT, "", 5), (1, "ValueError: bad", 6)], 1, id="aborted, as NCCL's watchdog does"),
        pytest.param(
            [(1, "ValueError: bad", 5), (1, f"elasticjob.errors.StepsDifferError: ({GLOO})", 4)], 1, id="refused"
        ),
    ],
)
def test_who_has_lost_a_peer_in_the_pod_is_not_the_one_that_failed_first(
    failures: list[tuple[int, str, int]], first: int, tmp_path: Path
) -> None:
    """torch goes by whole seconds: those who lost a peer write theirs before somebody sees that it was killed."""
    found = []
    for rank, (code, text, at) in enumerate(failures):
        file = tmp_path / str(rank)
        if text:
            extra = {"py_callstack": f"Traceback ...\n{text}", "timestamp": str(at)}
            file.write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))
        one = ProcessFailure(local_rank=rank, pid=rank + 1, exitcode=code, error_file=str(file))
        one.timestamp = at
        found.append(one)
    assert torch_agent.choose_first(found).local_rank == first


ERROR = json.dumps({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "", "timestamp": "1"}}})


@pytest.mark.parametrize(
    ("written", "message"),
    [
        pytest.param(ERROR, "ValueError: bad", id="whole"),
        pytest.param(ERROR[:20], None, id="killed while it wrote"),
        pytest.param("", None, id="killed before it wrote"),
        pytest.param(None, None, id="no file"),
    ],
)
def test_a_part_of_an_error_file_is_none(
    written: str | None, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "error.json"
    if written is not None:
        file.write_text(written)
    process = SimpleNamespace(pid=1, poll=lambda: -signal.SIGSEGV)
    monkeypatch.setattr(elastic_agent, "find_noted_failures", lambda _: [])
    monkeypatch.setattr(elastic_agent, "find_processes", lambda _: {0: process})
    monkeypatch.setattr(elastic_agent, "find_error_files", lambda _: {0: str(file)})
    found = torch_agent.find_failure(cast(Any, object()), generation=2, first_rank=0)
    assert found is not None
    assert (found.exit_code, found.signal, found.message) == (139, "SIGSEGV", message)


def test_whom_the_agent_kills_has_not_failed_unless_it_had_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 waits in the destructors of a process that has raised, and rank 2 has ended before."""
    file = tmp_path / "error.json"
    file.write_text(ERROR)
    codes: dict[int, int | None] = {0: None, 1: None, 2: 3}
    processes = {rank: SimpleNamespace(pid=100 + rank, poll=lambda rank=rank: codes[rank]) for rank in codes}
    signalled = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: signalled.append((pid, number)))
    monkeypatch.setattr(elastic_agent, "find_processes", lambda _: processes)
    monkeypatch.setattr(elastic_agent, "find_error_files", lambda _: {0: str(tmp_path / "none"), 1: str(file)})
    assert torch_agent.kill(cast(Any, object())) == {100}
    assert signalled == [(100, signal.SIGKILL), (101, signal.SIGKILL)]
    assert torch_agent.kill(None) == set()


@pytest.mark.parametrize(
    ("codes", "has_workers"),
    [
        pytest.param((), False, id="none was started"),
        pytest.param((None, None), True, id="all run"),
        pytest.param((0, None), True, id="one runs"),
        pytest.param((0, -9), False, id="all have ended"),
    ],
)
def test_whether_a_worker_is_still_there(
    codes: tuple[int | None, ...], has_workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = {rank: SimpleNamespace(poll=lambda code=code: code) for rank, code in enumerate(codes)}
    monkeypatch.setattr(elastic_agent, "find_processes", lambda _: processes)
    assert torch_agent.has_workers(cast(Any, object())) is has_workers
    assert not torch_agent.has_workers(None)
