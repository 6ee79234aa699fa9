"""A backend for CPU tensors with the semantics of NCCL, for sessions that must hold on a device.

    session = Session(..., backend=fake_nccl.NAME)  # and FAKE_NCCL="leaves=garbage,abort=8" in the environment

What a script and a session can see of `ProcessGroupNCCL` and of a device:

- A collective is queued. `wait()` and futures return whether or not it can ever be done, and nothing raises.
- If a peer is lost, its kernel stays on the device until somebody aborts the communicator. Then it ends, with what lies
  in its buffers, and everything behind it goes on. Who waits for the device (`synchronize`) waits until then.
- It has a stream of its own. The script's stream waits for it once the script has called `wait()`, and so does who
  waits for that stream. Nobody waits for a collective that was only begun. A script may have further streams.
- torch's own code, as that of functional collectives, calls `wait()` where nothing in Python hears of it.
- A CUDA graph queues the collectives again that were recorded in it, and torch does not count those. Whose communicator
  was aborted leaves anything in its buffers, and raises nothing.
- A collective is no change that torch counts (`tensor._version`).
- An aborted communicator refuses further collectives with `DistBackendError`.
- An abort frees memory of the device, and waits for the kernels of all other communicators first: for a quarter of a
  minute with NCCL, and here until they end. Two that are stuck are aborted at once, or not at all.
- It is made by its first collective. If a peer does not come then, nothing frees the thread that waits, also no abort.
  A message from one rank to another has a communicator of these two, unless it is one of a batch.
- Its watchdog knows how far the device is with what was queued, and tells torch's flight recorder.
- It notices a lost peer after some seconds or never, dumps, and ends the process, as torch's variables say.
  Torch's own checks of collectives (`TORCH_DISTRIBUTED_DEBUG=DETAIL`) make mode 3 of mode 0.

A collective that can be done is done by gloo, on copies: an undisturbed run has the bits of gloo. What a script
computes behind a collective that is stuck is what the device would compute after the abort. With `ahead=1`, `wait()`
returns at once, and what follows it is queued too, in a program that calls `run_ahead()`: see `fake_device`. Otherwise
it waits for a collective that can be done.

The variable FAKE_NCCL has what a test wants of all this, such as `notices=0.1,abort=8`; see `Wants`. It is for all
worlds, or for that of one generation, as in `2:abort=8`. A program whose session uses `choose()` trains over this
backend if the variable is there, and over gloo otherwise. `draw=SEED` draws all for each communicator. So
`FAKE_NCCL=draw=1` before pytest or `make chaos` runs whole suites over this backend.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist

from elasticjob import env
from elasticjob.collectives import skeletons
from elasticjob.torchcompat import devices, groups, waits
from worker import fake_device
from worker.fake_device import Gate

NAME = "fakenccl"
_c10d: Any = torch._C._distributed_c10d  # what torch does not declare
_wait: Any = _c10d.Work.wait  # a session has its own one, which hears of errors that no device raises
VARIABLE = "FAKE_NCCL"
# torch's c10d: what the watchdog does after an error. Modes 1 and 3 end the process, 1 and 2 abort the communicators.
_MODE, _DUMP = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"
_DESYNC = "TORCH_NCCL_DESYNC_DEBUG"
_WORLD = ""  # the key of the communicator of all ranks of a group; that of two has their numbers


@dataclass(frozen=True)
class Wants:
    """What a test wants of the backend, by the environment of its ranks."""

    notices: float = -1.0  # seconds after which the watchdog notices a lost peer; -1: never, as on NVLink
    abort: float = 0.0  # seconds that an abort takes after it has freed the device
    leaves: str = "own"  # in the buffers of an aborted collective: this rank's "own" values, "garbage" or "nan"
    shutdown: str = "ends"  # or "raises", or "hangs"
    ahead: int = 0  # 1: the processor runs ahead of the device
    dies: str = "-1"  # the generation in which the last rank dies instead of making its communicator

    @classmethod
    def read(cls) -> Wants:
        given = {}
        for one in filter(None, os.environ.get(VARIABLE, "").split(",")):
            name, value = one.split("=")
            generation, _, name = name.rpartition(":")
            if generation in ("", os.environ.get(env.GENERATION, "")):
                given[name] = value
        if "draw" in given:
            here = (os.environ.get(name, "") for name in (env.POD_NAME, "RANK", env.GENERATION))
            return cls.draw(random.Random(" ".join([given["draw"], *here])))
        kinds: dict[str, Any] = {one.name: type(one.default) for one in fields(cls)}
        return cls(**{name: kinds[name](value) for name, value in given.items()})

    @classmethod
    def draw(cls, chance: random.Random) -> Wants:
        """Who notices a loss first, and what is left of its world."""
        return cls(
            notices=chance.choice((-1.0, 0.0, 0.3)),
            abort=chance.choice((0.0, 0.0, 5.0)),
            leaves=chance.choice(("own", "garbage", "nan")),
            shutdown=chance.choice(("ends", "ends", "raises", "hangs")),
        )


class Device:
    """The device of this process: the kernels that have not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kernels: set[Kernel] = set()
        self._waits: list[tuple[set[Kernel], Gate]] = []

    def put(self, kernel: Kernel) -> None:
        with self._lock:
            self._kernels.add(kernel)

    def end(self, kernel: Kernel, finish: Callable[[], None]) -> None:
        """The kernel leaves the device, once: it is done, or aborted."""
        with self._lock:
            if kernel in self._kernels:
                finish()
                self._kernels.remove(kernel)
                kernel.has_left.set()
            for one in [one for one in self._waits if not one[0] & self._kernels]:
                self._waits.remove(one)
                one[1].open()

    def wait(self) -> None:
        """Until all that is queued now has left the device."""
        fake_device.drain()
        self._wait_for(lambda _: True)

    def wait_for_stream(self) -> None:
        """Until all has left the device for which the stream of the script waits."""
        here = _here.stream
        fake_device.drain()
        self._wait_for(lambda kernel: here in kernel.joined)

    def is_stream_busy(self) -> bool:
        with self._lock:
            return fake_device.is_busy() or any(_here.stream in one.joined for one in self._kernels)

    def join(self, stream: int, other: int) -> None:
        """One stream waits for what the other one waits for now."""
        with self._lock:
            for kernel in self._kernels:
                if other in kernel.joined:
                    kernel.joined.add(stream)

    def has(self, kernel: Kernel) -> bool:
        with self._lock:
            return kernel in self._kernels

    def _wait_for(self, counts: Callable[[Kernel], bool]) -> None:
        with self._lock:
            before, done = set(filter(counts, self._kernels)), Gate()
            if before:
                self._waits.append((before, done))
        if before:
            done.wait()


