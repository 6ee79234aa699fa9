"""torch's elastic agent: finding the one that called, its workers and their failures, and its restart count."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerState

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

_TORCHRUN = str(Path("torch", "distributed", "run.py"))
_OLDER = str(Path("torch", "distributed", "launch.py"))  # `python -m torch.distributed.launch`
_API = "torch.distributed.elastic.agent.server.api"
_AGENT = f"{_API}.SimpleElasticAgent"
_LOCAL_AGENT = "torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent"
_CONTEXT = "torch.distributed.elastic.multiprocessing.api.SubprocessContext"
_FACTORY = "torch.distributed.elastic.multiprocessing.api.get_subprocess_handler"
ENDLESS = 1_000_000  # restarts; the operator has the restart budget, not the agent
NO_ERROR_FILE = "<NONE>"  # torch's value for a script that recorded no error


def find_agent() -> SimpleElasticAgent | None:
    """The agent whose method called this function, directly or indirectly."""
    frame = inspect.currentframe()
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if isinstance(candidate, SimpleElasticAgent):
            return candidate
        frame = frame.f_back
    return None


def is_forkable_torchrun() -> bool:
    """Whether this is a `torchrun` or its predecessor without threads, not another program with torch's launcher."""
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "main" and code.co_filename.endswith((_TORCHRUN, _OLDER)):
            return threading.active_count() == 1
        frame = frame.f_back
    return False


def set_restarts(agent: SimpleElasticAgent, restarts: int) -> None:
    """Set the agent's restart count to `restarts`, without a limit.

    The workers get the count as TORCHELASTIC_RESTART_COUNT, and older versions of torch use it in the keys of the
    shared store, where agents with different counts would wait for each other for ever.
    """
    spec = agent.get_worker_group().spec
    if hasattr(agent, "_remaining_restarts"):
        spec.max_restarts = restarts + ENDLESS
        agent._remaining_restarts = ENDLESS
    # Otherwise the agent counts on its own, and gives up after torchrun's --max-restarts failures.


