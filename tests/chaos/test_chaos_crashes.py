"""Scenarios under faults between operator and API server: a short, fixed selection. `make chaos` runs all."""

from __future__ import annotations

import pytest

from chaos import apifaults
from chaos.crashes import MODES, crash_trial, find_endings
from chaos.lab import Lane
from chaos.stories import STORIES, Ending
from chaos.trials import run_trials

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def endings(lanes: list[Lane]) -> dict[str, Ending]:
    found, report = find_endings(lanes, [name for name in STORIES if name != "again"])
    assert not report.violations, "\n\n".join(report.violations)
    return found


def test_crash_at_some_steps_of_every_story(lanes: list[Lane], endings: dict[str, Ending]) -> None:
    trials = []
    for i, (name, ending) in enumerate(endings.items()):
        # Over the stories the modes and the steps go round; late steps are those that are special to a story.
        for k in range(2):
            write = max(1, ending.writes - (i + 3 * k) % max(1, ending.writes))
            trials.append(crash_trial(name, ending, MODES[(i + k) % 3], write))
    report = run_trials("crash-short", 0, lanes, trials)
    assert not report.violations, "\n\n".join(report.violations)
    assert report.faults >= len(trials) // 2, "most faults were made"


def test_faults_of_the_api_server(lanes: list[Lane], endings: dict[str, Ending]) -> None:
    trials = apifaults.short_trials(endings)
    report = run_trials("api-short", 0, lanes, trials)
    assert not report.violations, "\n\n".join(report.violations)
    assert report.faults >= len(trials)