_device = Device()
_recorded: dict[str, dict[str, str]] = {}  # by the number of a group: how far it is, as the watchdog knows it


class _Here(threading.local):
    is_in_batch = False
    stream = 0  # on which this thread queues; a number
    graph: Graph | None = None  # which records what this thread queues


_here = _Here()


class ScriptStream:
    """A stream of the script's own, as `torch.cuda.Stream`: what is queued in a `with` block of it is queued there."""

    def __init__(self) -> None:
        self._number, self._before = id(self), 0

    def __enter__(self) -> None:
        self._before, _here.stream = _here.stream, self._number

    def __exit__(self, *_: object) -> None:
        _here.stream = self._before

    def wait_for_script(self) -> None:
        """`stream.wait_stream(torch.cuda.current_stream())`"""
        _device.join(self._number, _here.stream)

    def join(self) -> None:
        """`torch.cuda.current_stream().wait_stream(stream)`"""
        _device.join(_here.stream, self._number)


class Graph:
    """What is behind `torch.cuda.CUDAGraph`: collectives that are queued again at each replay, where nobody sees it."""

    def __new__(cls, *_: object, **__: object) -> Graph:
        return object.__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        self.calls: list[Callable[[], object]] = []

    def capture_begin(self, **_: object) -> None:
        _here.graph = self

    def capture_end(self) -> None:
        _here.graph = None

    def replay(self) -> None:
        for call in self.calls:
            call()


def sleep_in_torch(seconds: float) -> None:
    """What takes time in torch's code takes it without Python's lock, which the thread needs again afterwards."""
    with contextlib.suppress(RuntimeError):
        dist.HashStore().wait(["nobody sets this"], datetime.timedelta(seconds=seconds))  # type: ignore[attr-defined]


def synchronize() -> None:
    """What `torch.cuda.current_stream().synchronize()`, `.item()` and `.to(device)` do."""
    _device.wait_for_stream()


def poll() -> None:
    """The same, as CUDA does it: the processor never rests."""
    while _device.is_stream_busy():
        time.sleep(0)  # gives the lock back, and goes on at once


