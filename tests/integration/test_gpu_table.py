"""The table of what was seen on a GPU, from the file of a run."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from benchmarks import gpu
from gpu.catalogue import CHECKS

FACTS = {"card": "NVIDIA H100 80GB HBM3", "torch": "2.11.0+cu130", "nccl": "2.28.9"}
FACTS_OF_RUN: dict[str, Any] = FACTS | {"nvidiaSmi": {"driver_version": "580.1"}}


def make_run(*checks: dict[str, Any], dry: bool = False, date: str = "2026-11-26T10:25:00+00:00") -> dict[str, Any]:
    return {"date": date, "dry": dry, "facts": FACTS_OF_RUN, "checks": list(checks)}


def make_check(name: str, *failures: str, **measured: Any) -> dict[str, Any]:
    return {"check": name, "failures": list(failures), "measured": measured}


def test_every_check_has_a_row() -> None:
    assert set(gpu.ROWS) == set(CHECKS) - {"facts"}


@pytest.mark.parametrize("runs", [[], [make_run(dry=True)]])
def test_without_a_run_on_a_device_the_page_says_so(runs: list[dict[str, Any]]) -> None:
    assert gpu.render(runs) == gpu.NOTHING


def test_a_run_is_a_table_with_its_card_and_what_did_not_hold() -> None:
    run = make_run(
        make_check("session-killed", secondsUntilNextStep=[0.31, 0.28], secondsOfJoin=[0.9]),
        make_check("join-source-dies", "training goes on from the last step: found step 0, not 7", rounds=[]),
        {**make_check("growth"), "skipped": "no time was left"},
        make_check("doctor", Node={"seconds": 3.0}, mibLeftInAgent=0),
    )
    page = gpu.render([make_run(date="2026-11-25T10:00:00+00:00"), run])
    assert "Seen on NVIDIA H100 80GB HBM3, driver 580.1, torch 2.11.0+cu130, NCCL 2.28.9, 2026-11-26" in page
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert rows[gpu.ROWS["session-killed"][0]].endswith("| yes | until next step 0.28–0.31 s, of join 0.90 s |")
    assert "**no**: training goes on from the last step |" in rows[gpu.ROWS["join-source-dies"][0]]
    assert rows[gpu.ROWS["growth"][0]].endswith("| not run | |")
    assert rows[gpu.ROWS["doctor"][0]].endswith("| yes | Node 3.0 s; 0 MiB stay |")
    assert gpu.NOT_TRIED in page


def test_a_check_is_shown_as_its_newest_run_on_that_device_found_it() -> None:
    first = make_run(make_check("hang", "it is seen", secondsUntilBlocked=9), make_check("doctor", mibLeftInAgent=0))
    again = make_run(
        make_check("hang", secondsUntilBlocked=4),
        {**make_check("doctor"), "skipped": "no time was left"},
        date="2026-11-26T11:00:00+00:00",
    )
    other = make_run(make_check("warm-fork"), date="2026-11-25T11:00:00+00:00")
    page = gpu.render([first, again, other], ["hang", "doctor", "warm-fork"])
    assert f"| {gpu.ROWS['hang'][0]} | yes | seen after 4 s |" in page
    assert f"| {gpu.ROWS['doctor'][0]} | yes | ; 0 MiB stay |" in page
    assert f"| {gpu.ROWS['warm-fork'][0]} | not run | |" in page


def test_a_check_that_has_not_measured_has_an_empty_cell() -> None:
    row = gpu.render_row(*gpu.ROWS["snapshots"], make_check("snapshots", "did not end within 70 s"))
    assert row.endswith("| **no**: did not end within 70 s |  |")


def test_the_name_of_a_file_has_the_card_and_the_time() -> None:
    assert gpu.find_name(make_run()) == "gpu-nvidia-h100-80gb-hbm3-2026-11-26-1025.json"


def test_a_missed_goal_is_shown_beside_what_holds() -> None:
    goals = [{"name": "part", "value": 0.02, "limit": 0.01, "met": False}]
    row = gpu.render_row(*gpu.ROWS["hang"], make_check("hang", secondsUntilBlocked=4) | {"goals": goals})
    assert row.endswith("| yes; **goal of 0.01 missed** | seen after 4 s |")
    row = gpu.render_row(*gpu.ROWS["hang"], make_check("hang") | {"goals": [goals[0] | {"met": True}]})
    assert "missed" not in row


def test_what_is_kept_names_no_file_of_the_machine_that_ran_it() -> None:
    printed = make_check("hang") | {"output": ["#5 <module> from /somewhere/program.py:158"]}
    assert gpu.without_output(make_run(printed)) == make_run(make_check("hang"))
    kept = gpu.read_runs()
    assert kept and kept == [gpu.without_output(run) for run in kept]
    assert not re.search(r"/\w+/\w", "".join(json.dumps(run["checks"]) for run in kept))
