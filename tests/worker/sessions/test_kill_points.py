"""Each point of a step at which a member dies, with each one who notices first, and with a fast and a slow abort.

A run has several losses, one in each world: the table would take minutes with one run for each of its rows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from side_by_side import together
from worker.fake_agent import FakeAgent
from worker.sessions.test_device import PROGRAM, TORCHRUN, check, collect_norms, undisturbed

__all__ = ["undisturbed"]  # a fixture

pytestmark = pytest.mark.timeout(600)

AT_ONCE = 3  # see `side_by_side`
POINTS = {"plain": ("forward", "backward", "applied"), "virtual": ("forward", "backward", "applied")}
# Seconds from one rank to the next in which the agent tells of a loss, see `FakeAgent`; or the watchdog has seen it.
FIRST = {"the lowest rank": 0.3, "the highest rank": -0.3, "the watchdog": 0.0}
ABORTS = {"fast": "0", "slow": "300"}
AT_A_TIME = 4  # losses of one run


@dataclass(frozen=True)
class Row:
    point: str
    first: str
    abort: str

    def describe(self, generation: int) -> list[str]:
        """What the backend does in the world of this generation."""
        wants = [f"{generation}:leaves=garbage", f"{generation}:abort={ABORTS[self.abort]}"]
        return [*wants, f"{generation}:notices=0.02"] if self.first == "the watchdog" else wants


def make_table(kind: str) -> list[tuple[Row, ...]]:
    """Its rows, by runs."""
    rows = [Row(*one) for one in itertools.product(POINTS[kind], FIRST, ABORTS)]
    return [tuple(rows[at : at + AT_A_TIME]) for at in range(0, len(rows), AT_A_TIME)]


class Agent(FakeAgent):
    """Tells of the loss in each world in an order of its own."""

    rows_of_table: tuple[Row, ...] = ()

    def tell(self, announced: bool) -> None:
        self.tell_apart = FIRST[self.rows_of_table[self.generation - 1].first]
        super().tell(announced)


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, number) for kind in POINTS for number in range(len(make_table(kind)))]
)
@together
def test_whoever_notices_a_loss_first_and_wherever_it_is(
    tmp_path: Path, undisturbed: Any, kind: str, number: int
) -> None:
    rows = make_table(kind)[number]
    size = len(rows) + 1
    kills, wants = [], []
    for at, row in enumerate(rows):
        step, rank, generation = 4 + 5 * at, (number + at) % (size - at), at + 1
        kills.append(f"{step}:{rank}:{generation}:{row.point}")
        wants += row.describe(generation)
    wants.append(f"ahead={number % 2}")
    variables = {"KIND": kind, "KILL": ",".join(kills), "FAKE_NCCL": ",".join(wants), **TORCHRUN}
    with Agent(PROGRAM, tmp_path, LAST="24", **variables) as agent:
        agent.rows_of_table = rows
        agent.start(size)
        agent.run()
    assert sorted(agent.ended) == [-9] * len(rows) + [0], "the survivors keep their processes"
    check(collect_norms(agent), undisturbed(kind), exactly=kind == "virtual")


def test_the_table_is_whole() -> None:
    for kind, points in POINTS.items():
        rows = [row for run in make_table(kind) for row in run]
        assert len(set(rows)) == len(rows) == len(points) * len(FIRST) * len(ABORTS)
