"""Random losses in sessions on a device, by the tests' model of NCCL: every step must be that of an undisturbed run.

A story is made from a seed alone: a kind of script, the points at which ranks die, whether a rank joins, how soon and
in which order the others hear of a loss, and for the communicator of each rank what its end is like: whether its
watchdog notices first, whether the abort is slow, what it leaves in the buffers, whether the destroy raises or hangs.
"""

from __future__ import annotations

import math
import random
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chaos.trials import Report
from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

KINDS = (
    *("plain", "accumulate", "scaler", "two", "virtual", "groups", "hsdp", "copies", "gan", "closure", "stranger"),
    *("late", "trail", "comm hook"),
)
# How such scripts do it, see `device_program`; and whose steps they make, if others make the same.
WAYS = {
    "late": ("async", "functional", "stream", "graph"),
    "trail": ("buffers", "log"),  # a scheduler that follows a "rate" has one value less after a loss there
}
ALIKE = {"late": "two", "comm hook": "plain"}
LAST = 30  # steps; an epoch has 20


@dataclass(frozen=True)
class Story:
    kind: str
    size: int
    kills: tuple[str, ...]  # see `device_program`
    joins_after: int | None  # step
    tell_after: float
    tell_apart: float  # see `FakeAgent`
    how: str = ""

    @property
    def script(self) -> dict[str, str]:
        """The variables of its script."""
        return {"KIND": self.kind, "HOW": self.how, "WHERE": "step", "LAST": str(LAST)}


def plan(seed: int) -> Story:
    """Sharded models lose one rank, and have the shards of it elsewhere by then; others lose up to two. Pure."""
    chance = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    sharded = kind in ("hsdp", "copies")
    size = 4 if kind == "hsdp" else chance.randrange(2, 4) if not sharded else 3
    joins = None if sharded or chance.random() < 0.5 else chance.randrange(3, 8)
    joins = None if kind == "stranger" else joins  # a joiner does not get its state: the session says so
    kills, step = [], chance.choice((8, 12, 18, 19, 20))
    for number in range(1 if sharded or size == 2 else 2):
        generation = 1 + number + (joins is not None)
        points = ["forward", "backward", "applied"] + (["micro"] if kind == "accumulate" else [])
        points = ["forward", "halfway"] if kind == "gan" else points
        # What the script writes of a sharded step needs all ranks, and a closure is one point.
        points = ["forward"] if sharded or kind == "closure" else points
        point = "entering" if number == 0 and joins is not None and chance.random() < 0.6 else chance.choice(points)
        members = size - number + (joins is not None)
        at = chance.randrange(8) if point == "entering" else step
        kills.append(f"{at}:{chance.randrange(members)}:{generation}:{point}")
        step += chance.randrange(2, 6)
    after, apart = chance.choice((0.05, 0.2, 0.5)), chance.choice((0.0, 0.3, -0.3))
    return Story(kind, size, tuple(kills), joins, after, apart, chance.choice(WAYS.get(kind, ("",))))


def check(rows: Sequence[Mapping[str, Any]], right: Mapping[int, float], exactly: bool) -> list[str]:
    """The violations; empty if there are none. Pure."""
    wrong = []
    for row in rows:
        expected = right[row["step"]]
        if row["norm"] != (expected if exactly else pytest.approx(expected, rel=1e-7)):
            where = f"step {row['step']}, rank {row['rank']} of {row['size']} in generation {row['generation']}"
            wrong.append(f"{where}: {row['norm']!r}, and undisturbed {expected!r}")
    missing = sorted(right.keys() - {row["step"] for row in rows})
    return [*wrong, *([f"no rank wrote the steps {missing}"] if missing else [])]


class References:
    """The undisturbed norms, by kind of script."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[str, str], dict[int, float]] = {}

    def find(self, story: Story) -> dict[int, float]:
        kind = ALIKE.get(story.kind, story.kind)
        how = "" if kind != story.kind else story.how
        if (kind, how) not in self._known:
            folder, script = self._folder / f"reference-{kind}-{how}", story.script | {"KIND": kind, "HOW": how}
            with FakeAgent(PROGRAMS / "device_program.py", folder, **script, BACKEND="gloo") as agent:
                agent.start(2)
                agent.run()
            norms = {row["step"]: row["norm"] for row in agent.rows}
            assert all(map(math.isfinite, norms.values())), f"{kind} {how} diverges: nothing can be compared with it"
            self._known[kind, how] = norms
        return self._known[kind, how]


def run_trial(seed: int, folder: Path, references: References) -> list[str]:
    """The violations of one story."""
    story = plan(seed)
    variables = story.script | {"KILL": ",".join(story.kills), "FAKE_NCCL": f"draw={seed},ahead={seed % 2}"}
    agent = FakeAgent(PROGRAMS / "device_program.py", folder / f"device-{seed}", **variables, DEVICE="1")
    agent.tell_after, agent.tell_apart = story.tell_after, story.tell_apart
    try:
        with agent:
            agent.start(story.size)
            if story.joins_after is not None:
                first = story.joins_after
                agent.wait(lambda: any(row["step"] >= first for row in agent.rows), "steps of the first world")
                agent.join()
                agent.tell(announced=True)
            agent.run()
    except Exception:
        return [f"seed {seed}, {story}: {traceback.format_exc()}"]
    wrong = check(agent.rows, references.find(story), story.kind == "virtual")
    if set(agent.ended) - {0, -9}:
        wrong.append(f"the ranks ended with {agent.ended}")
    return [f"seed {seed}, {story}: {one}" for one in wrong[:5]]


def run(seed: int, histories: int, folder: Path) -> Report:
    """Stories of consecutive seeds; repeat a run with `--only devices --seed N`."""
    report, began, references = Report("devices", seed), time.monotonic(), References(folder)
    for number in range(seed, seed + histories):
        wrong = run_trial(number, folder, references)
        report.histories += 1
        report.faults += len(plan(number).kills)
        report.violations += wrong
        print(f"{'WRONG' if wrong else 'ok':5} {plan(number)}", flush=True)
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report