class _Clock:
    """The module `time`, as the agent's loop sees it."""

    def __init__(self, sleep: Callable[[float], object]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def replace_sleep(sleep: Callable[[float], object]) -> bool:
    """Make the agent's loop wait with this function between two looks at its workers, given the seconds.

    It may return earlier. False: the loop continues to sleep.
    """
    if not SLEEPS.holds():
        return False
    probe.find(_API).time = _Clock(sleep)
    return True


def replace_look(agent: SimpleElasticAgent, look: Callable[[], bool]) -> bool:
    """Make the agent's loop ask this function first when it looks at its workers: if it returns True, all is well.

    Otherwise the loop sees for itself, and ends the rest of the workers if one has failed. False: it always does that.
    """
    if not RESTARTS_ONE.holds():
        return False
    see = agent._monitor_workers

    def monitor(worker_group: Any) -> Any:
        return RunResult(state=WorkerState.HEALTHY) if look() else see(worker_group)

    agent._monitor_workers = monitor  # type: ignore[method-assign]
    return True


def restart_one(agent: SimpleElasticAgent, local_rank: int, variables: Mapping[str, str]) -> int | None:
    """Start a worker that has ended again, with these variables besides its own; the rest stays. Returns its pid.

    None if its output goes to a file of its own: another worker would overwrite it.
    """
    context = _context(agent)
    output = (context.stdouts.get(local_rank), context.stderrs.get(local_rank))
    if any(output):
        return None
    Path(context.error_files[local_rank]).unlink(missing_ok=True)
    group = agent.get_worker_group()
    numa = getattr(group.spec, "numa_options", None)
    more = {"numa_options": numa} if probe.takes(_FACTORY, "numa_options") else {}
    handler = probe.find(_FACTORY)(
        entrypoint=context.entrypoint,
        args=context.args[local_rank],
        env={**context.envs[local_rank], **variables},
        stdout=output[0],
        stderr=output[1],
        local_rank_id=local_rank,
        **more,
    )
    context.subprocess_handlers[local_rank] = handler
    for worker in group.workers:
        if worker.local_rank == local_rank:
            worker.id = handler.proc.pid
    return int(handler.proc.pid)


def find_processes(agent: SimpleElasticAgent) -> dict[int, Any]:
    """The workers' Popen-like objects by local rank; empty if this torch stores them elsewhere."""
    handlers = getattr(_context(agent), "subprocess_handlers", None)
    if not handlers:
        return {}
    return {local_rank: handler.proc for local_rank, handler in handlers.items()}


def find_pids(agent: SimpleElasticAgent) -> dict[int, int]:
    """The pids of the workers by local rank. Thread-safe."""
    processes = find_processes(agent)
    if processes:
        return {local_rank: process.pid for local_rank, process in processes.items()}
    workers = agent.get_worker_group().workers
    return {worker.local_rank: worker.id for worker in workers if isinstance(worker.id, int)}


def find_noted_failures(agent: SimpleElasticAgent) -> list[Any]:
    """The ProcessFailures that the agent recorded for its last workers; empty if there are none or torch hides them."""
    noted = getattr(_context(agent), "_failures", None)
    return list(noted.values()) if isinstance(noted, dict) else []


def find_error_files(agent: SimpleElasticAgent) -> dict[int, str]:
    """The error file of each worker, by local rank; empty if this torch stores it elsewhere."""
    files = getattr(_context(agent), "error_files", None)
    return files if isinstance(files, dict) else {}


def _context(agent: SimpleElasticAgent) -> Any:
    return getattr(agent, "_pcontext", None)


def _look_for_torchrun() -> bool:
    return bool(probe.find("torch.distributed.run.main").__wrapped__.__code__.co_filename.endswith(_TORCHRUN))


def _look_for_sleep() -> bool:
    sleeps = "sleep" in probe.find(f"{_AGENT}._invoke_run").__code__.co_names
    return sleeps and (probe.find(f"{_API}.time") is time or isinstance(probe.find(f"{_API}.time"), _Clock))


SLEEPS = Probe(
    "workers are stopped as soon as their world is over, and one that has ended is noticed at once",
    (f"{_AGENT}._invoke_run", f"{_API}.time"),
    "torch's loop looks ten times a second: a change takes up to 0.1 s longer",
    _look_for_sleep,
)
RESTARTS_ONE = Probe(
    "one worker that has failed is started again, and the sessions of the others keep their memory",
    (f"{_AGENT}._monitor_workers", f"{_CONTEXT}.subprocess_handlers", f"{_CONTEXT}.error_files", _FACTORY),
    "torch starts all workers of the pod again",
    lambda: probe.find(f"{_AGENT}._monitor_workers") is not None and probe.stores(_CONTEXT, "subprocess_handlers"),
)
PROBES = (
    SLEEPS,
    RESTARTS_ONE,
    Probe(
        "workers of an unmodified torchrun start warm",
        ("torch.distributed.run.main",),
        "they start cold; elasticjob-run starts them warm",
        _look_for_torchrun,
    ),
    Probe(
        "all agents count the restarts that the operator counts",
        (f"{_AGENT}._remaining_restarts",),
        "TORCHELASTIC_RESTART_COUNT counts this pod's failures, and torchrun's --max-restarts ends the pod",
        lambda: probe.stores(_AGENT, "_remaining_restarts"),
    ),
    Probe(
        "workers are stopped at once, and the agent sees why they ended before torch does",
        (f"{_LOCAL_AGENT}._pcontext", f"{_CONTEXT}.subprocess_handlers", f"{_CONTEXT}.error_files"),
        "torch stops them, which takes up to 30 s for a script that hangs; a failure has no exit code or traceback",
        lambda: probe.stores(_LOCAL_AGENT, "_pcontext") and probe.stores(_CONTEXT, "subprocess_handlers"),
    ),
    Probe(
        "the failure that caused the others is the one that torch noted first",
        (f"{_CONTEXT}._failures",),
        "it is read from the exit codes: of several workers that failed together any can be named",
        lambda: probe.stores(_CONTEXT, "_failures"),
    ),
)
