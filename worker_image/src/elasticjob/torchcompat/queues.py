"""What a device has completed of the collectives that were queued on it, as torch knows it.

torch's watchdog asks the device for each collective of NCCL, ten times a second, and its flight recorder has the
numbers of the last ones. So nobody calls the device here, which a thread must not do beside one that captures a CUDA
graph. The recorder is on by default in newer versions of torch, and has no entry of a group without collectives.

What a replay of a CUDA graph queues is not among them. Nor is a collective that nobody has completed within the timeout
of its group: torch counts it as completed then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch.distributed as dist

from elasticjob.torchcompat import graphs, probe
from elasticjob.torchcompat.probe import Probe

_RECORDER = "torch._C._distributed_c10d._dump_nccl_trace_json"
_QUEUED, _COMPLETED = "last_enqueued_collective", "last_completed_collective"

_former: frozenset[str] = frozenset()  # groups of earlier worlds, in which a collective may be pending for ever
_is_aborted = False


class Queues(NamedTuple):
    """All groups of a world."""

    completed: int = 0  # grows with each collective that the device has completed
    is_pending: bool = False  # there are others


def enter_world() -> None:
    """All groups were left: those that follow are others."""
    global _former, _is_aborted
    _former, _is_aborted = frozenset(_read()), False


def abort() -> None:
    """The world's groups are aborted. That frees the device, and torch's watchdog does not look any more."""
    global _is_aborted  # noqa: PLW0603
    _is_aborted = True


def find() -> Queues | None:
    """Of the present world; None where torch does not tell. Never raises."""
    if _is_aborted or graphs.count() or not (status := _read()):
        return None
    return judge(status, _former)


def judge(status: Mapping[str, Any], former: Collection[str]) -> Queues | None:
    """By the status of each group, by its number, without those that are `former`. None if it has no such form. Pure.

    Messages from one rank to another have numbers of their own there.
    """
    try:
        rows = [(int(one[_QUEUED]), int(one[_COMPLETED])) for number, one in status.items() if number not in former]
    except (KeyError, TypeError, ValueError):  # the recorder's format is torch's own
        return None
    return Queues(sum(completed for _, completed in rows), any(queued != completed for queued, completed in rows))


def _read() -> Mapping[str, Any]:
    record = probe.find(_RECORDER)
    try:
        found = json.loads(record(False)).get("pg_status") if record is not None else None
    except Exception:
        return {}
    return found if isinstance(found, Mapping) else {}


PROBES = (
    Probe(
        "what a session's ranks wait for on a device is known outside of steps, too",
        (_RECORDER,),
        "there they look as if they worked: a hang may cost all ranks their memory",
        lambda: not dist.is_nccl_available() or probe.find(_RECORDER) is not None,
    ),
)
