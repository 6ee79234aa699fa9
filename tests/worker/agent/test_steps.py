"""A script that begins at its first step again is named, and no other one."""

from __future__ import annotations

import pytest

from elasticjob.agent.steps import Steps


@pytest.mark.parametrize(
    ("reports", "told"),
    [
        pytest.param([(1, 1), (1, 480), (2, 1)], [2], id="from the first step again"),
        pytest.param([(1, 0), (1, 480), (2, 0)], [2], id="counted from 0"),
        pytest.param([(1, 480), (2, 0), (2, 12), (3, 1)], [1, 3], id="every time"),
        pytest.param([(1, 480), (2, 470)], [], id="from a checkpoint"),
        pytest.param([(1, 9), (2, 1)], [], id="hardly begun"),
        pytest.param([(1, 480), (1, 0), (1, 480), (2, 0)], [], id="counted by epoch"),
        pytest.param([(1, 480), (2, None)], [], id="no step"),
        pytest.param([(1, 480), (1, 481)], [], id="one process"),
    ],
)
def test_reports(reports: list[tuple[int, int | None]], told: list[int]) -> None:
    steps = Steps()
    messages = {number: steps.report(pid, step) for number, (pid, step) in enumerate(reports)}
    assert [number for number, message in messages.items() if message] == told
    assert all("loads no checkpoint" in messages[number] and "docs/" in messages[number] for number in told)  # type: ignore[operator]
