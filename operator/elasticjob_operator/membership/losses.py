"""What a loss of pods costs a job whose model needs several ranks for each copy. Pure.

It says who trains on and who waits (`groups`), and from where the next world has the state: from the ranks that are
left, or else from copies, snapshots or files that are some steps older. The step that the loss broke is made again in
any case, and not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from elasticjob_operator.api import Cut
from elasticjob_operator.membership import groups

_COPYING = 2  # steps: a copy is begun after one, and known to be complete two steps later


class Source(StrEnum):
    """What the next world begins with, the cheapest first."""

    RANKS = "ranks"  # what the ranks that are left have
    COPIES = "copies"  # of shards, in the host memory of other pods: `copy_every`
    SNAPSHOTS = "snapshots"  # in the shared memory of pods: `memory_every`
    FILE = "file"
    NOTHING = "nothing"  # the script begins anew


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a script keeps of its state, and every how many steps; 0: it does not."""

    stays: bool = False  # its processes stay in memory while the world changes: a session
    copied: bool = True  # the dimension of the mesh without a size holds copies of the model, not shards of one
    copy_every: int = 0  # of a session
    memory_every: int = 0
    save_every: int = 0
    keepers: tuple[int, ...] = ()  # for each pod of the world, the one that has its copies and snapshots; or the next


@dataclass(frozen=True, slots=True)
class Loss:
    """What a loss costs. Groups are numbered as in the world that is lost."""

    members: tuple[str, ...]  # of the next world, by rank; nobody: it is formed when other pods have come
    waiting: tuple[str, ...]  # who is left, and has no place in it
    whole: tuple[int, ...]  # groups that lose no pod and no process
    mended: tuple[int, ...]  # groups that go on, with others in the places that have become free, or new processes
    given_up: tuple[int, ...]  # groups that do not go on: who is left of them waits, or takes a place in another one
    source: Source
    steps: int | None  # that are made again at most, if what is kept of a step is there one step later; None: all


def foresee(
    world: Sequence[str],
    lost: Collection[str],
    ready: Sequence[str] = (),
    *,
    cut: Cut | None = None,
    keeping: Keeping | None = None,
    emptied: Collection[str] = (),
) -> Loss:
    """What it costs if these pods of a world, whose pods are in the order of their ranks, are lost at once.

    `ready`: pods outside of the world that can join. `emptied`: pods that stay, and whose processes were lost.
    """
    cut, keeping = cut or Cut(), keeping or Keeping()
    left = [uid for uid in world if uid not in lost]
    size = min(len(left) + len(ready), len(world)) // cut.layout.step * cut.layout.step
    held = {uid: cut.find_parts(pod, len(world)) for pod, uid in enumerate(world) if uid not in emptied}
    parts = {uid: held.get(uid, frozenset()) for uid in left} if keeping.stays and keeping.copied else {}
    members = groups.choose(world, left, ready, size, cut.layout, parts=parts) if size else []
    source = _find_source(world, members or left, size or cut.layout.step, emptied, cut, keeping)
    old = groups.split(world, cut.layout) or [list(world)]
    going_on = set(_find_successors(old, groups.split(members, cut.layout) or [members]))
    whole = {at for at in going_on if not set(old[at]) & {*lost, *emptied}}
    return Loss(
        members=tuple(members),
        waiting=tuple(uid for uid in (*left, *ready) if uid not in members),
        whole=tuple(sorted(whole)),
        mended=tuple(sorted(going_on - whole)),
        given_up=tuple(at for at in range(len(old)) if at not in going_on),
        source=source,
        steps=_count_steps(source, keeping),
    )


def _find_successors(old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> Iterator[int]:
    """The groups of the old world that go on: for each new one that which most of its members come from, if any."""
    for group in new:
        common = [len(set(group) & set(other)) for other in old]
        if max(common):
            yield common.index(max(common))


def _find_source(
    world: Sequence[str], users: Sequence[str], size: int, emptied: Collection[str], cut: Cut, keeping: Keeping
) -> Source:
    """`users`: the pods whose memory the next world, of `size` pods, can use."""
    pods, at = range(len(world)), {uid: pod for pod, uid in enumerate(world)}
    keepers = keeping.keepers or tuple((pod + 1) % len(world) for pod in pods)
    if not keeping.copied:
        cut = Cut(1, len(world) * cut.nproc, cut.nproc)  # all ranks together have one model
    there = {at[uid] for uid in users if uid in at}
    alive = {at[uid] for uid in users if uid in at and uid not in emptied}
    copies, is_cut = len(world) * cut.nproc // cut.parts, cut.parts > 1

    def have(of_pods: Iterable[int]) -> bool:
        """Whether these pods of the old world have all of the model."""
        return len({part for pod in of_pods for part in cut.find_parts(pod, len(world))}) == cut.parts

    if keeping.stays and alive and (not is_cut or (copies > 1 and have(alive))):
        return Source.RANKS
    copied = have(pod for pod in pods if {pod, keepers[pod]} & alive)
    if keeping.stays and keeping.copy_every and copies == 1 and copied:
        return Source.COPIES
    if keeping.memory_every and there:
        is_there = all({pod, keepers[pod]} & there for pod in pods)
        if not is_cut or (size == len(world) and is_there):
            return Source.SNAPSHOTS
    return Source.FILE if keeping.save_every else Source.NOTHING


def _count_steps(source: Source, keeping: Keeping) -> int | None:
    return {
        Source.RANKS: 0,
        Source.COPIES: max(keeping.copy_every, _COPYING),
        Source.SNAPSHOTS: keeping.memory_every,
        Source.FILE: keeping.save_every,
        Source.NOTHING: None,
    }[source]
