"""Random faults against checkpoints that peers hold (`spec.checkpoints`): nothing torn, mixed or held is lost.

A history is a schedule of saves, losses and faults for one job. The agents' keepers, their connections and all files
are real, in one process; the script's writes, kills and the network between two pods are played. Waiting times are
shortened, so a history takes seconds. `memory_judge` has the criteria.
"""

from __future__ import annotations

import contextlib
import random
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from chaos import memory_network, memory_store
from chaos.memory_judge import judge
from chaos.memory_pods import LAYOUTS, QUIET, Job
from chaos.memory_store import FAULTS, Store
from chaos.trials import Report
from elasticjob.archive import archive
from elasticjob.archive.storage import Storage
from elasticjob.peers import copying, directory, entering, keeper, lead, transport

LANES = 4  # histories at a time: most of their time, they wait
KINDS = (
    "save",
    "lose",
    "lose-in-copy",
    "lose-twice",
    "lose-in-entry",
    "tear",
    "cut",
    "slow",
    "noise",
    "damage",
    "leave",
)
ARCHIVE_KINDS = (
    "archive",
    "lose-all",
    "lose-all-in-save",
    "evict-all",
    "evict-in-turn",
    "ghosts",
    "store-fault",
    "store-loses",
)
_ATTEMPTS = 5
_SMALL = 40_000  # bytes: a pod that has no room for most copies


@dataclass(frozen=True)
class Event:
    """What happens next. `chances` (0..1) choose pods and moments."""

    kind: str
    chances: tuple[float, float, float, float]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{one:.2f}' for one in self.chances)})"


@dataclass(frozen=True)
class History:
    """A job and what happens to it."""

    size: int
    replicas: int
    layout: str
    events: tuple[Event, ...]
    has_archive: bool = False


def plan(seed: int, length: int, *, has_archive: bool = False) -> History:
    """A history of this many events. Pure."""
    chance = random.Random(seed)
    size = chance.randint(2, 4)
    kinds = chance.choices(KINDS, (4, 3, 5, 2, 2, 2, 2, 1, 2, 2, 2), k=length)
    if has_archive:  # most of them
        kinds = [chance.choice(ARCHIVE_KINDS) if chance.random() < 0.7 else kind for kind in kinds]
    events = tuple(Event(kind, (chance.random(), chance.random(), chance.random(), chance.random())) for kind in kinds)
    return History(size, chance.randint(1, min(2, size - 1)), LAYOUTS[seed % len(LAYOUTS)], events, has_archive)


def act(job: Job, history: History, event: Event) -> None:
    """Carry out an event; afterwards there is a world of all pods again."""
    if event.kind in ARCHIVE_KINDS:
        _act_on_archive(job, history, event)
        return
    size, (a, b, c, d) = history.size, event.chances
    rank, other = int(a * size), (int(a * size) + 1 + int(b * (size - 1))) % size
    pair = frozenset((job.pods[rank].number, job.pods[other].number))
    few = [rank, other][: 1 + int(d * history.replicas)]  # as many as may be lost at once

    def begin() -> None:
        job.fill(size, c, _SMALL if d < 0.15 else None)
        assert job.enter(), "nothing disturbs this entry"

    match event.kind:
        case "save":
            job.save()
            job.await_told()
            return
        case "lose":
            job.lose(*few)
        case "lose-in-copy":
            job.save()
            time.sleep(b)
            job.lose(*few)
        case "lose-twice":
            job.lose(rank)
            begin()
            job.lose(other)
        case "lose-in-entry":
            job.lose(rank)
            job.fill(size, c)

            def lose_another() -> None:
                time.sleep(b * 0.1)
                job.lose(other)

            while not job.enter(lose_another):
                job.fill(size, c)
                lose_another = lambda: None  # noqa: E731
            return
        case "tear":
            job.save(tear=True)
            if d < 0.5:
                job.lose(*few)
        case "cut" | "slow":
            {"cut": job.network.cut, "slow": job.network.slow}[event.kind][pair] = time.monotonic() + 0.2 + c
            job.save()
            time.sleep(b)
            job.lose(*few)
        case "noise":
            job.network.damaged.add(pair)
            job.save()
            job.await_told()
            job.network.damaged.add(pair)
            job.lose(*few)
        case "damage":
            job.damage(rank)
            job.lose(other)
        case "leave":
            job.save()
            job.leave(rank)
        case other_kind:
            raise ValueError(f"no such event: {other_kind}")
    begin()


