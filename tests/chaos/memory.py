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

from chaos import memory_network
from chaos.memory_judge import judge
from chaos.memory_pods import LAYOUTS, QUIET, Job
from chaos.trials import Report
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


def plan(seed: int, length: int) -> History:
    """A history of this many events. Pure."""
    chance = random.Random(seed)
    size = chance.randint(2, 4)
    kinds = chance.choices(KINDS, (4, 3, 5, 2, 2, 2, 2, 1, 2, 2, 2), k=length)
    events = tuple(Event(kind, (chance.random(), chance.random(), chance.random(), chance.random())) for kind in kinds)
    return History(size, chance.randint(1, min(2, size - 1)), LAYOUTS[seed % len(LAYOUTS)], events)


def act(job: Job, history: History, event: Event) -> None:
    """Carry out an event; afterwards there is a world of all pods again."""
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
    job = Job(folder, history.size, history.replicas, history.layout, random.Random(seed))
    try:
        job.enter()
        for event in history.events:
            done.append(str(event))
            act(job, history, event)
    except Exception:
        return job, done, [traceback.format_exc()]
    finally:
        job.close()
    return job, done, judge(job.saves, job.happened, history.replicas)


@contextlib.contextmanager
def shortened() -> Iterator[None]:
    """Connections of `memory_network`, and waiting times that are shorter than in a pod."""
    with contextlib.ExitStack() as patches:
        for module, name, value in (
            (transport, "connect", memory_network.connect),
            (directory, "QUIET", QUIET),
            (keeper, "_LOOK_SECONDS", 0.05),
            (keeper, "_REPORT_SECONDS", 0.2),
            (lead, "SPREAD_SECONDS", 1.0),
            (copying, "_FULL_SECONDS", 0.3),
            (entering, "_POLL", 0.01),
        ):
            patches.enter_context(mock.patch.object(module, name, value))
        yield


def run(seed: int, histories: int, length: int, folder: Path) -> Report:
    """Histories of consecutive seeds; repeat a run with `--only memory --seed N`."""
    report, began = Report("memory", seed), time.monotonic()
    with shortened(), ThreadPoolExecutor(LANES) as lanes:
        numbers = range(seed, seed + histories)
        found = lanes.map(lambda number: check(plan(number, length), number, folder / f"memory-{number}"), numbers)
        for number, (events, wrong) in zip(numbers, found, strict=True):
            report.histories += 1
            report.faults += events
            report.violations += wrong
            print(
                f"{'WRONG' if wrong else 'ok':5} seed {number}, {plan(number, length).layout}: {events} events",
                flush=True,
            )
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report
