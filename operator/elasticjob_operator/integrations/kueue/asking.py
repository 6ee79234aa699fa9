"""What to ask Kueue for, and what to give back: a job, its Workloads and its pods → what to write. Pure.

Growth is asked for in increments, each a Workload of its own that goes from one legal size to the next: Kueue admits
and takes back whole Workloads, so a job of one Workload could only be preempted whole. Quota is given back when the
pods that used it are gone, and not before: others may use it at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from elasticjob_operator import api
from elasticjob_operator.integrations.kueue.quota import find_base
from elasticjob_operator.integrations.kueue.values import Workload
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.sizing import legal

_NOT_STARTED = "Not all pods have started"
MOST_INCREMENTS = 32  # that a job can grow by from minReplicas to maxReplicas: each is an object in etcd


@dataclass(frozen=True, slots=True)
class Wish:
    """What is known of the job that matters here."""

    spec: api.Spec | None
    queue: str
    asks: int | None = None  # pods that it wants now; 0 where it is suspended, None where it is left alone
    ended: tuple[bool, str] | None = None  # (whether it has succeeded, the message) of a job that has finished
    classes: tuple[str, str] = ("", "")  # names of the priority classes of its base and of its increments
    prebuilt: str = ""  # the name of its base, where MultiKueue has made that


@dataclass(frozen=True, slots=True)
class Create:
    """Ask for the quota of the pods with the indices from `first` on."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Become the owner of the Workload of this name, which MultiKueue has made for the job."""

    name: str


@dataclass(frozen=True, slots=True)
class Delete:
    workload: Workload


@dataclass(frozen=True, slots=True)
class LetGo:
    """Take the finalizer off: nothing of the job uses this quota any more."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class Set:
    """Conditions to write, and what else changes in the status: an absent value is a removal."""

    workload: Workload
    conditions: tuple[tuple[str, bool, str, str], ...] = ()  # type, truth, reason, message
    reclaimed: int | None = None
    is_released: bool = False  # the reservation is given up


Ask = Create | Adopt
Write = Ask | Delete | LetGo | Set


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What the status of a job says that MultiKueue has sent to another cluster."""

    has_pods: bool = False  # it may have some there, as far as that can be known
    ready: int = 0


@dataclass(frozen=True, slots=True)
class _Scene:
    wish: Wish
    workloads: Sequence[Workload]
    used: Sequence[int] = ()  # indices of pods that may use resources, in order
    started: Sequence[int] = ()  # of those, or of ended ones, that have begun to train, in order

    def uses(self, workload: Workload) -> int:
        """How many pods of it, from its first on, are needed to cover those that exist."""
        at = bisect.bisect_left(self.used, workload.covered.stop)
        return max(0, self.used[at - 1] - workload.first + 1) if at else 0

    def has_started(self, workload: Workload) -> bool:
        """Whether all pods that it covers have. A job that trains without a pod of its base has others for it."""
        if workload.first == 0:
            return len(self.started) >= len(workload.covered)
        first, end = (bisect.bisect_left(self.started, i) for i in (workload.covered.start, workload.covered.stop))
        return end - first == len(workload.covered)


def decide(wish: Wish, workloads: Sequence[Workload], pods: Sequence[Pod]) -> tuple[Write, ...]:
    """Everything to write now; carried out, the next answer is empty until something changes."""
    used = _order(p.index for p in pods if p.holds_resources)
    started = _order(p.index for p in pods if p.started or p.terminal)
    scene = _Scene(wish, sorted(workloads, key=lambda w: (w.first, w.name)), used, started)
    if wish.ended is not None:
        return tuple(_end(scene, *wish.ended))
    if wish.asks is None:
        return (*_let_go(scene), *_keep_what_is_used(scene))
    return _decide(scene)


def _order(indices: Iterable[int]) -> list[int]:
    return sorted(set(indices))


def _decide(scene: _Scene) -> tuple[Write, ...]:
    base = find_base(scene.workloads)
    may_run = base is not None and base.may_run
    return (*_let_go(scene), *_give_back(scene, base, may_run=may_run), *_ask(scene, may_run=may_run))


def decide_sent_on(
    wish: Wish, workloads: Sequence[Workload], pods: Sequence[Pod], elsewhere: Elsewhere
) -> tuple[Write, ...]:
    """The same for a job that MultiKueue sends to another cluster, where it asks for its growth.

    Here it has one Workload, for minReplicas. MultiKueue deletes the job in the other cluster when that Workload gives
    its quota back, so an evicted one waits until the job has saved and its pods are gone. Finished is Kueue's to write.
    """
    if wish.ended is not None:
        return tuple(LetGo(w) for w in workloads if w.is_held and (w.is_finished or w.is_deleting))
    here = _order(p.index for p in pods if p.holds_resources)
    base = find_base(workloads)
    asks = wish.asks
    if asks and base is not None and base.reserves:
        asks = base.count  # what it was sent with
    is_ending = base is not None and base.evicted and asks and elsewhere.has_pods
    used = _order([*here, *base.covered]) if base is not None and is_ending else here
    scene = _Scene(replace(wish, asks=asks), workloads, used, range(elsewhere.ready))
    return _decide(scene)