def _act_on_archive(job: Job, history: History, event: Event) -> None:
    """All pods go, or the store has a fault: alone, or while all pods go and new ones come at another size."""
    a, b, c, d = event.chances
    size, store = history.replicas + 1 + int(a * 3), job.store
    assert store is not None
    match event.kind:
        case "archive":
            job.save()
            job.await_archived()
            return
        case "lose-all":
            job.lose_all()
        case "lose-all-in-save":
            job.save()
            time.sleep(b)
            job.lose_all(requests=int(c * 8))
        case "evict-all":
            store.heal()
            job.network.heal()
            job.save()
            time.sleep(b)
            job.evict_all()
        case "evict-in-turn":
            store.heal()
            job.network.heal()
            job.make_room()
            job.save()
            job.await_told()
            job.save()
            time.sleep(b)
            job.evict_in_turn()
        case "ghosts":
            job.save()
            time.sleep(b * 0.5)
            job.lose_all(are_ghosts=True)
        case "store-fault":
            store.until[FAULTS[int(c * len(FAULTS))]] = time.monotonic() + 0.3 + b
            job.save()
            time.sleep(d)
            if d < 0.3:
                job.await_archived()
                return
            job.lose_all(requests=int(a * 8))
        case "store-loses":
            store.lose_newest()
            if d < 0.5:
                job.save()
                job.await_archived()
                return
            job.lose_all()
        case kind:
            raise ValueError(f"no such event: {kind}")
    job.fill(size, c)
    assert job.enter(), "nothing disturbs this entry"
    if event.kind == "ghosts":
        job.save()
        job.await_archived()
        job.end_ghosts()
    while len(job.pods) != history.size:  # the other events choose ranks of this size
        job.lose_all()
        job.fill(history.size, c)
        assert job.enter(), "nothing disturbs this entry"


def check(history: History, seed: int, folder: Path) -> tuple[int, list[str]]:
    """The number of events, and the violations. `seed` chooses contents, and moments within an event.

    If the machine stood still during a save, that is not one save as documented: then a history that went wrong is
    played again.
    """
    for attempt in range(_ATTEMPTS):
        job, done, wrong = _play(history, seed, folder / f"attempt-{attempt}")
        if not wrong or not job.is_stalled:
            break
    where = f"seed {seed}, {history.layout}, {history.size} pods, {history.replicas} replicas"
    return len(done), [f"{where}, {done}: {one}" for one in wrong[:5]]


def _play(history: History, seed: int, folder: Path) -> tuple[Job, list[str], list[str]]:
    """The job, the events that have happened, and the violations."""
    done: list[str] = []
    job = Job(folder, history.size, history.replicas, history.layout, random.Random(seed),
              Store(random.Random(seed)) if history.has_archive else None)  # fmt: skip
    try:
        job.enter()
        for event in history.events:
            done.append(str(event))
            act(job, history, event)
    except Exception:
        return job, done, [traceback.format_exc()]
    finally:
        job.close()
    return job, done, judge(job.saves, job.happened, history.replicas) + (job.store.wrong if job.store else [])


@contextlib.contextmanager
def shortened() -> Iterator[None]:
    """Connections of `memory_network`, and waiting times that are shorter than in a pod."""
    with contextlib.ExitStack() as patches:
        for module, name, value in (
            (transport, "connect", memory_network.connect),
            (directory, "QUIET", QUIET),
            (keeper, "_LOOK_SECONDS", 0.05),
            (keeper, "_REPORT_SECONDS", 0.2),
            (keeper, "_GONE_SECONDS", 1.0),
            (lead, "SPREAD_SECONDS", 1.0),
            (copying, "_FULL_SECONDS", 0.3),
            (entering, "_POLL", 0.01),
            (Storage, "open", memory_store.connect),
            (archive, "_POLL_SECONDS", 0.05),
            (archive, "_LONGEST", 2.0),
            (archive, "_now", lambda: f"{random.randint(1970, 2999)}-01-01T00:00:00Z"),
        ):
            patches.enter_context(mock.patch.object(module, name, value))
        yield


def run(seed: int, histories: int, length: int, folder: Path, *, has_archive: bool = False) -> Report:
    """Histories of consecutive seeds; repeat a run with `--only memory --seed N`, and `--archive` if it had one."""
    report, began = Report("memory with an archive" if has_archive else "memory", seed), time.monotonic()
    with shortened(), ThreadPoolExecutor(LANES) as lanes:
        numbers = range(seed, seed + histories)
        plans = {number: plan(number, length, has_archive=has_archive) for number in numbers}
        found = lanes.map(lambda number: check(plans[number], number, folder / f"memory-{number}"), numbers)
        for number, (events, wrong) in zip(numbers, found, strict=True):
            report.histories += 1
            report.faults += events
            report.violations += wrong
            print(
                f"{'WRONG' if wrong else 'ok':5} seed {number}, {plans[number].layout}: {events} events",
                flush=True,
            )
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report
