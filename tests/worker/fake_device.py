"""A device that works at what a thread has queued on it, in order, while the processor goes on. It is the CPU.

    fake_device.run_ahead()  # in the script's thread, for the rest of the process

From then on an operation is queued, and not done, if one of its tensors is in use: it waits for the result of a
collective, or for what is queued before it. All others are done at once. Who looks at a value waits for what is queued
(`item()`, `tolist()`, `cpu()`, an operation whose shape depends on values), and so does a collective of gloo.

What is no operation sees the memory as it is: a pointer, or another thread. So does code on a real device that does not
wait for it. Memory that is resized is waited for.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_libc = ctypes.CDLL(None)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")  # those of gloo; others are no operations
_LOOKING = ("cpu", "numpy", "tolist")


class Gate:
    """Waits as code of the backend does: no handler of Python's runs meanwhile, so no exception ends it."""

    def __init__(self) -> None:
        self._semaphore = ctypes.create_string_buffer(64)
        _libc.sem_init(self._semaphore, 0, 0)

    def open(self) -> None:
        _libc.sem_post(self._semaphore)

    def wait(self) -> None:
        while _libc.sem_wait(self._semaphore):
            pass


class Queue:
    """What is queued on the device, and the memory that is in use there."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], object], list[torch.Tensor], Gate | None]]
        self._calls = queue.SimpleQueue()
        self._used: collections.Counter[int] = collections.Counter()
        self._lock = threading.Lock()
        self._length = 0
        threading.Thread(target=self._work, name="fake-device", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        return self._length > 0

    def touches(self, tensors: Iterable[torch.Tensor]) -> bool:
        return self.is_busy and any(self._used[_find_memory(one)] for one in tensors)

    def put(self, call: Callable[[], object], tensors: Sequence[torch.Tensor] = (), gate: Gate | None = None) -> None:
        """`tensors`: in use until the call is done, and the gate opens then."""
        with self._lock:
            self._length += 1
            self._used.update(map(_find_memory, tensors))
            self._calls.put((call, list(tensors), gate))

    def drain(self) -> None:
        """Wait for all that is queued now."""
        if self.is_busy:
            gate = Gate()
            self.put(lambda: None, gate=gate)
            gate.wait()

    def _work(self) -> None:
        torch.set_num_threads(1)
        with _below_autograd():
            while True:
                call, tensors, gate = self._calls.get()
                try:
                    call()
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(70)
                with self._lock:
                    self._length -= 1
                    self._used.subtract(map(_find_memory, tensors))
                if gate is not None:
                    gate.open()
                del call, tensors, gate


class _Here(threading.local):
    is_ahead = False


_here = _Here()
_queue: Queue | None = None


def run_ahead() -> None:
    """This thread queues from now on, see above."""
    global _queue  # noqa: PLW0603 - a process has one device
    if _queue is None:
        _queue = Queue()
        for name in _LOOKING:
            setattr(torch.Tensor, name, _looking(getattr(torch.Tensor, name)))
        torch.UntypedStorage.resize_ = _resizing(torch.UntypedStorage.resize_)  # type: ignore[method-assign]
    _here.is_ahead = True
    Mode(_queue).__enter__()  # type: ignore[no-untyped-call]


def find_queue() -> Queue | None:
    """That of this thread, if it runs ahead."""
    return _queue if _here.is_ahead else None


def drain() -> None:
    if _queue is not None:
        _queue.drain()


def is_busy() -> bool:
    return _queue is not None and _queue.is_busy


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, queue_: Queue) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._queue = queue_

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if any(type(one) not in _PLAIN for one in tensors):
            return NotImplemented
        if not self._queue.touches(tensors) or func.is_view:
            return func(*args, **kwargs)
        if _has_to_wait(func):
            self._queue.drain()
            return func(*args, **kwargs)
        return self._defer(func, args, kwargs, tensors)

    def _defer(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        returns, changed = func._schema.returns, _find_changed(func._schema, args, kwargs)
        results: list[Any] = [changed.get(_name(one)) for one in returns]
        places: list[Any] = []
        if any(one.alias_info is None for one in returns):
            found = func(*pytree.tree_map(_to_meta, args), **pytree.tree_map(_to_meta, kwargs))
            found = list(found) if len(returns) > 1 else [found]
            made = [
                pytree.tree_map(_make_like, one) if result is None else result
                for one, result in zip(found, results, strict=True)
            ]
            places = [one for one, result in zip(made, results, strict=True) if result is None]
            results = made

        def call() -> None:
            given = func(*args, **kwargs)
            given = list(given) if len(returns) > 1 else [given] if returns else []
            fresh = [one for one, kind in zip(given, returns, strict=True) if kind.alias_info is None]
            for place, value in zip(pytree.tree_leaves(places), pytree.tree_leaves(fresh), strict=True):
                if isinstance(place, torch.Tensor):
                    place.copy_(value)

        self._queue.put(call, [*tensors, *(one for one in pytree.tree_leaves(places) if isinstance(one, torch.Tensor))])
        return tuple(results) if len(returns) > 1 else results[0] if returns else None


def _has_to_wait(func: Any) -> bool:
    """Its result depends on values, or it is done where nobody queues."""
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
    return (
        bool(tags & set(func.tags)) or func.namespace in _COLLECTIVES or func in (torch.ops.aten.set_.source_Storage,)
    )


def _find_changed(schema: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """What the operation writes to, of what it was given, by the name that torch has for it."""
    found = {}
    for number, one in enumerate(schema.arguments):
        if one.alias_info is not None and one.alias_info.is_write:
            found[_name(one)] = args[number] if number < len(args) else kwargs.get(one.name)
    return found


def _name(argument: Any) -> str:
    return "" if argument.alias_info is None else str(sorted(argument.alias_info.before_set))


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value


def _make_like(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
    return value


def _find_memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _below_autograd() -> Any:
    """What is done is done for tensors that autograd has seen, and whose changes torch has counted."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    for name in ("AutogradCPU", "AutogradOther", "AutogradFunctionality"):
        keys = keys.add(getattr(torch._C.DispatchKey, name)) if hasattr(torch._C.DispatchKey, name) else keys
    return torch._C._ExcludeDispatchKeyGuard(keys)


def _looking(look: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(look)
    def wait_and_look(tensor: torch.Tensor, *given: Any, **more: Any) -> Any:
        if type(tensor) in _PLAIN and _queue is not None and _here.is_ahead and _queue.touches([tensor]):
            _queue.drain()
        return look(tensor, *given, **more)

    return wait_and_look


def _resizing(resize: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(resize)
    def wait_and_resize(*given: Any) -> Any:
        drain()
        return resize(*given)

    return wait_and_resize