def synchronize_all() -> None:
    """What `torch.cuda.synchronize()` does, and whatever frees memory of the device."""
    _device.wait()


class Kernel(_c10d.Work):  # type: ignore[misc]
    """A collective on the device. It works on copies of its tensors, so that gloo changes nothing after an abort."""

    def __init__(
        self,
        start: Callable[[list[torch.Tensor]], Any],
        results: Sequence[torch.Tensor],
        leaves: str,
        has_error: Callable[[], bool] = lambda: False,
        blocks: bool = False,
    ) -> None:
        """`start` begins it in gloo, with these copies of its results; `has_error`: of its communicator; `blocks`: so
        does `wait()`, until it has left the device.
        """
        super().__init__()
        self.inner: Any = None
        self.number = ""  # in its group
        self.has_left = threading.Event()  # the device
        self.joined: set[int] = set()  # the streams of the script that wait for it
        self._has_error, self._blocks = has_error, blocks
        self._start, self._results, self._leaves = start, list(results), leaves
        self._copies: list[torch.Tensor] = []
        self._queue = fake_device.find_queue()
        self._may_begin = threading.Event()  # what was queued before it is done
        if self._queue is None:
            self.begin()
        else:
            self._queue.put(self._may_begin.set)
        self._may_go_on = threading.Event()  # the processor; either the kernel has ended, or it never will by itself
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

    def begin(self, is_aborted: Callable[[], bool] = lambda: False) -> None:
        """Where the values are there that it needs. Raises RuntimeError if nobody needs it any more."""
        if self.inner is not None:
            return
        if self._queue is not None:
            self._may_begin.wait()
        if is_aborted():
            raise RuntimeError("the communicator was aborted before this began")
        with torch.no_grad():
            self._copies = [one.detach().clone() for one in self._results]
        self.inner = self._start(self._copies)

    def finish(self) -> None:
        for result, copy in zip(self._results, self._copies, strict=True):
            result.data.copy_(copy)

    def abandon(self) -> None:
        """Leave in the buffers what an abort does, before the processor goes on, which computes with it then."""
        if not self._may_go_on.is_set():
            for result in self._results if self._leaves != "own" else ():
                if result.is_floating_point():
                    most = min(1e30, torch.finfo(result.dtype).max)
                    result.data.fill_(most if self._leaves == "garbage" else torch.nan)
                else:
                    result.data.fill_(77)

    def release(self) -> None:
        """Let the processor go on."""
        if not self._may_go_on.is_set():
            self._may_go_on.set()
            if self._queue is not None:
                return
            # What is to follow it queues collectives, and in this thread it would wait for itself.
            threading.Thread(target=self._future.set_result, args=(self._results,), daemon=True).start()

    def wait(self, timeout: Any = None) -> bool:
        caller = sys._getframe(1).f_code.co_filename
        if not caller.endswith("torch/_ops.py"):  # torch's own code calls it there, and no method of Python's
            _count_wait()
        self.join()
        if self._blocks or not all(one.is_floating_point() for one in self._results):
            synchronize()  # torch reads whole numbers at once, for example the sizes that DDP compares
        return True

    def join(self) -> None:
        self.joined.add(_here.stream)
        if (own := fake_device.find_queue()) is not None and self._queue is own:
            own.put(self.has_left.wait, self._results)
        else:
            self._may_go_on.wait()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """If the processor runs ahead, the future is done, and what it does with the results is queued."""
        self.joined.add(_here.stream)
        if self._queue is not None and not self._future.done():
            self.join()
            self._future.set_result(self._results)
        return self._future

    def is_completed(self) -> bool:
        return self._has_error() or not _device.has(self)


