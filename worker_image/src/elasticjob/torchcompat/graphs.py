"""CUDA graphs in which collectives were captured: a replay queues them again, and neither torch nor NCCL counts them.

Such a graph has the communicators of the world in which it was made. Replayed in the next one, it would use memory that
an abort has freed.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import groups

_OLD = (
    "a CUDA graph is replayed in another world than the one in which it was captured, and has collectives of that one:"
    " its communicators are gone. Capture it anew in on_world, which a session calls in each world."
)
_WORLD = "_elasticjob_world"  # of a graph: the one whose communicators it has, or None
_BEGUN = "_elasticjob_begun"  # of a graph: what this process had queued when its capture began
_replayed = 0
_world = 0


def enter_world() -> None:
    """Communicators of earlier worlds are gone."""
    global _world  # noqa: PLW0603 - torch's class is that of the process
    _world += 1


def count() -> int:
    """The replays in this process, since `watch`, of graphs in which collectives or messages were captured."""
    return _replayed


def watch() -> None:
    """From now on, count the replays that queue collectives, and refuse those of a graph of an earlier world."""
    kind: Any = torch.cuda.CUDAGraph
    begin, end, replay = kind.capture_begin, kind.capture_end, kind.replay
    if hasattr(replay, _WORLD):
        return

    @functools.wraps(begin)
    def begin_and_note(graph: Any, *given: Any, **more: Any) -> Any:
        found = begin(graph, *given, **more)
        graph.__dict__[_BEGUN] = _count_queued()
        return found

    @functools.wraps(end)
    def end_and_note(graph: Any, *given: Any, **more: Any) -> Any:
        has_any = graph.__dict__.pop(_BEGUN, None) != _count_queued()
        graph.__dict__[_WORLD] = _world if has_any else None
        return end(graph, *given, **more)

    @functools.wraps(replay)
    def replay_and_count(graph: Any, *given: Any, **more: Any) -> Any:
        global _replayed  # noqa: PLW0603
        of = graph.__dict__.get(_WORLD, _world)  # what was captured before `watch` may have some
        _replayed += of is not None
        if of not in (None, _world):
            raise ConfigurationError(_OLD)
        return replay(graph, *given, **more)

    setattr(replay_and_count, _WORLD, None)
    kind.capture_begin, kind.capture_end, kind.replay = begin_and_note, end_and_note, replay_and_count


def _count_queued() -> tuple[int, int]:
    """NCCL does not count messages among its collectives."""
    return groups.count_queued(), groups.count_messages()
