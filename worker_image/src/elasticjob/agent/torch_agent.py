"""Reads from torch's elastic agent what its rendezvous interface does not provide: the workers, and why one failed.

torch only asks a rendezvous handler for the next world. The handler finds the calling agent on the stack, so that an
unmodified `torchrun` reports failures too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from elasticjob.channel import processes
from elasticjob.peers.directory import Workers
from elasticjob.protocol import wire
from elasticjob.torchcompat import elastic_agent

# What a worker says that has lost another one; the operator compares pods by the same words (model/errortext.py).
_OF_A_PEER = re.compile(
    r"Connection closed by peer|Connection reset|Connection refused|Broken pipe|Dist(Backend|Network|Store)Error"
    r"|ncclRemoteError|gloo|elasticjob\.errors\.(WorldLost|CollectiveFailed)Error"
)
_REFUSAL = re.compile(r"elasticjob\.errors\.(Configuration|StepsDiffer|CollectiveMismatch|BufferTouched)Error\b")
_EXITED_ON_REQUEST = 128 + signal.SIGTERM  # by a handler of its own
_KILLED_BY_TORCH_SECONDS = 20  # after 30 it kills who has not heeded SIGTERM; how others ended is seen before


def local_world_size(agent: SimpleElasticAgent) -> int:
    """The number of workers of this agent."""
    return int(agent.get_worker_group().spec.local_world_size)


def has_workers(agent: SimpleElasticAgent | None) -> bool:
    """Whether at least one worker is still running."""
    return agent is not None and any(process.poll() is None for process in elastic_agent.find_processes(agent).values())


def sort_workers(agent: SimpleElasticAgent, killed: Collection[int]) -> tuple[dict[int, int], set[int]]:
    """The pids of those that have failed, by local rank, and of those that run and were not `killed`.

    Nobody stays if one has succeeded: the others are to follow it.
    """
    codes = {(rank, one.pid): one.poll() for rank, one in elastic_agent.find_processes(agent).items()}
    failed = {rank: pid for (rank, pid), code in codes.items() if code is not None}
    running = {pid for (_, pid), code in codes.items() if code is None and pid not in killed}
    return failed, set() if 0 in codes.values() else running


def look_at_workers(agent: SimpleElasticAgent | None) -> tuple[Workers, list[int]]:
    """What the state of the workers says of their last files, and the pids of those that run."""
    workers = [] if agent is None else list(elastic_agent.find_processes(agent).values())
    codes = {process.poll() for process in workers}
    running = [process.pid for process in workers if process.poll() is None]
    if not codes or codes - {None, 0, _EXITED_ON_REQUEST}:
        return Workers.BROKEN, running
    return Workers.RUN if None in codes else Workers.DONE, running


def terminate(agent: SimpleElasticAgent | None) -> None:
    """Send SIGTERM to every running worker, and not to what it has started: it needs its data loaders to save."""
    for process in _find_running(agent):
        for pid in processes.find_receivers(processes.read_tree(process.pid), process.pid, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def kill(agent: SimpleElasticAgent | None) -> set[int]:
    """Send SIGKILL to the process group of every running worker, but for compilers: see `ForkServer.end_leftovers`.

    Returns the pids of those for which that is no failure of their own: who has raised was already exiting.
    """
    raised = {} if agent is None else elastic_agent.find_error_files(agent)
    killed = set()
    for local_rank, process in ({} if agent is None else elastic_agent.find_processes(agent)).items():
        if process.poll() is None:
            if not _is_whole(raised.get(local_rank, "")):
                killed.add(process.pid)
            _kill_group(process.pid)
    return killed


def _kill_group(worker: int) -> None:
    tree = processes.read_tree(worker)
    writing = {one.pid for one in processes.find_writing(tree.values())}
    with contextlib.suppress(ProcessLookupError):
        if not writing:
            os.killpg(worker, signal.SIGKILL)
            return
        os.kill(worker, signal.SIGKILL)
    for pid in tree.keys() - writing:  # the rest goes as what is left behind
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_session(worker: int) -> None:
    """End what a worker that has ended has left behind: it would hold what its successor needs."""
    tree = processes.read_tree(os.getpid())
    writing = {one.pid for one in processes.find_writing(tree.values())}
    for one in tree.values():
        if one.session == worker and one.pid not in writing:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)


def _find_running(agent: SimpleElasticAgent | None) -> list[Any]:
    found = [] if agent is None else elastic_agent.find_processes(agent).values()
    return [process for process in found if process.poll() is None]


def find_failure(
    agent: SimpleElasticAgent,
    generation: int,
    first_rank: int,
    killed: Collection[int] = (),
    restarts: Mapping[int, str] | None = None,
) -> wire.Failure | None:
    """The first failure among the agent's latest workers, whether torch has noted it yet or not; None if none failed.

    `first_rank`: the global rank of local rank 0 in this generation; torch knows only the one that a worker had when it
    was started. Workers in `killed` (pids), which this agent ended, do not count. `restarts`: those that have ended to
    be started again, and why.
    """
    failures = elastic_agent.find_noted_failures(agent) or _find_dead(agent)
    failures = [failure for failure in failures if failure.pid not in killed]
    if not failures:
        return None
    first = choose_first(failures)
    why = (restarts or {}).get(first.pid)
    if why is not None:
        local_rank = int(first.local_rank)
        return wire.Failure(generation, first_rank + local_rank, local_rank, message=why, kind=wire.RESTART)
    return describe(first, generation, first_rank)


def choose_first(failures: Iterable[Any]) -> Any:
    """The one of torch's failures that caused the others.

    torch knows only whole seconds, and a worker that has lost a peer tells it before anybody sees how that peer ended.
    """
    found = list(failures)
    known = [at for one in found if (at := _find_time(one)) > 0]
    late = min(known, default=0) + _KILLED_BY_TORCH_SECONDS

    def judge(one: Any) -> tuple[int, float]:
        at = _find_time(one)
        return 4 if find_code(one) == -signal.SIGKILL and at >= late else _judge_end(one), at

    return min(found, key=judge)


def _find_time(failure: Any) -> float:
    """When a worker failed, in seconds since the epoch; 0 if torch does not say it."""
    at = getattr(failure, "timestamp", 0)
    return at if isinstance(at, int | float) else 0


def _judge_end(failure: Any) -> int:
    """How likely this is the consequence of another worker's failure: 0 if it cannot be."""
    code = find_code(failure)
    if code in (-signal.SIGTERM, _EXITED_ON_REQUEST):  # torch sends it to the rest when one has failed
        return 4
    if code == -signal.SIGABRT:  # gloo ends one process so, and the others lose it; NCCL's watchdog those that do
        return 2
    text = " ".join(one or "" for one in _read_error(failure))
    return 3 if code > 0 and is_of_a_peer(text) else int(code > 0)


