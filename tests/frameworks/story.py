"""One story for every training stack, and what its steps say afterwards. The judgements are pure."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticjob_devcluster import Cluster
from operator_fixture import Jobs, OperatorProcess, wait_for

PATIENCE = 240.0


@dataclass(frozen=True)
class Step:
    """One line of `programs/record.py`."""

    t: float
    rank: int
    world: int
    generation: int
    step: int
    loss: float
    epoch: int
    samples: tuple[int, ...] = ()
    cpu: float = 0.0  # processor time of the process so far, in seconds


@dataclass
class Told:
    """What was done to a job and when (seconds since the epoch), in order."""

    events: list[tuple[str, float]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def read_steps(out: Path) -> list[Step]:
    """The whole lines of every process, by time."""
    lines = [text for file in sorted(out.glob("*.jsonl")) for text in file.read_text().split("\n")[:-1]]
    found = [Step(**{**(raw := json.loads(text)), "samples": tuple(raw["samples"])}) for text in lines]
    return sorted(found, key=lambda one: one.t)


def await_step(out: Path, after: float, world: int) -> float:
    """When a world of this size first made a step after this moment."""

    def look() -> float | None:
        times = [one.t for one in read_steps(out) if one.world == world and one.t > after]
        return times[2 * world] if len(times) > 2 * world else None

    return wait_for(look, f"steps in a world of {world}", timeout=PATIENCE)


def tell(
    jobs: Jobs,
    cluster: Cluster,
    operator: OperatorProcess,
    name: str,
    spec: dict[str, Any],
    out: Path,
    sizes: Sequence[int] = (2, 3, 2),
    killed: Sequence[int] = (0,),
    settled: int = 25,
) -> Told:
    """Start at the first size, go to the second, lose the pod of each of these ranks in turn, go to the third, restart
    the operator, go to the other sizes, and let the job end.
    """
    told = Told()
    first, second, third, *others = sizes

    def note(event: str) -> float:
        told.events.append((event, time.time()))
        return told.events[-1][1]

    def change(before: int, after: int) -> None:
        since = note(f"{before} to {after}")
        jobs.scale(name, after)
        await_step(out, since, after)
        settle(out, settled)

    def lose(rank: int) -> None:
        status = jobs.await_world(name, second)
        since, generation = note(f"rank {rank} killed"), status["rendezvous"]["generation"]
        cluster.kill_pod(jobs.namespace, status["rendezvous"]["members"][rank]["pod"], signal.SIGKILL)
        wait_for(lambda: any(s.t > since and s.generation > generation for s in read_steps(out)),
                 "a step after the loss", PATIENCE)  # fmt: skip
        jobs.await_world(name, second, above=generation, timeout=PATIENCE)
        await_step(out, since, second)
        settle(out, settled)

    jobs.create(name, spec)
    await_step(out, note("start"), first)
    settle(out, settled)
    change(first, second)
    for rank in killed:
        lose(rank)
    change(second, third)
    note("operator restarted")
    operator.kill()
    operator.start()
    settle(out, settled)
    for before, after in itertools.pairwise((third, *others)):
        change(before, after)
    note("end")
    (out / "finish").touch()
    jobs.await_condition(name, "Complete", timeout=PATIENCE)
    told.steps = read_steps(out)
    return told


def settle(out: Path, steps: int) -> None:
    """Let the job make a few steps more, so that a checkpoint is there and the standby is quiet."""
    last = max(one.step for one in read_steps(out)[-3:])
    since = time.time()
    wait_for(lambda: any(s.t > since and s.step >= last + steps for s in read_steps(out)), "further steps", PATIENCE)


def find_pauses(told: Told) -> dict[str, float]:
    """The longest time in which no rank made a step after each event, in seconds. A start is counted from the event."""
    pauses: dict[str, float] = {}
    ends = [at for _, at in told.events[1:]]
    for (event, at), until in zip(told.events, ends, strict=False):
        times = [one.t for one in told.steps if at <= one.t <= until]
        before = [one.t for one in told.steps if one.t < at]
        marks = [before[-1] if before else at, *times]
        pauses[event] = max((b - a for a, b in itertools.pairwise(marks)), default=0.0)
    return pauses


def find_start_costs(steps: Iterable[Step]) -> dict[int, float]:
    """By generation: the most processor time (s) that a rank took until its first step. Load hardly changes it."""
    first: dict[tuple[int, int], Step] = {}
    for one in steps:
        first.setdefault((one.generation, one.rank), one)
    costs: dict[int, float] = {}
    for (generation, _), one in sorted(first.items()):
        costs[generation] = max(one.cpu, costs.get(generation, 0.0))
    return costs


def find_lineage(steps: Iterable[Step]) -> dict[int, list[Step]]:
    """What the final model was made of: of every step the ranks of the newest generation that made it."""
    newest: dict[int, int] = {}
    steps = list(steps)
    for one in steps:
        newest[one.step] = max(one.generation, newest.get(one.step, 0))
    found: dict[int, list[Step]] = {}
    for one in steps:
        if one.generation == newest[one.step]:
            found.setdefault(one.step, []).append(one)
    return found


def count_repeated(steps: Sequence[Step]) -> int:
    """How many steps were made more than once because the world before had not saved them."""
    made = Counter(step for step, _ in {(one.step, one.generation) for one in steps})
    return sum(count - 1 for count in made.values())


def find_uneven(steps: Sequence[Step], samples: int) -> dict[int, tuple[int, int]]:
    """By whole epoch that is not even: how many samples were left out, and how many were used more than once."""
    lineage = find_lineage(steps)
    last = max(one.epoch for one in steps)
    used: dict[int, Counter[int]] = {}
    for ranks in lineage.values():
        for one in ranks:
            used.setdefault(one.epoch, Counter()).update(one.samples)
    uneven = {}
    for epoch, counts in sorted(used.items()):
        left_out, repeated = samples - len(counts), sum(count - 1 for count in counts.values())
        if epoch < last and (left_out or repeated):
            uneven[epoch] = (left_out, repeated)
    return uneven


def find_losses(steps: Sequence[Step]) -> tuple[float, float]:
    """The mean loss of the first and of the last ten steps of the lineage."""
    lineage = find_lineage(steps)
    means = [sum(one.loss for one in lineage[step]) / len(lineage[step]) for step in sorted(lineage)]
    return sum(means[:10]) / len(means[:10]), sum(means[-10:]) / len(means[-10:])
