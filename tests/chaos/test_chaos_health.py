"""What `make chaos CHAOS_ARGS="--only health"` injects."""

from __future__ import annotations

from functools import partial

import pytest

from chaos.health import Score, make_trials, suffer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]


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