def drop(workloads: Sequence[Workload]) -> Iterator[Write]:
    """Workloads that stand for nothing: they go, whatever runs."""
    for workload in workloads:
        if not workload.is_deleting:
            yield Delete(workload)
        elif workload.is_held:
            yield LetGo(workload)


def _end(scene: _Scene, has_succeeded: bool, message: str) -> Iterator[Write]:
    """A job that has finished: its Workloads have too, when its last pod is gone."""
    for workload in scene.workloads:
        if scene.uses(workload):
            continue
        if workload.is_finished or workload.is_deleting:
            if workload.is_held:
                yield LetGo(workload)
        else:
            yield Set(workload, (("Finished", True, "Succeeded" if has_succeeded else "Failed", message),))


def _let_go(scene: _Scene) -> Iterator[Write]:
    for workload in scene.workloads:
        if workload.is_deleting and workload.is_held and not scene.uses(workload):
            yield LetGo(workload)


def _keep_what_is_used(scene: _Scene) -> Iterator[Write]:
    """A job that is left alone makes no pods: what none of them uses is for others."""
    for workload in scene.workloads:
        if not workload.is_deleting and not scene.uses(workload):
            yield Delete(workload)


def _give_back(scene: _Scene, base: Workload | None, *, may_run: bool) -> Iterator[Write]:
    wish = scene.wish
    for workload in scene.workloads:
        if workload.is_deleting:
            continue
        uses = scene.uses(workload)
        is_base = workload is base
        wanted = wish.asks or 0
        if not is_base and not may_run:
            wanted = 0
        keep = max(uses, min(wanted - workload.first, len(workload.covered)))
        is_stale = not workload.reserves and _is_stale(wish, workload, is_base=is_base)
        is_useless = workload.reserves and not is_base and _is_stale(wish, workload, is_base=False)
        if not uses and (keep <= 0 or is_stale or is_useless or workload.is_finished):
            yield Delete(workload)
        elif workload.evicted and workload.reserves:
            if not uses:  # what was given back of it has been asked for anew
                yield Delete(workload) if workload.reclaimed else _release(workload)
        elif keep < len(workload.covered) and (wish.asks or not is_base):
            yield Set(workload, reclaimed=workload.count - keep) if workload.reserves else Delete(workload)
        elif workload.may_run and wish.asks:
            yield from _tell_ready(scene, workload)


def _is_stale(wish: Wish, workload: Workload, *, is_base: bool) -> bool:
    """Whether it asks for something else than a new one would."""
    spec = wish.spec
    if spec is None:
        return False
    if is_base and workload.count != spec.min_replicas:
        return True
    priority = wish.classes[0 if is_base else 1]
    new = (spec.template_hash, wish.queue, priority)
    return (workload.template_hash, workload.queue, workload.priority_class) != new


def _release(workload: Workload) -> Write:
    reason = workload.evicted
    again = reason in ("Preempted", "NodeFailures")
    message = str(workload.condition("Evicted").get("message", ""))
    return Set(
        workload,
        (
            ("QuotaReserved", False, "Pending", message),
            ("Admitted", False, "NoReservation", "The workload has no reservation"),
            ("Requeued", again, reason, message),
            ("PodsReady", False, "WaitForStart", _NOT_STARTED),  # it has the whole time again when it is admitted again
        ),
        is_released=True,
    )


def _tell_ready(scene: _Scene, workload: Workload) -> Iterator[Write]:
    """PodsReady, written only where it changes."""
    is_ready = scene.has_started(workload)
    before = workload.condition("PodsReady")
    if before and (before.get("status") == "True") == is_ready:
        return
    again = str(before.get("reason", "")) in ("Started", "WaitForRecovery", "Recovered")
    if is_ready:
        reason, message = ("Recovered" if again else "Started"), "All pods have started"
    else:
        reason, message = ("WaitForRecovery" if again else "WaitForStart"), _NOT_STARTED
    yield Set(workload, (("PodsReady", is_ready, reason, message),))


def _ask(scene: _Scene, *, may_run: bool) -> Iterator[Write]:
    """Workloads for what no other one covers; only the base until that is admitted."""
    spec, asks = scene.wish.spec, scene.wish.asks
    if spec is None or not asks:
        return
    if not any(w.first == 0 for w in scene.workloads):
        yield Adopt(scene.wish.prebuilt) if scene.wish.prebuilt else Create(0, spec.min_replicas)
    if not may_run:
        return
    taken = [range(w.first, w.first + w.count) if w.is_deleting else w.covered for w in scene.workloads]
    at = 0
    for start, stop in sorted((*((indices.start, indices.stop) for indices in taken if indices), (asks, asks))):
        while at < min(start, asks):
            last = min(find_next_size(spec, at), start, asks)
            yield Create(at, last - at)
            at = last
        at = max(at, stop)


def find_next_size(spec: api.Spec, size: int) -> int:
    """The legal size that an increment from this one leads to; sizes of spares are all legal."""
    least = size + max(1, -(-(spec.max_replicas - spec.min_replicas) // MOST_INCREMENTS))
    return legal.sizes_of(spec, spec.max_replicas).at_least(least)