class Recorded(_c10d.Work):  # type: ignore[misc]
    """A collective that a graph has recorded, and that is not done now."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Stream:
    """Of one communicator: a thread that ends its kernels in order."""

    def __init__(self, run: Callable[[Stream], None]) -> None:
        self.queue: queue.SimpleQueue[Kernel | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=run, args=(self,), name="fake-nccl-stream", daemon=True)


class FakeNCCL(_c10d.ProcessGroup):  # type: ignore[misc]
    """The communicators of a group, and torch's watchdog."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._wants = Wants.read()
        self._mode, self._dump = _find_mode(), 4 * float(os.environ.get(_DUMP, "15000")) / 1000
        self._inner: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._lock = threading.Lock()
        self._pending: list[Kernel] = []
        self._aborted = threading.Event()
        self._has_error = threading.Event()  # the watchdog has seen it
        self._watchdog: threading.Thread | None = None
        self._streams: dict[str, Stream] = {}  # of its communicators, by their keys
        self._count = 0
        self._status = {"last_enqueued_collective": "-1", "last_completed_collective": "-1"}  # torch's own words
        _recorded[str(len(_recorded))] = self._status
        self._store = store
        self._name = ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _get_sequence_number_for_group(self) -> int:
        return self._count

    # The device.

    def _run(self, stream: Stream) -> None:
        while (kernel := stream.queue.get()) is not None:
            try:
                kernel.begin(self._aborted.is_set)
                if isinstance(kernel.inner, Then):
                    kernel.inner.finish()
                else:
                    _wait(kernel.inner)
            except RuntimeError:  # a peer is lost: nothing ends this kernel and those behind it but an abort
                self._notice()
                while kernel is not None:
                    kernel.abandon()
                    kernel.release()
                    kernel = stream.queue.get()
                return
            _device.end(kernel, kernel.finish)
            with self._lock:
                if kernel in self._pending:
                    self._pending.remove(kernel)
                self._status["last_completed_collective"] = kernel.number
            kernel.release()

    def _create(self, key: str, ranks: Sequence[int]) -> None:
        is_last = self.rank() == self.size() - 1
        if key == _WORLD and self._wants.dies == os.environ.get("ELASTICJOB_GENERATION") and is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        made = Gate()
        threading.Thread(target=self._meet, args=(made, key, ranks), name="fake-nccl-bootstrap", daemon=True).start()
        made.wait()

    def _meet(self, made: Gate, key: str, ranks: Sequence[int]) -> None:
        with contextlib.suppress(RuntimeError):  # the connection to the store was shut down
            self._store.set(f"{key} made by {self.rank()}", "")
            while not self._store.check([f"{key} made by {rank}" for rank in ranks]):
                time.sleep(0.002)
            made.open()

    def _put(self, kernel: Kernel, key: str, counts: bool) -> Kernel:
        with self._lock:
            if self._aborted.is_set():
                raise dist.DistBackendError(f"NCCL communicator was aborted on rank {self.rank()}.")
            self._count += counts  # a message from one rank to another is none
            kernel.number = str(int(self._status["last_enqueued_collective"]) + 1)
            self._status["last_enqueued_collective"] = kernel.number
            self._pending.append(kernel)
            _device.put(kernel)
            if key not in self._streams:
                self._streams[key] = Stream(self._run)
                self._streams[key].thread.start()
            self._streams[key].queue.put(kernel)
        return kernel

    # The watchdog.

    def _notice(self) -> None:
        if self._wants.notices >= 0 and self._watchdog is None:
            self._watchdog = threading.Thread(target=self._watch, name="fake-nccl-watchdog", daemon=True)
            self._watchdog.start()

    def _watch(self) -> None:
        if self._aborted.wait(self._wants.notices):
            return
        self._has_error.set()
        _say(f"the watchdog has seen an error; it dumps for {self._dump} s")
        time.sleep(self._dump)  # an abort does not shorten it
        if self._mode in ("1", "2"):
            self._free()
        if self._mode in ("1", "3"):
            _say("To avoid data inconsistency, we are taking the entire process down.")
            os.kill(os.getpid(), signal.SIGABRT)

    # The end.

    def _free(self) -> None:
        with self._lock:
            self._aborted.set()
            for stream in self._streams.values():
                stream.queue.put(None)
            pending, self._pending = self._pending, []
        for kernel in pending:
            _device.end(kernel, kernel.abandon)
            kernel.release()

    def abort(self) -> None:
        is_first = not self._aborted.is_set()
        self._free()
        synchronize_all()  # it frees memory of the device, which waits for the kernels of other communicators
        if is_first and self._wants.abort:
            sleep_in_torch(self._wants.abort)

    def shutdown(self) -> None:
        if self._watchdog is not None:
            self._watchdog.join()
        if self._wants.shutdown == "raises":
            raise dist.DistBackendError("NCCL error in: ncclCommDestroy")
        if self._wants.shutdown == "hangs":
            Gate().wait()
        if not self._aborted.is_set():
            synchronize_all()  # a communicator is flushed before it is destroyed
            for stream in self._streams.values():
                stream.queue.put(None)
                stream.thread.join()  # who has the last reference waits in torch's destructor, and is to be who ends it

    # Collectives. Their arguments are torch's.

    def _start(
        self,
        outputs: Sequence[torch.Tensor],
        start: Callable[[list[torch.Tensor]], Any],
        peer: int | None = None,
        blocks: bool = False,
    ) -> Any:
        """`peer`: of a message from one rank to another."""
        if _here.graph is not None:
            _here.graph.calls.append(lambda: self._queue_again(outputs, start, peer))
            self._count += peer is None
            return Recorded()
        return self._queue(outputs, start, peer, blocks, counts=peer is None)

    def _queue_again(
        self, outputs: Sequence[torch.Tensor], start: Callable[[list[torch.Tensor]], Any], peer: int | None
    ) -> None:
        """A graph does, which knows nothing of torch's group."""
        if self._aborted.is_set():
            Kernel(lambda _: None, outputs, "garbage").abandon()
        else:
            self._queue(outputs, start, peer, blocks=False, counts=False).join()

    def _queue(
        self,
        outputs: Sequence[torch.Tensor],
        start: Callable[[list[torch.Tensor]], Any],
        peer: int | None,
        blocks: bool,
        counts: bool,
    ) -> Kernel:
        key, ranks = _WORLD, list(range(self.size()))
        if peer is not None and not _here.is_in_batch:
            ranks = sorted({self.rank(), peer})
            key = ":".join(map(str, ranks))
        if key not in self._streams:
            self._create(key, ranks)
        made = Kernel(start, outputs, self._wants.leaves, self._has_error.is_set, blocks)
        return self._put(made, key, counts)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        given = tensors if isinstance(tensors, list) else [tensors]
        return self._start(given, lambda mine: self._inner.allreduce(mine, opts or _c10d.AllreduceOptions()))

    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Any:
        return self._start(tensors, lambda mine: self._inner.allreduce_coalesced(mine, opts))

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        given = tensors if isinstance(tensors, list) else [tensors]
        return self._start(given, lambda mine: self._inner.broadcast(mine, opts))

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        (flat,), inputs = outputs, [one.detach().clone() for one in inputs]
        return self._start(flat, lambda mine: self._inner.allgather([mine], inputs, opts))

    def _allgather_base(self, output: Any, input: Any, opts: Any) -> Any:
        given = input.detach().clone()
        return self._start([output], lambda mine: self._inner._allgather_base(mine[0], given, opts))

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.AllgatherOptions()
        return [self._allgather_base(*pair, opts) for pair in zip(outputs, inputs, strict=True)][-1]

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self._allgather_base(output, input, opts or _c10d.AllgatherOptions())

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any) -> Any:
        given = input.detach().clone()
        return self._start([output], lambda mine: self._inner._reduce_scatter_base(mine[0], given, opts))

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return [self._reduce_scatter_base(*pair, opts) for pair in zip(outputs, inputs, strict=True)][-1]

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self._reduce_scatter_base(output, input, opts or _c10d.ReduceScatterOptions())

    def alltoall_base(self, output: Any, input: Any, out_splits: Any, in_splits: Any, opts: Any) -> Any:
        given = input.detach().clone()
        return self._start(
            [output], lambda mine: self._inner.alltoall_base(mine[0], given, list(out_splits), list(in_splits), opts)
        )

    def all_to_all_single(self, output: Any, input: Any, out_splits: Any = (), in_splits: Any = (), *_: Any) -> Any:
        return self.alltoall_base(output, input, out_splits, in_splits, _c10d.AllToAllOptions())

    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """Gloo has none for lists: a message to each rank, and one from each."""
        given, sizes = [one.detach().reshape(-1) for one in inputs], [one.numel() for one in outputs]
        flat = torch.empty(sum(sizes), dtype=outputs[0].dtype)
        args = [flat, torch.cat(given), sizes, [one.numel() for one in given], opts]

        def start(mine: list[torch.Tensor]) -> Any:
            work = self._inner.alltoall_base(*args)
            return Then(
                work, lambda: [a.copy_(b.view_as(a)) for a, b in zip(mine, torch.split(flat, sizes), strict=True)]
            )

        return self._start(outputs, start)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        return self._start(tensors, lambda mine: self._inner.reduce(mine, opts))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        given = [[one.detach().clone() for one in flat] for flat in inputs]
        return self._start(outputs, lambda mine: self._inner.reduce_scatter(mine, given, opts))

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        flat, given = (outputs[0] if outputs else []), [one.detach().clone() for one in inputs]
        return self._start(flat, lambda mine: self._inner.gather([mine] if outputs else [], given, opts))

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        given = [[one.detach().clone() for one in flat] for flat in inputs]
        return self._start(outputs, lambda mine: self._inner.scatter(mine, given, opts))

    @groups.counting  # as the methods of torch's own class
    def send(self, tensors: Any, peer: int, tag: int) -> Any:
        given = [one.detach().clone() for one in tensors]
        return self._start([], lambda _: self._inner.send(given, peer, tag), peer)

    @groups.counting
    def recv(self, tensors: Any, peer: int, tag: int) -> Any:
        return self._start(tensors, lambda mine: self._inner.recv(mine, peer, tag), peer)

    def barrier(self, opts: Any = None) -> Any:
        """Its `wait()` blocks the processor, and returns after an abort."""
        return self._start([], lambda _: self._inner.barrier(_c10d.BarrierOptions()), blocks=True)

    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced


