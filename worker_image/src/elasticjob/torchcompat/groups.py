"""Process groups: torch's list of them, how it names them, and the functions that it has renamed."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

_WORLD = "torch.distributed.distributed_c10d._world"
_COUNT = f"{_WORLD}.group_count"
_GROUPS = f"{_WORLD}.pg_map"
_NAMES = f"{_WORLD}.pg_names"
_MAKE = "torch.distributed.distributed_c10d._new_process_group_helper"
_CLASS = "torch._C._distributed_c10d.ProcessGroup"
_MESSAGES = ("send", "recv", "recv_anysource")
_COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "barrier", "monitored_barrier", "gather", "scatter"),
    *("allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "_allgather_base"),
    *("reduce_scatter", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base", "alltoall", "alltoall_base"),
)
_ENTERED = "torch._C._distributed_c10d.ProcessGroup._get_sequence_number_for_group"
_RECORDER = "torch._C._distributed_c10d._dump_fr_trace_json"
_STORE = "torch.distributed.distributed_c10d._get_default_store"
_BACKEND = "torch._C._distributed_c10d.ProcessGroup._get_backend"

_END_SECONDS = 1.0  # for gloo's threads: they may wait for a peer

_kept: _Kept | None = None
_messages: Counter[str] = Counter()  # by the name of a group of gloo
_begun = 0  # messages in groups that are none of gloo's


class _Kept:
    """Backends of gloo that are kept. Their threads are joined by one of their own, as they may wait for a peer.

    It is started ahead: the interpreter refuses new ones while it ends, from Python 3.12 on.
    """

    def __init__(self, backends: list[Any]) -> None:
        self.backends = backends
        self._dropped, self._ended = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="elasticjob-end-gloo", daemon=True).start()

    def _run(self) -> None:
        self._dropped.wait()
        self.backends.clear()
        self._ended.set()

    def drop(self) -> None:
        """Free the backends; wait for their threads, but not for peers."""
        self._dropped.set()
        self._ended.wait(_END_SECONDS)


def name_groups_anew() -> None:
    """Restart the numbering of process groups, as on new ranks. There must be no group.

    torch names groups with a counter that includes groups it failed to create: ranks that failed to enter an earlier
    world would look for the others under another name. Their collectives and messages are counted anew, too.
    """
    _messages.clear()
    if probe.find(_COUNT) is not None:
        probe.find(_WORLD).group_count = 0
    elif not dist.is_initialized():  # torch resets the counter when a world is destroyed in order
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.destroy_process_group()


def find_groups() -> list[Any]:
    """All process groups of this process, including those of meshes; only the default one if torch hides the rest.

    It is called in a thread other than the one that creates and destroys groups, and never raises.
    """
    with contextlib.suppress(TypeError, RuntimeError):  # removed or changed while it was read
        return list(probe.find(_GROUPS))
    return [dist.group.WORLD] if dist.is_initialized() else []


def destroy_groups() -> None:
    """Destroy all process groups, like `destroy_process_group`.

    gloo's threads need the GIL to free the tensors of their last collective, and a group joins them when it is freed.
    Up to torch 2.7 it does so with the GIL held, which is a deadlock. The Python object of a backend releases the GIL
    first, so it is kept for longer than its group; for even longer (`keep_gloo`) only if somebody else still holds the
    group: a thread of gloo's that waits for the GIL when the interpreter ends would end the process by SIGABRT. Nobody
    waits for one that waits for a peer, in a collective that a bug has left pending: the peer learns of it by the end.
    """
    groups = find_groups()
    backends = [_find_gloo(group) for group in groups]
    dist.destroy_process_group()
    kept = _kept
    if kept is not None:
        kept.backends += backends  # those of groups that were made later, too
    is_held = _are_held(groups)
    groups.clear()
    backends.clear()
    if kept is not None and not is_held:
        kept.drop()


def _are_held(groups: list[Any]) -> bool:
    """Whether anybody but this list has one of them."""
    others = [object() for _ in groups]
    return any(sys.getrefcount(one) > sys.getrefcount(other) for one, other in zip(groups, others, strict=True))


def keep_gloo() -> None:
    """Keep the backends of gloo for longer than the groups of this world: until the next one, or the process ends.

    A script may destroy its groups before its model. DistributedDataParallel is then the last that holds a group, and
    frees it with the GIL held, in any version of torch: the deadlock of `destroy_groups`, at the end of the script.
    """
    global _kept  # noqa: PLW0603 - torch's groups are those of the process
    if _kept is not None:
        _kept.drop()
    _kept = _Kept([_find_gloo(group) for group in find_groups()])


def forget_groups() -> list[Any]:
    """Make torch forget all process groups, as after `destroy_process_group`; return them, for the caller to end.

    Torch itself shuts them down first, one after the other: one that raises or hangs leaves it with its old groups. It
    shuts down those that it has a name for. Raises what `destroy_process_group` raises if torch hides the names.
    """
    groups = find_groups()
    if (names := probe.find(_NAMES)) is not None:
        names.clear()
    dist.destroy_process_group()
    return groups


def abort(group: Any) -> None:
    """End the kernels of all collectives of the group, which may wait for a lost member. Raises what torch raises."""
    _end(group, "abort", "_shutdown")  # that of torch 2.4 aborts


def shut_down(group: Any) -> None:
    """End the group in order, when all of its collectives are done. Raises what torch raises."""
    _end(group, "shutdown", "_shutdown")


def _end(group: Any, name: str, older: str) -> None:
    """Up to torch 2.6 only the backends of a group can do that."""
    if (end := getattr(group, name, None)) is not None:
        end()
        return
    for backend in _find_backends(group):
        found = getattr(backend, name, None) or getattr(backend, older, None)  # those of gloo have neither
        if found is not None:
            found()


def _find_backends(group: Any) -> list[Any]:
    """The backends of the group, each once."""
    return list({id(one): one for one in map(group._get_backend, group._device_types)}.values())


def drop_gloo(groups: list[Any]) -> None:
    """Drop these groups of gloo, which torch has forgotten, without the deadlock of `destroy_groups`."""
    backends = [_find_gloo(group) for group in groups]
    groups.clear()
    backends.clear()


def is_gloo(group: Any) -> bool:
    """Whether all collectives of this group are gloo's. Never raises."""
    with contextlib.suppress(Exception):
        return str(dist.get_backend(group)) == "gloo"
    return False


