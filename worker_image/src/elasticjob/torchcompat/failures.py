"""Distinguishes torch's errors for broken communication in a process group from all its other errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
import torch.distributed as dist

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

# gloo raises a plain RuntimeError. Its text starts with the line of gloo's source that raised it, or quotes it, except
# for errors that follow a timeout.
_OF_GLOO = re.compile(
    r"(\[|enforce fail at )[^\s\[\]]*/gloo/[^\s\[\]]*\.(cc|h|cpp|hpp):\d+\]|^Application timeout caused pair closure"
)
_TYPES: tuple[type[BaseException], ...] = tuple(
    found
    for found in (probe.find("torch.distributed.DistError"), probe.find("torch.distributed.DistBackendError"))
    if isinstance(found, type)
)


def is_broken_communication(error: BaseException) -> bool:
    """Whether the error, or one of its causes, means that a group or its store no longer works."""
    return any(_is_broken(one) for one in chain(error))


def chain(error: BaseException, also_hidden: bool = False) -> Iterator[BaseException]:
    """The error and its causes, the last error first; `also_hidden`: all that were handled when it was raised, too."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        if also_hidden:
            one = one.__context__ or one.__cause__
        else:
            one = one.__cause__ if one.__cause__ is not None or one.__suppress_context__ else one.__context__


def _is_broken(error: BaseException) -> bool:
    return isinstance(error, _TYPES) or (type(error) is RuntimeError and bool(_OF_GLOO.search(str(error))))


def can_be_recognized() -> bool:
    """Whether gloo's errors contain their source line on this torch."""
    return MARKED.holds()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device ran out of memory: the script's problem, unless wrong values have asked for it."""
    return isinstance(error, torch.cuda.OutOfMemoryError)


def _look() -> bool:
    try:
        dist.ProcessGroupGloo.create_device(interface="no such one")
    except RuntimeError as error:
        return bool(_TYPES) and _is_broken(error)
    return False


MARKED = Probe(
    "a broken world is told from a mistake of the script by the error that it raises",
    ("torch.distributed.DistError", "[.../gloo/...cc:123] in the text of gloo's errors"),
    "after a RuntimeError a session waits 5 s for the agent's word that a member is lost",
    _look,
)
PROBES = (MARKED,)
