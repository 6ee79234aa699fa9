"""Fair queueing: urgent requests first, then namespaces and jobs in turn; and no namespace takes all slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from elasticjob_operator.kube import threads
from elasticjob_operator.kube.fair_queue import Owner, Slots, Turns, Urgency


def drain(turns: Turns[int]) -> list[int]:
    found = []
    while (got := turns.pop(lambda _: True)) is not None:
        found.append(got[1])
    return found


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        pytest.param([("a", "j", 1), ("a", "j", 2)], [1, 2], id="one job: in order"),
        pytest.param([("a", "j", 1), ("a", "j", 2), ("b", "j", 3)], [1, 3, 2], id="namespaces take turns"),
        pytest.param([("a", "j", 1), ("a", "j", 2), ("a", "k", 3)], [1, 3, 2], id="jobs of a namespace take turns"),
        pytest.param(
            [("a", "j", 1), ("a", "k", 2), ("a", "l", 3), ("b", "j", 4), ("b", "j", 5)],
            [1, 4, 2, 5, 3],
            id="many jobs do not make a namespace heavier",
        ),
    ],
)
def test_the_order(pushed: list[tuple[str, str, int]], expected: list[int]) -> None:
    turns: Turns[int] = Turns()
    for namespace, job, item in pushed:
        turns.push((namespace, job), item)
    assert drain(turns) == expected


def test_a_namespace_that_may_not_go_keeps_its_place() -> None:
    turns: Turns[int] = Turns()
    turns.push(("a", "j"), 1)
    turns.push(("b", "j"), 2)
    assert turns.pop(lambda namespace: namespace != "a") == (("b", "j"), 2)
    assert turns.pop(lambda namespace: namespace == "b") is None
    assert drain(turns) == [1]


class Queue:
    """Slots, with a list of those who got one."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.got: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def want(self, name: str, owner: Owner, urgency: Urgency = Urgency.NORMAL) -> None:
        async def take() -> None:
            await self.slots.acquire(owner, urgency)
            self.got.append(name)

        self.tasks.append(asyncio.create_task(take(), name=name))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def give_back(self, owner: Owner, urgency: Urgency = Urgency.NORMAL) -> None:
        self.slots.release(owner, urgency)
        await asyncio.sleep(0)


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    made = Queue(Slots(4, reserved=1, share=2))
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_no_namespace_has_more_than_its_share(queue: Queue) -> None:
    for i in range(1000):
        await queue.want(f"a{i}", ("a", "big"))
    await queue.want("b", ("b", "small"))
    assert queue.got == ["a0", "a1", "b"]
    await queue.give_back(("a", "big"))
    assert queue.got[3:] == ["a2"]


async def test_what_is_urgent_does_not_wait_behind_ten_thousand(queue: Queue) -> None:
    for namespace in ("a", "b", "c"):
        for i in range(3_000):
            await queue.want(f"{namespace}{i}", (namespace, "big"))
    assert queue.got == ["a0", "a1", "b0"], "the last slot is kept"
    await queue.want("lease", ("operator", ""), Urgency.NOW)
    assert queue.got[3:] == ["lease"]
    await queue.want("status", ("d", "small"), Urgency.NOW)
    await queue.give_back(("b", "big"))
    assert queue.got[4:] == ["status"]


async def test_one_that_gave_up_leaves_nothing_taken(queue: Queue) -> None:
    await queue.want("first", ("a", "j"))
    await queue.want("second", ("a", "j"))
    await queue.want("gave up", ("a", "j"))
    await queue.want("third", ("a", "j"))
    queue.tasks[2].cancel()
    queue.slots.release(("a", "j"))  # and one that is cancelled in the moment when it is served
    queue.tasks[3].cancel()
    await asyncio.sleep(0)
    await queue.want("fourth", ("a", "j"))
    assert queue.got == ["first", "second", "fourth"]