def is_of_a_peer(text: str) -> bool:
    """Whether a worker with this error ended as if it had lost another one."""
    return _OF_A_PEER.search(text) is not None and not _REFUSAL.search(text)


def _find_dead(agent: SimpleElasticAgent) -> list[ProcessFailure]:
    """Workers that have failed since torch last polled them."""
    files = {rank: file for rank, file in elastic_agent.find_error_files(agent).items() if _is_whole(file)}
    workers = elastic_agent.find_processes(agent)
    ended = [(local_rank, process, process.poll()) for local_rank, process in workers.items()]
    return [ProcessFailure(rank, process.pid, code, files.get(rank, "")) for rank, process, code in ended if code]


def _is_whole(file: str) -> bool:
    """Whether torch can read this error file: a worker that was killed may have left a part of one, or none."""
    try:
        json.loads(Path(file).read_bytes())
    except (OSError, ValueError):
        return False
    return True


def find_code(failure: Any) -> int:
    """The exit code of a failed worker; -number if a signal ended it.

    A worker that raised may still be exiting when it is stopped with the others: then the exception is its failure.
    """
    code = int(failure.exitcode)
    has_raised = code in (-signal.SIGTERM, -signal.SIGKILL) and _read_error(failure)[1] is not None
    return 1 if has_raised else code


def describe(failure: Any, generation: int, first_rank: int) -> wire.Failure:
    """Convert torch's ProcessFailure to a wire failure. Signals become exit codes of 128 + number."""
    exit_code = find_code(failure)
    message, traceback = _read_error(failure)
    if message == elastic_agent.NO_ERROR_FILE:
        message = None
    return wire.Failure(
        generation=generation,
        rank=first_rank + int(failure.local_rank),
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
    """Message and traceback from the error file that torch's `@record` writes."""
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
