"""Hang reports are found in logs."""

from __future__ import annotations

import pytest

from elasticjob.channel import hang
from elasticjob_operator.client.diagnosis import Finder, HangReport, choose_last, find_report

STACK = (
    "rank 0: 17 collectives entered, the last one gloo:all_reduce of [4, 4] Float, number 17\n  File ..., line 7 in f"
)


def log(*reports: tuple[int, str]) -> list[str]:
    lines = ["step 1", "[rank0]: elasticjob: hang"]
    for generation, text in reports:
        said = hang.format_report(generation, f"no step in {generation}", text)
        lines += [f"ERROR {said}", "step 2"]
    return "\n".join(lines).splitlines()


@pytest.mark.parametrize(
    ("lines", "generation", "found"),
    [
        pytest.param(log(), None, None, id="none"),
        pytest.param(log((3, STACK)), None, HangReport(3, "no step in 3", STACK), id="one"),
        pytest.param(log((3, "a"), (5, "b")), None, HangReport(5, "no step in 5", "b"), id="the last"),
        pytest.param(log((3, "a"), (5, "b")), 3, HangReport(3, "no step in 3", "a"), id="one of them"),
        pytest.param(log((3, "a")), 4, None, id="not that one"),
        pytest.param(log((3, "a\nb"))[:-3], None, HangReport(3, "no step in 3", "a"), id="cut off"),
        pytest.param(log((3, "a"))[3:], None, None, id="the beginning is gone"),
    ],
)
def test_the_report_of_a_log(lines: list[str], generation: int | None, found: HangReport | None) -> None:
    assert find_report(lines, generation) == found


def test_the_reports_of_a_job_are_those_of_its_last_hang() -> None:
    logs = {"w-0": log((3, "a"), (5, "b")), "w-1": log((3, "c")), "w-2": log(), "w-3": log((5, "d"))}
    for generation, texts in ((None, {"w-0": "b", "w-3": "d"}), (3, {"w-0": "a", "w-1": "c"})):
        finders = {pod: Finder(generation) for pod in logs}
        for pod, lines in logs.items():
            for line in lines:
                finders[pod].read(line)
        assert {pod: one.text for pod, one in choose_last(finders).items()} == texts