async def test_what_is_urgent_of_one_namespace_leaves_turns_for_the_pods_of_others(queue: Queue) -> None:
    """Whoever deletes thousands of pods, or whose worlds change all the time, always has something urgent waiting."""
    for i in range(1000):
        await queue.want(f"a{i}", ("a", "big"), Urgency.NOW)
    assert queue.got == ["a0", "a1"]
    await queue.want("b0", ("b", "small"))
    await queue.want("b1", ("b", "small"), Urgency.LATER)
    await queue.want("status", ("c", "small"), Urgency.NOW)
    assert queue.got == ["a0", "a1", "b0", "status"]
    for _ in range(8):
        await queue.give_back(("a", "big"), Urgency.NOW)
    await queue.give_back(("b", "small"))
    await queue.give_back(("c", "small"), Urgency.NOW)
    assert "b1" in queue.got
    assert queue.got.count("a9") == 1, "and the namespace goes on"


async def test_what_is_urgent_of_namespaces_whose_answers_are_slow_leaves_a_slot_to_others() -> None:
    """Webhooks of their own may take half a minute for each deletion and each status."""
    queue = Queue(Slots(16, reserved=2, share=8))
    for namespace in ("a", "b", "c"):
        for _ in range(100):
            await queue.want(namespace, (namespace, "big"), Urgency.NOW)
    assert [queue.got.count(namespace) for namespace in ("a", "b", "c")] == [8, 4, 2]
    await queue.want("status", ("d", "small"), Urgency.NOW)
    assert queue.got[-1] == "status", "although nobody has an answer"
    for task in queue.tasks:
        task.cancel()
    await asyncio.gather(*queue.tasks, return_exceptions=True)


async def test_what_is_urgent_does_not_wait_for_the_slow_pods_of_its_namespace(queue: Queue) -> None:
    for i in range(100):
        await queue.want(f"a{i}", ("a", "big"))
    await queue.want("status", ("a", "big"), Urgency.NOW)
    assert queue.got == ["a0", "a1", "status"]


async def test_what_is_not_urgent_leaves_the_reserved_slots_however_many_take_turns(queue: Queue) -> None:
    for namespace in ("a", "b", "c"):
        for i in range(100):
            await queue.want(f"{namespace}{i}", (namespace, "big"))
    for i in range(3):
        await queue.want(f"urgent{i}", ("d", "small"), Urgency.NOW)
        assert queue.got[-1] == f"urgent{i}"
        await queue.give_back(("d", "small"), Urgency.NOW)
    assert len(queue.got) == 6


async def test_namespaces_that_agree_leave_a_slot_to_others() -> None:
    """A slot of theirs may be held for minutes: by a pass of a job that makes hundreds of pods."""
    slots = Slots(8, share=4)
    greedy = [asyncio.create_task(slots.acquire((name, str(job)))) for name in "abc" for job in range(8)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await slots.acquire(("other", "job"))
    assert sum(task.done() for task in greedy) == 4 + 2 + 1
    slots.release(("a", "0"))
    slots.release(("other", "job"))
    async with asyncio.timeout(5):
        await slots.acquire(("another", "job"))
    for task in greedy:
        task.cancel()
    await asyncio.gather(*greedy, return_exceptions=True)


async def test_two_namespaces_that_always_want_one_let_a_third_have_its_turn() -> None:
    """Of the threads for large jobs, there are as many as may agree: what is left is that they take turns."""
    queue = Queue(Slots(threads.COUNT, share=threads.COUNT // 2))
    for number in range(10):
        for namespace in ("a", "b"):
            await queue.want(namespace, (namespace, f"j{number}"))
    await queue.want("third", ("c", "j"))
    while "third" not in queue.got:
        await queue.give_back((queue.got[-1], "j"))
        await asyncio.sleep(0)
    assert len(queue.got) <= 5, "those that ran, one more of each, and then this one"
    for task in queue.tasks:
        task.cancel()
    await asyncio.gather(*queue.tasks, return_exceptions=True)
