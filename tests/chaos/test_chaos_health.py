"""A fault of a rank under the real operator, the short form; `make chaos CHAOS_ARGS="--only health"` has all kinds."""

from __future__ import annotations

from functools import partial

import pytest

from chaos.health import FAULTS, Score, flip, make_trials, suffer
from chaos.lab import Lane
from chaos.trials import Trial, run_trials

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(600)]


def test_a_flipped_bit_is_located_and_nobody_else_is_accused(lanes: list[Lane]) -> None:
    score = Score()
    trial = Trial("health", partial(suffer, seed=FAULTS.index(flip), length=1, score=score))
    report = run_trials("health", FAULTS.index(flip), lanes[:1], [trial], score.more)
    assert not report.violations, "\n\n".join(report.violations)
    assert report.more == {"located": 1.0, "kinds": {"flip": "1/1"}, "controls": 0, "falseAlarms": 0}


def test_the_trials_have_every_fault_and_controls() -> None:
    """300 faults are asked for, and 300 are made, in the same order for the same seed."""
    trials = make_trials(7, 300, Score())
    names = [trial.name for trial in trials]
    assert names == [trial.name for trial in make_trials(7, 300, Score())]
    tells = [trial.tell for trial in trials]
    lengths = [tell.keywords["length"] for tell in tells if isinstance(tell, partial) and tell.func is suffer]
    at_start = sum("network" in name or "disk" in name for name in names)
    assert sum(lengths) + at_start == 300 and at_start == 30
    assert sum("control" in name for name in names) == 15
