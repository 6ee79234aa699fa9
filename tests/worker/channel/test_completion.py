"""How far a session is on a device, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob.channel import completion, hang, quiet
from elasticjob.channel.completion import Steps, Told
from elasticjob.channel.quiet import Activity, Look
from elasticjob.channel.work import Work


def test_a_step_is_pending_from_its_first_collective_until_the_device_has_done_it() -> None:
    steps, told = Steps(), []
    steps.begin(None)
    assert steps.tell(7) is None, "nothing is queued on a device"
    for entered in (7, 7, 9):
        steps.begin(7)
        told.append(steps.tell(entered))
    steps.end()
    told.append(steps.tell(9))
    steps.begin(9)
    steps.drop()
    told.append(steps.tell(11))
    assert told == [
        {"done": 0, "pending": False},
        {"done": 0, "pending": False},
        {"done": 0, "pending": True},
        {"done": 1, "pending": False},
        {"done": 1, "pending": False},
    ]


def test_the_micro_batches_of_a_step_are_one_step() -> None:
    steps = Steps()
    steps.begin(7)
    steps.begin(9)
    assert steps.tell(9) == {"done": 0, "pending": True}


def test_what_torch_knows_of_the_device_counts_in_a_step_and_outside_of_one() -> None:
    steps, told = Steps(), []
    assert steps.tell(7, (7, False)) is None, "no session on a device"
    steps.begin(7)
    told.append(steps.tell(9, (7, True)))
    told.append(steps.tell(9, (9, False)))  # the script is somewhere else
    steps.end()
    told.append(steps.tell(9, (9, False)))
    told.append(steps.tell(10, (9, True)))  # in an evaluation
    assert told == [
        {"done": 7, "pending": True},
        {"done": 9, "pending": False},
        {"done": 10, "pending": False},
        {"done": 10, "pending": True},
    ]


@pytest.mark.parametrize("queues", [None, (4, False)])
def test_who_makes_communicators_waits_for_the_others(queues: tuple[int, bool] | None) -> None:
    steps, pending = Steps(), []
    steps.is_used = True
    with pytest.raises(RuntimeError), steps.connecting():
        pending.append(steps.tell(4, queues))
        raise RuntimeError("a member is lost")
    pending.append(steps.tell(4, queues))
    assert [told and told["pending"] for told in pending] == [True, False]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param({"done": 3, "pending": True}, Told(1.0, 3, True), id="a session"),
        pytest.param({"done": 3}, Told(1.0, 3, False), id="an older one"),
        pytest.param(None, None, id="no session"),
        pytest.param({"done": "x", "pending": True}, None, id="nonsense"),
        pytest.param([3], None, id="no object"),
    ],
)
def test_what_a_worker_tells_is_read(answer: Any, expected: Told | None) -> None:
    assert completion.read(answer, 1.0) == expected


WAITS = Told(0.0, 5, True)


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        pytest.param(WAITS, Told(10.0, 5, True), True, id="it waits for its device"),
        pytest.param(WAITS, Told(10.0, 6, True), False, id="steps are done"),
        pytest.param(WAITS, Told(10.0, 5, False), False, id="it computes"),
        pytest.param(Told(0.0, 5, False), Told(10.0, 5, True), False, id="it has begun to wait"),
        pytest.param(WAITS, WAITS, False, id="it did not answer again"),
        pytest.param(None, WAITS, False, id="its first answer"),
        pytest.param(None, None, False, id="no session on a device"),
    ],
)
def test_who_waits_for_a_device_does_nothing_however_busy_its_processor(
    before: Told | None, after: Told | None, stays: bool
) -> None:
    assert completion.has_stayed(before, after) is stays
    judged = quiet.judge(Look(Work(0), 9, before), Look(Work(1000), 9, after), 10.0)
    assert judged is (Activity.QUIET if stays else Activity.ACTIVE)


@pytest.mark.parametrize("polls", [True, False])
def test_ranks_that_poll_a_device_are_blocked_if_it_has_completed_nothing_for_long(polls: bool) -> None:
    stack = '  File "train.py", line 5 in item'
    looks = [hang.Look({0: stack}, {0: Work(100 * count)}, polls) for count in range(hang.BLOCKED_LOOKS)]
    assert hang.is_blocked(looks) is polls
    moved = hang.Look({0: stack.replace("5", "6")}, {0: Work(0)}, polls)
    assert not hang.is_blocked([*looks[1:], moved])
