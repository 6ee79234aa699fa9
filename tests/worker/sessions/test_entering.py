"""A member that dies or falls silent while a world is entered: the others are free as soon as they hear of it."""

from __future__ import annotations

import json

import pytest

from worker.gang_helper import PROGRAMS, run_alone

PROGRAM = PROGRAMS / "entering_program.py"
MOST_SECONDS = 3.0  # after 3.3 s an agent takes a worker for blocked, and ends it with its memory


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "kind",
    [
        "silent store",
        pytest.param("dead store", marks=pytest.mark.long),
        pytest.param("paused peer", marks=pytest.mark.long),
        "killed peer",
    ],
)
def test_a_rank_is_freed_wherever_it_waits(kind: str) -> None:
    """A case for each message that a rank exchanges with the store until it is in the world."""
    done = run_alone(PROGRAM, kind, timeout=180, GLOO_SOCKET_IFNAME="lo")
    cases = json.loads(done.stdout.splitlines()[-1])["result"]
    assert len(cases) > 8, "two groups are made, and a store is connected"
    assert cases[-1][0] == "entered", "nothing had stopped it"
    assert [case for case in cases[:-1] if case[1] > MOST_SECONDS] == [], cases