class Then:
    """Gloo's work, and what is done with its result when it is done."""

    def __init__(self, inner: Any, do: Callable[[], object]) -> None:
        self.inner, self._do = inner, do

    def finish(self) -> None:
        _wait(self.inner)
        self._do()


def _in_batch(batch: Callable[..., Any]) -> Callable[..., Any]:
    """Messages of a batch use the communicator of all ranks, as they may be with any of them."""

    @functools.wraps(batch)
    def call(*given: Any, **more: Any) -> Any:
        _here.is_in_batch = True
        try:
            return batch(*given, **more)
        finally:
            _here.is_in_batch = False

    return call


def _find_mode() -> str:
    mode = os.environ.get(_MODE, "3")
    checks: Any = dist.get_debug_level() == dist.DebugLevel.DETAIL  # type: ignore[attr-defined]
    return "3" if mode == "0" and (checks or os.environ.get(_DESYNC, "0") == "1") else mode


def choose() -> str | None:
    """The backend for a session, as the environment wants it; None: the session's own choice."""
    if VARIABLE not in os.environ:
        return None
    put_state_on_device()
    return NAME


def put_state_on_device() -> None:
    """A session's state counts as that of a device: it is sent with this backend, and a digest of it waits.

    Numbers stay on the CPU, as those do with which an optimizer counts steps.
    """
    split, digest = skeletons.split, skeletons.digest

    def split_there(value: Any, tensors: list[torch.Tensor]) -> Any:
        skeleton = split(value, tensors)
        if isinstance(value, torch.Tensor) and value.ndim:
            return dataclasses.replace(skeleton, device="cuda")
        return skeleton

    def digest_there(tensor: torch.Tensor) -> int:
        synchronize()
        return digest(tensor)

    skeletons.split, skeletons.digest = split_there, digest_there


