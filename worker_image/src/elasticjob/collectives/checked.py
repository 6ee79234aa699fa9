"""The checked mode: before each collective, the ranks of the group compare the calls that they are about to make.

Inside `with checked():` the functions of `torch.distributed` first publish this rank's call in the group's store: the
operation, shape, dtype, reduce operation or root, and the line of the script. Then they read the calls of the other
ranks. If the calls differ, or a rank does not arrive within the time limit, every rank that did arrive raises
`CollectiveMismatchError`, which names the ranks and their calls. A mistake that would cause a hang or corrupt data
becomes an error message.

Each call costs some messages to the store, so this is a tool to find a mistake, not for long runs. It covers calls
written as `torch.distributed.all_reduce(...)`, but not those that DDP and FSDP make inside torch: for these it also
enables torch's own check (`TORCH_DISTRIBUTED_DEBUG=DETAIL`) for groups created afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import DebugLevel, get_debug_level, set_debug_level  # type: ignore[attr-defined]

from elasticjob.collectives import messages
from elasticjob.errors import CollectiveMismatchError, ConfigurationError
from elasticjob.torchcompat import groups

# What is compared: the parameter with the tensor, and the parameters that must be equal. Calls whose tensors may differ
# by rank have no tensor here.
COLLECTIVES: Mapping[str, tuple[str | None, tuple[str, ...]]] = {
    "all_reduce": ("tensor", ("op",)),
    "broadcast": ("tensor", ("src", "group_src")),
    "reduce": ("tensor", ("dst", "group_dst", "op")),
    "all_gather": ("tensor", ()),
    "all_gather_into_tensor": ("input_tensor", ()),
    "all_gather_single": ("input_tensor", ()),
    "gather": ("tensor", ("dst", "group_dst")),
    "scatter": ("tensor", ("src", "group_src")),
    "reduce_scatter": ("output", ("op",)),
    "reduce_scatter_tensor": ("output", ("op",)),
    "reduce_scatter_single": ("output", ("op",)),
    "all_to_all": (None, ()),
    "all_to_all_single": (None, ()),
    "barrier": (None, ()),
    "all_gather_object": (None, ()),
    "broadcast_object_list": (None, ("src", "group_src")),
    "gather_object": (None, ("dst", "group_dst")),
    "scatter_object_list": (None, ("src", "group_src")),
}
_ROOTS = {"src", "dst", "group_src", "group_dst"}


@dataclass(frozen=True)
class Call:
    """The call of one rank. `where` is shown to the user and not compared."""

    operation: str
    tensor: str = ""  # "float32 [4, 2]"
    options: str = ""  # "op=SUM"
    where: str = ""  # "train.py:12"

    def same_as(self, other: Call) -> bool:
        """Whether the two calls match."""
        return (self.operation, self.tensor, self.options) == (other.operation, other.tensor, other.options)

    def __str__(self) -> str:
        inside = ", ".join(part for part in (self.tensor, self.options) if part)
        return f"{self.operation}({inside})" + (f" at {self.where}" if self.where else "")


def explain_mismatch(
    number: int, group: str, calls: Mapping[int, Call], missing: Mapping[int, str], waited: float = 0.0
) -> str | None:
    """A message that names the ranks and their calls, or None if all ranks arrived with the same call.

    `calls` is by rank. `missing` contains the ranks that did not arrive, with their last call. `waited` is in seconds.
    """
    kinds: list[tuple[Call, list[int]]] = []
    for rank, call in sorted(calls.items()):
        for known, ranks in kinds:
            if known.same_as(call) and known.where == call.where:
                ranks.append(rank)
                break
        else:
            kinds.append((call, [rank]))
    first = next(iter(calls.values()))
    if not missing and all(call.same_as(first) for call in calls.values()):
        return None
    lines = [f"collective {number} of group {group} does not match:"]
    lines += [f"  {_ranks_text(ranks)}: {call}" for call, ranks in kinds]
    lines += [f"  rank {rank}: nothing for {waited:.0f} s; {last}" for rank, last in sorted(missing.items())]
    lines.append(_remedy(list(calls.values()), bool(missing)))
    return "\n".join(lines)


def _ranks_text(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank) for rank in ranks)


def _remedy(calls: Sequence[Call], someone_is_missing: bool) -> str:
    if len({call.operation for call in calls}) > 1:
        return "Every rank must make the same calls in the same order: look for an `if rank ...` around one of them."
    if someone_is_missing:
        return "Every rank of the group must make every call: look for an early exit, a crash or an `if rank ...`."
    if len({call.options for call in calls}) > 1:
        return "The operation or the root rank must be the same everywhere."
    return (
        "Shape and dtype must be the same on every rank. "
        "For shapes that differ use elasticjob.all_gather_unequal or gather_unequal."
    )


_blocks = itertools.count(1)  # all ranks enter every block, so its number is equal on all


class _Checker:
    """Compares calls through the store of the world. One per `with checked()`."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._prefix = f"elasticjob/checked/{next(_blocks)}"
        self._store: Any = groups.find_store() or _make_store()
        self._numbers: dict[str, int] = {}
        self._rank = dist.get_rank()
        self._lock = threading.Lock()

    def compare(self, call: Call, group: Any) -> None:
        """Publish the call, wait for the other ranks, and raise CollectiveMismatchError if the calls differ."""
        ranks = dist.get_process_group_ranks(group) if group is not None else list(range(dist.get_world_size()))
        if self._rank not in ranks:
            return  # torch warns and does nothing
        name = "world" if group is None or group is dist.group.WORLD else str(group.group_name)
        with self._lock:
            number = self._numbers[name] = self._numbers.get(name, 0) + 1
        prefix = f"{self._prefix}/{name}"
        self._store.set(f"{prefix}/{number}/{self._rank}", json.dumps(asdict(call)))
        self._store.set(f"elasticjob/checked/last/{self._rank}", f"its last call was {call}")
        came, waited = self._wait({rank: f"{prefix}/{number}/{rank}" for rank in ranks})
        calls = {rank: Call(**json.loads(self._store.get(f"{prefix}/{number}/{rank}"))) for rank in came}
        missing = {rank: self._last_call(rank) for rank in ranks if rank not in came}
        message = explain_mismatch(number, name, calls, missing, waited)
        if message is not None:
            raise CollectiveMismatchError(message)
        if number > 1:  # all ranks arrived at this call, so all have read the previous one
            self._store.delete_key(f"{prefix}/{number - 1}/{self._rank}")

    def _wait(self, keys: Mapping[int, str]) -> tuple[list[int], float]:
        # Poll: a blocking wait would prevent other threads from using the store's connection.
        started = time.monotonic()
        pause = 0.0005
        came: list[int] = []
        while True:
            came += [rank for rank, key in keys.items() if rank not in came and self._store.check([key])]
            waited = time.monotonic() - started
            if len(came) == len(keys) or waited > self._timeout:
                return came, waited
            time.sleep(pause)
            pause = min(0.05, pause * 2)

    def _last_call(self, rank: int) -> str:
        key = f"elasticjob/checked/last/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else "it made no checked call"


