"""What is read from the steps of a job: tables, without a framework."""

from __future__ import annotations

import pytest

from frameworks.story import (
    Step,
    Told,
    count_repeated,
    find_lineage,
    find_losses,
    find_pauses,
    find_start_costs,
    find_uneven,
)


def step(number: int, generation: int = 1, rank: int = 0, samples: tuple[int, ...] = (), **more: float) -> Step:
    values = {"t": float(number), "world": 2, "loss": 1.0 / number, "epoch": 0, **more}
    return Step(rank=rank, generation=generation, step=number, samples=samples, **values)  # type: ignore[arg-type]


def test_the_pause_after_an_event_is_the_longest_time_without_a_step() -> None:
    steps = [step(n, t=t) for n, t in enumerate((1.0, 2.0, 2.5, 6.0, 6.5, 9.0), start=1)]
    told = Told([("start", 0.0), ("grow", 2.2), ("end", 7.0)], steps)
    assert find_pauses(told) == {"start": 1.0, "grow": 3.5}


def test_the_start_of_a_world_costs_what_its_slowest_rank_took_until_its_first_step() -> None:
    steps = [step(1, cpu=5.0), step(1, rank=1, cpu=6.0), step(2, cpu=7.0), step(2, 2, cpu=0.5), step(3, 2, cpu=0.6)]
    assert find_start_costs(steps) == {1: 6.0, 2: 0.5}


def test_a_step_that_is_made_again_counts_as_the_newest_generation_made_it() -> None:
    steps = [step(1), step(2), step(3, samples=(7,)), step(3, 2, samples=(8,)), step(4, 2)]
    assert [one.samples for one in find_lineage(steps)[3]] == [(8,)]
    assert count_repeated(steps) == 1


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param((0, 1), (2, 3), {}, id="each once"),
        pytest.param((0, 1), (1, 2), {0: (1, 1)}, id="one twice, and one never"),
        pytest.param((0, 1), (2,), {0: (1, 0)}, id="one never"),
    ],
)
def test_whole_epochs_are_looked_at(
    first: tuple[int, ...], second: tuple[int, ...], expected: dict[int, tuple[int, int]]
) -> None:
    steps = [step(1, samples=first), step(2, samples=second), step(3, epoch=1, samples=(0,))]
    assert find_uneven(steps, 4) == expected


def test_the_losses_of_the_first_and_the_last_steps() -> None:
    first, last = find_losses([step(n, loss=float(n)) for n in range(1, 31)])
    assert (first, last) == (5.5, 25.5)
