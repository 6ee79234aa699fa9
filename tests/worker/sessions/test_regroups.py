"""What many changes of a session's world leave behind in its process: nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worker.gang_helper import PROGRAMS, run_alone, run_gang

LONG = pytest.mark.long
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "scripts" / "session_cost.py"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("ddp", ("--lost-every=3",)),
        ("ddp", ("--lost-every=3", "--nccl")),
        pytest.param("ddp", ("--lost-every=0", "--nccl"), marks=LONG),
        pytest.param("hsdp", ("--lost-every=3",), marks=LONG),
        pytest.param("hsdp", ("--lost-every=0", "--nccl"), marks=LONG),
    ],
)
def test_changes_of_the_world_leave_no_threads_and_no_files_behind(kind: str, more: tuple[str, ...]) -> None:
    """Of the changes all are announced, or two in three, and the others are losses: two of each six."""
    arguments = ("regroups", f"--kind={kind}", "--regroups=12", "--look-every=6", *more)
    done = run_alone(SCRIPT, *arguments, timeout=280)
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [look["regroups"] for look in looks] == [0, 6, 12]
    _, second, last = looks
    assert {name: last[name] - second[name] for name in ("threads", "files", "sockets")} == {
        "threads": 0,
        "files": 0,
        "sockets": 0,
    }, looks


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("worlds", [3, pytest.param(12, marks=pytest.mark.long)])
def test_groups_that_are_stuck_in_a_message_go_when_gloo_gives_it_up(kind: str, worlds: int) -> None:
    """Each such world is three threads and five files."""
    (member,) = run_gang(PROGRAMS / "stuck_worlds_program.py", 1, kind, str(worlds), timeout=180)
    assert member.exit_code == 0, member.stderr[-3000:]
    assert member.results["stuck"] > worlds / 2, "most of the ranks die in the middle of their message"
    assert member.results["is flat"], member.results["counts"]