_servers: list[Any] = []  # kept alive: other ranks may read them after this rank has left the block


def _make_store() -> Any:
    """A store for one block, on rank 0's host, used if torch does not expose the world's store. All ranks call it."""
    host, rank = os.environ.get("MASTER_ADDR", "127.0.0.1"), dist.get_rank()
    if rank == 0:
        _servers.append(dist.TCPStore(host, 0, is_master=True, wait_for_workers=False))  # type: ignore[attr-defined]
    port = int(messages.broadcast(str(_servers[-1].port) if rank == 0 else "", 0))
    return _servers[-1] if rank == 0 else dist.TCPStore(host, port, wait_for_workers=False)  # type: ignore[attr-defined]


def describe_call(name: str, arguments: Mapping[str, Any], where: str) -> Call:
    """The compared properties of a call to `torch.distributed.<name>` with these arguments."""
    tensor_name, compared = COLLECTIVES[name]
    tensor = arguments.get(tensor_name) if tensor_name else None
    text = ""
    if isinstance(tensor, torch.Tensor):
        text = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    options = []
    for option in compared:
        value = arguments.get(option)
        if option in _ROOTS:
            if value is not None:
                options.append(f"{option}={value}")
        elif value is not None:
            options.append(f"{option}={str(value).rpartition('.')[2]}")
    return Call(name, text, ", ".join(options), where)


def _caller() -> str:
    """The line of the script: the nearest frame outside of torch and this package."""
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("torch", "elasticjob"):
            return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def _checking(name: str, original: Callable[..., Any], checker: _Checker) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        checker.compare(describe_call(name, bound.arguments, _caller()), bound.arguments.get("group"))
        return original(*args, **kwargs)

    return call


def set_torch_checks() -> None:
    """Enable torch's own check for groups created from now on."""
    set_debug_level(DebugLevel.DETAIL)


@contextlib.contextmanager
def checked(timeout: float = 30.0) -> Iterator[None]:
    """Compare every collective of the block on all ranks before it runs. All ranks must enter the block.

    `timeout` is how long, in seconds, a rank waits for the others before it reports the missing ones. Raises
    ConfigurationError without a process group; a call in the block raises CollectiveMismatchError if the ranks do not
    match.
    """
    if not dist.is_initialized():
        raise ConfigurationError(
            "checked() needs a process group: call elasticjob.init() or init_process_group() first."
        )
    checker = _Checker(timeout)
    originals = {name: getattr(dist, name) for name in COLLECTIVES if hasattr(dist, name)}
    level = get_debug_level()
    set_torch_checks()
    try:
        with groups.replaced({name: _checking(name, original, checker) for name, original in originals.items()}):
            yield
    finally:
        set_debug_level(level)
