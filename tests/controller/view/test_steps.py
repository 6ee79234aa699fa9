"""What a script prints, for a person: steps written as JSON become at most one line a second."""

from __future__ import annotations

import json

import pytest

from elasticjob_operator.view.steps import Steps, describe, read_step


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"step": 3}', True),
        ('{"event": "step", "step": 3, "loss": 0.5}', True),
        ('{"event": "start", "step": 3}', False),
        ('{"step": 3.5}', False),
        ('{"step": true}', False),
        ('{"step": "3"}', False),
        ('{"loss": 0.5}', False),
        ('{"step": 3', False),
        ("step 3", False),
        ("[3]", False),
        ('{"step": 1' + "0" * 5000 + "}", False),
        ('{"step": ' + str(1 << 64) + "}", False),
        ('{"step": ' + "[" * 9000, False),
        ('{"step": 3, "text": "' + "x" * 20_000 + '"}', False),
        ("", False),
    ],
)
def test_read_step(line: str, told: bool) -> None:
    assert (read_step(line) is not None) is told


@pytest.mark.parametrize(
    ("step", "speed", "line"),
    [
        ({"step": 3}, 0.0, "step 3"),
        ({"step": 3, "epoch": 1, "loss": 0.123456}, 12.345, "epoch 1, step 3, loss 0.1235, 12.3 steps/s"),
        ({"step": 3, "worldSize": 2, "rank": 0, "pid": 7, "time": 1e9}, 0.0, "step 3, world of 2"),
        ({"step": 3, "world_size": 2, "ok": True, "name": "x", "n": 1 << 2000}, 0.0, "step 3, world of 2"),
        ({"step": 3, "loss": float("nan"), "best": float("inf")}, 0.0, "step 3, loss nan, best inf"),
        ({"step": 1, **{f"m{n}": n for n in range(9)}}, 0.0, "step 1, m0 0, m1 1, m2 2, m3 3, m4 4, m5 5"),
    ],
)
def test_describe(step: dict[str, object], speed: float, line: str) -> None:
    assert describe(step, speed) == line


def test_a_line_a_second_and_all_that_is_no_step() -> None:
    steps, shown = Steps(), []
    for number in range(1, 12):
        shown += steps.feed(json.dumps({"step": number}), number / 4)  # exact in binary
    assert shown == ["step 1", "step 5, 4 steps/s", "step 9, 4 steps/s"]
    assert steps.feed("saved", 3.0) == ["step 11, 4 steps/s", "saved"], "in the order in which the script wrote them"
    assert steps.flush() == [], "it is told once"
    assert steps.feed("saved again", 3.1) == ["saved again"]


def test_steps_that_begin_again_have_no_speed() -> None:
    steps = Steps()
    assert steps.feed('{"step": 90}', 0.0) == ["step 90"]
    assert steps.feed('{"step": 80}', 2.0) == ["step 80"], "after a restart"
