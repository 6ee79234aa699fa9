"""What torch's own elastic agent knows and does not tell its rendezvous: its workers, and why one failed.

torch asks a rendezvous handler for the next world and nothing else. The handler finds the agent that called it
on the stack, so an unmodified `torchrun` reports failures too. Everything here reads attributes that have kept
their names from torch 2.4 to 2.13 and does without where one is missing.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from elasticjob import wire

_TORCHRUN = str(Path("torch", "distributed", "run.py"))
_NO_ERROR_FILE = "<NONE>"  # what torch writes for a script that noted nothing
_ENDLESS = 1_000_000  # restarts; the operator keeps the budget, not the agent


def find_agent() -> SimpleElasticAgent | None:
    """The agent whose method called us, directly or not."""
    frame = inspect.currentframe()
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if isinstance(candidate, SimpleElasticAgent):
            return candidate
        frame = frame.f_back
    return None


def is_forkable_torchrun() -> bool:
    """Whether this process is a `torchrun` without threads, and no program of its own that uses torch's launcher."""
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "main" and code.co_filename.endswith(_TORCHRUN):
            return threading.active_count() == 1
        frame = frame.f_back
    return False


def local_world_size(agent: SimpleElasticAgent) -> int:
    return int(agent.get_worker_group().spec.local_world_size)


def set_restarts(agent: SimpleElasticAgent, restarts: int) -> None:
    """Make every agent of a world count the same restarts, as the operator counts them.

    The workers see the count as TORCHELASTIC_RESTART_COUNT, and older versions of torch put it into the keys of
    the shared store: agents that count for themselves would wait for each other there for ever.
    """
    spec = agent.get_worker_group().spec
    spec.max_restarts = restarts + _ENDLESS
    agent._remaining_restarts = _ENDLESS


def _processes(agent: SimpleElasticAgent) -> dict[int, Any]:
    """The workers' Popen-like objects by local rank."""
    context = getattr(agent, "_pcontext", None)
    handlers = getattr(context, "subprocess_handlers", None)
    if not handlers:
        return {}
    return {local_rank: handler.proc for local_rank, handler in handlers.items()}


def find_workers(agent: SimpleElasticAgent) -> dict[int, int]:
    """The pids of the workers by local rank. From any thread."""
    return {rank: process.pid for rank, process in _processes(agent).items()}


def stop_workers(agent: SimpleElasticAgent, grace: float, hurry: Callable[[], bool]) -> None:
    """SIGTERM to every worker's process group, SIGKILL to what is left after `grace` or when `hurry` says so."""
    processes = _processes(agent)
    _signal_all(processes, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and not hurry():
        if all(process.poll() is not None for process in processes.values()):
            break
        time.sleep(0.02)
    _signal_all(processes, signal.SIGKILL)


def kill_workers(agent: SimpleElasticAgent) -> None:
    """SIGKILL to every worker's process group, now."""
    _signal_all(_processes(agent), signal.SIGKILL)


def _signal_all(processes: dict[int, Any], number: signal.Signals) -> None:
    for process in processes.values():
        if process.poll() is None:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                continue


def find_failure(agent: SimpleElasticAgent, generation: int, killed: Collection[int] = ()) -> wire.Failure | None:
    """The failure among the agent's last workers that caused the others, whether torch has noted it yet or not.

    Those that were `killed` (pids) by us have not failed.
    """
    context = getattr(agent, "_pcontext", None)
    noted = getattr(context, "_failures", None)
    failures = list(noted.values()) if isinstance(noted, dict) and noted else _find_dead(agent, context)
    failures = [failure for failure in failures if failure.pid not in killed]
    if not failures:
        return None
    # torch sends SIGTERM to the rest when one has failed.
    first = min(failures, key=lambda f: (f.exitcode == -signal.SIGTERM, getattr(f, "timestamp", 0)))
    workers = agent.get_worker_group().workers
    local_rank = int(first.local_rank)
    rank = workers[local_rank].global_rank if local_rank < len(workers) else None
    return describe(first, generation, rank)


def _find_dead(agent: SimpleElasticAgent, context: Any) -> list[ProcessFailure]:
    """Workers that have ended badly since torch last looked."""
    files = getattr(context, "error_files", None)
    if not isinstance(files, dict):
        return []
    ended = [(local_rank, process, process.poll()) for local_rank, process in _processes(agent).items()]
    return [ProcessFailure(rank, process.pid, code, files.get(rank, "")) for rank, process, code in ended if code]


def describe(failure: Any, generation: int, rank: int | None) -> wire.Failure:
    """torch's ProcessFailure as the hub wants to hear it."""
    exit_code = int(failure.exitcode)
    message, traceback = _read_error(failure)
    if message == _NO_ERROR_FILE:
        message = None
    return wire.Failure(
        generation=generation,
        rank=rank,
        local_rank=int(failure.local_rank),
        exit_code=exit_code if exit_code >= 0 else 128 - exit_code,
        signal=_signal_name(-exit_code) if exit_code < 0 else None,
        message=message,
        traceback=traceback,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _read_error(failure: Any) -> tuple[str | None, str | None]:
    """Message and traceback of an entry point under torch's `@record`."""
    data = getattr(failure, "error_file_data", None)
    if not isinstance(data, dict):
        return None, None
    inner = data.get("message", data)
    if not isinstance(inner, dict):
        return str(inner), None
    message = inner.get("message")
    extra = inner.get("extraInfo")
    traceback = extra.get("py_callstack") if isinstance(extra, dict) else None
    return (
        message if isinstance(message, str) else json.dumps(message),
        traceback if isinstance(traceback, str) else None,
    )
