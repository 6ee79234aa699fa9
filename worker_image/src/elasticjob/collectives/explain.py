"""The error messages of collectives: one sentence with the call, the rank and the remedy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives.members import Group, size_and_rank
from elasticjob.errors import CollectiveFailedError


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Convert a backend's error to a CollectiveFailedError that names the call, this rank and the remedy."""
    started = time.monotonic()
    try:
        yield
    except (RuntimeError, ConnectionError) as error:
        raise _explain(name, started, error) from error


def _explain(name: str, started: float, error: Exception) -> Exception:
    """The error for the user; an error that is clear by itself is returned unchanged."""
    if isinstance(error, (CollectiveFailedError, NotImplementedError, torch.cuda.OutOfMemoryError)):
        return error
    rank = dist.get_rank() if dist.is_initialized() else "?"
    first_line = str(error).strip().partition("\n")[0]
    return CollectiveFailedError(
        f"{name} failed on rank {rank} after {time.monotonic() - started:.1f} s: {first_line} -- "
        "If another rank ended, look at its output first: it is the cause. Otherwise check that every rank "
        "makes the same calls with the same shapes: `with elasticjob.checked():` names the one that does not."
    )


def run(name: str, group: Group, call: Callable[..., Any], *args: Any) -> None:
    """Run a synchronous call of torch with minimal overhead: a small message takes only microseconds.

    The caller has checked that this rank is in the group: otherwise torch only warns. Raises like `explained`.
    """
    started = time.monotonic()
    try:
        call(*args, group)
    except (RuntimeError, ConnectionError, ValueError) as error:
        size_and_rank(group)  # raises if there is no group
        if isinstance(error, ValueError):
            raise
        for_user = _explain(name, started, error)
        if for_user is error:
            raise
        raise for_user from error