def can_reduce(group: Any, device: torch.device) -> bool:
    """Whether the group has a backend for tensors on this device; if torch does not tell, it has. Never raises."""
    with contextlib.suppress(Exception):
        parts = str(dist.get_backend_config(group)).split(",")  # such as "cpu:gloo,cuda:nccl"
        return any(part.partition(":")[0] == device.type or ":" not in part for part in parts)
    return True


def _find_gloo(group: Any) -> Any:
    """The group's backend for tensors in host memory; None if it has none or torch does not expose it."""
    if probe.find(_BACKEND) is None:
        return None
    with contextlib.suppress(Exception):
        return group._get_backend(torch.device("cpu"))
    return None


def find_store() -> Any:
    """The store of the default group; None if torch does not expose it."""
    look = probe.find(_STORE)
    return None if look is None else look()


def find_all_gather() -> Callable[..., Any]:
    """torch's all_gather of equal tensors into one: `f(output, input, group=None, async_op=False)`."""
    # all_gather_into_tensor is the name up to torch 2.12; newer versions deprecate it for all_gather_single.
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def find_reduce_scatter() -> Callable[..., Any]:
    """torch's reduction of one tensor into shards: `f(output, input)`."""
    return getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@contextlib.contextmanager
def replaced(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace these functions of `torch.distributed`, by name, within the block."""
    originals = {name: getattr(dist, name) for name in functions}
    for name, function in functions.items():
        setattr(dist, name, function)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


@contextlib.contextmanager
def creations_in(context: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Within the block, each group is created in such a context; where torch hides that, the whole block is in one."""
    make = probe.find(_MAKE)
    if make is None:
        with context():
            yield
        return

    def make_in_context(*args: Any, **options: Any) -> Any:
        with context():
            return make(*args, **options)

    module: Any = probe.find(_MAKE.rpartition(".")[0])
    name = _MAKE.rpartition(".")[2]
    setattr(module, name, make_in_context)
    try:
        yield
    finally:
        setattr(module, name, make)


def count_queued() -> int:
    """The collectives that this process has entered in groups whose collectives are none of gloo's. Never raises."""
    return count_by_kind()[1]


def count_collectives() -> int | None:
    """The collectives that this process has entered, in all groups; None where torch does not tell. Never raises."""
    return count_by_kind()[0]


def count_by_kind() -> tuple[int | None, int]:
    """The same, and those of them in groups whose collectives are none of gloo's."""
    if probe.find(_ENTERED) is None:
        return None, 0
    total, queued = None, 0
    for group in find_groups():
        with contextlib.suppress(Exception):  # some backends do not count; a group may be destroyed meanwhile
            entered = _count_entered(group)
            total = (total or 0) + entered
            queued += 0 if is_gloo(group) else entered
    return total, queued


def _count_entered(group: Any) -> int:
    """The collectives of the group's default backend; of all of its backends if none is. Raises what torch raises.

    torch gives a group that is made for `cpu:gloo` no default backend in a process that knows a plugin's. The import of
    FSDP2 or of torch.distributed.checkpoint registers one.
    """
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return sum(int(backend._get_sequence_number_for_group()) for backend in _find_backends(group))


def watch_use(note: Callable[[], None]) -> Callable[[], None]:
    """Call `note` before each collective and message in groups of several ranks, and before each group that is made,
    until what is returned is called. If it raises, nothing has been sent.
    """
    kept: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, is_of_several: Callable[[Any], bool]) -> None:
        if name not in vars(owner):
            return
        use = getattr(owner, name)

        @functools.wraps(use)
        def note_and_use(*given: Any, **more: Any) -> Any:
            if is_of_several(given[0]):
                note()
            return use(*given, **more)

        kept.append((owner, name, vars(owner)[name]))  # which binds its first argument, unlike what a class gives
        setattr(owner, name, note_and_use)

    for name in (*_COLLECTIVES, *_MESSAGES) if (kind := probe.find(_CLASS)) is not None else ():
        put(kind, name, lambda group: bool(group.size() > 1))
    if probe.find(_MAKE) is not None:
        module, _, name = _MAKE.rpartition(".")
        put(probe.find(module), name, lambda _: True)

    def stop() -> None:
        while kept:
            owner, name, use = kept.pop()
            setattr(owner, name, use)

    return stop