def run_ahead() -> None:
    """If the environment wants it, for a program whose sharded models and copies need no streams of a device."""
    if "ahead=1" in os.environ.get(VARIABLE, "").split(","):
        fake_device.run_ahead()


def _say(text: str) -> None:
    print(f"[fake NCCL in {os.getpid()}] {text}", file=sys.stderr, flush=True)


def _create(store: Any, rank: int, size: int, timeout: Any) -> FakeNCCL:
    return FakeNCCL(store, rank, size, timeout)


@waits.counting  # as the `wait()` of torch's own class
def _count_wait() -> None:
    pass


def _dump(has_collectives: bool = True, is_active: bool = False) -> bytes:
    """torch's flight recorder, without the collectives themselves. It keeps groups that were aborted, as they were."""
    return json.dumps({"pg_status": _recorded}).encode()


def _let_graphs_record() -> None:
    """`torch.cuda.CUDAGraph` has this model's below it, where torch has no device."""
    if not torch.cuda.is_available():
        below = torch.cuda.CUDAGraph.__mro__[1]
        for name in ("__new__", "__init__", "capture_begin", "capture_end", "replay"):
            setattr(below, name, Graph.__dict__[name])


_let_graphs_record()
_c10d._dump_nccl_trace_json = _dump
dist.Backend.register_backend(NAME, _create, devices=["cpu"])
dist.batch_isend_irecv = _in_batch(dist.batch_isend_irecv)
devices.register_wait(NAME, synchronize, synchronize_all)
