"""Why a worker failed, from its exit code and the error that it recorded."""

from __future__ import annotations

import json
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