def watch_messages() -> None:
    """From now on, count what is sent from one rank to another, for `count_each`: gloo counts it as collectives."""
    kind = probe.find(_CLASS)
    if kind is None or getattr(kind.send, "is_counted", False):
        return
    for name in _MESSAGES:
        if (send := getattr(kind, name, None)) is not None:
            setattr(kind, name, counting(send))
    if (barrier := getattr(kind, "monitored_barrier", None)) is not None:
        kind.monitored_barrier = _leaving_out(barrier)


def _leaving_out(barrier: Callable[..., Any]) -> Callable[..., Any]:
    """The first rank exchanges messages with each of the others in there, and counts more of them than they do."""

    @functools.wraps(barrier)
    def leave_out(group: Any, *given: Any, **more: Any) -> Any:
        if not is_gloo(group) or probe.find(_ENTERED) is None:
            return barrier(group, *given, **more)
        before = _count_entered(group)
        try:
            return barrier(group, *given, **more)
        finally:
            _messages[str(group.group_name)] += _count_entered(group) - before

    return leave_out


def count_messages() -> int:
    """The messages from or to one other rank that this process has begun since `watch_messages`, on a device.

    Those of gloo are among the collectives that a group has entered, and who waits for a device does not wait for them.
    """
    return _begun


def counting(send: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a group, whose calls are counted."""

    @functools.wraps(send)
    def count(group: Any, *given: Any, **more: Any) -> Any:
        global _begun  # noqa: PLW0603 - torch's functions are those of the process
        if is_gloo(group):
            _messages[str(group.group_name)] += 1
        else:
            _begun += 1
        return send(group, *given, **more)

    count.is_counted = True  # type: ignore[attr-defined]
    return count


def count_each(groups: Iterable[Any]) -> dict[str, int]:
    """The collectives that this process has entered in each of these groups, by its name, which is the same on all of
    its members, since `watch_messages`. Without those where torch does not tell. Never raises.
    """
    found = {}
    for group in groups:
        with contextlib.suppress(Exception):
            name = str(group.group_name)
            found[name] = _count_entered(group) - _messages[name]
    return found


def find_last_collective() -> str:
    """Name, shapes and number of the last collective that was entered, from torch's flight recorder; "" without one."""
    record = probe.find(_RECORDER)
    if record is None:
        return ""
    try:
        entries = json.loads(record()).get("entries", [])
        return describe(entries[-1]) if entries else ""
    except Exception:  # the recorder's format is torch's own
        return ""


def describe(entry: Mapping[str, Any]) -> str:
    """One entry of the flight recorder in a line: `gloo:all_reduce of [4, 4] Float, number 17 of default_pg`."""
    sizes, kinds = entry.get("input_sizes") or [], entry.get("input_dtypes") or []
    tensors = [f"{size} {kind}" for size, kind in zip(sizes, [*kinds, *[""] * len(sizes)], strict=False)]
    shown = ", ".join(tensors[:4]) + (f" and {len(tensors) - 4} more" if len(tensors) > 4 else "")
    group = (entry.get("process_group") or ["", ""])[-1]
    number = entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id")
    name = str(entry.get("profiling_name", "a collective"))
    return name + (f" of {shown}" if shown else "") + f", number {number}" + (f" of {group}" if group else "")


PROBES = (
    Probe(
        "groups are named alike on ranks that failed to enter a world and on new ones",
        (_COUNT,),
        "each new world of a session makes and drops a group of one process first",
        lambda: probe.find(_COUNT) is not None,
    ),
    Probe(
        "a lost world's groups are aborted, those of meshes too",
        (_GROUPS,),
        "a collective of NCCL in a mesh waits for the timeout of its group after a loss",
        lambda: probe.find(_GROUPS) is not None,
    ),
    Probe(
        "nobody waits for the destruction of a lost world's communicators, and one that fails does no harm",
        (_NAMES,),
        "a session with NCCL waits until torch has destroyed them, and ends if that fails",
        lambda: isinstance(probe.find(_NAMES), dict),
    ),
    Probe(
        "connections that a script opens when a world begins outlive the world",
        (_MAKE,),
        "after a loss they end like those of the world",
        probe.has_all(_MAKE),
    ),
    Probe(
        "checked() compares calls through the store of the world",
        (_STORE,),
        "checked() makes a store of its own",
        probe.has_all(_STORE),
    ),
    Probe(
        "a world is left without a deadlock on torch 2.7 and older",
        (_BACKEND,),
        "a process can wait for ever when it destroys its groups right after a collective",
        probe.has_all(_BACKEND),
    ),
    Probe(
        "a hang is noticed in scripts that report no steps, and the rank that is behind is named",
        (_ENTERED,),
        "only scripts that call elasticjob.report are watched",
        probe.has_all(_ENTERED),
    ),
    Probe(
        "the diagnosis of a hang has the last collective of each rank with its shapes",
        (_RECORDER,),
        "it has the stacks only",
        probe.has_all(_RECORDER),
    ),
)
