"""The errors of collectives for the user: one sentence with the call, the rank and the remedy."""

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
    """Turn a backend's error into a CollectiveFailedError that names the call, this rank and the remedy."""
    started = time.monotonic()
    try:
        yield
    except (RuntimeError, ConnectionError) as error:
        raise _explain(name, started, error) from error


def _explain(name: str, started: float, error: Exception) -> Exception:
    """The error for the user; one that says enough by itself stays as it is."""
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
    """The synchronous path: torch's call and next to nothing else, because small messages take only microseconds.

    The caller has made sure that this rank is in the group: torch only warns where it is not. Raises as `explained`.
    """
    started = time.monotonic()
    try:
        call(*args, group)
    except (RuntimeError, ConnectionError, ValueError) as error:
        size_and_rank(group)  # there may be no group at all
        if isinstance(error, ValueError):
            raise
        for_user = _explain(name, started, error)
        if for_user is error:
            raise
        raise for_user from error
