"""The rate limit for events of one object: a burst, then few; equal ones are merged, other objects are unaffected."""

from __future__ import annotations

from controller.builders import NOW
from elasticjob_operator.plan.event_rate import BURST, LONGEST, OBJECTS, PER_SECOND, REASONS, SpamFilter
from elasticjob_operator.plan.reporting import Event

MINUTE = 1 / PER_SECOND


def event(number: int, reason: str = "WorldChanged") -> Event:
    return Event(reason, f"generation {number}")


def test_a_burst_goes_through_and_what_follows_becomes_one() -> None:
    spam = SpamFilter()
    told = [spam.offer("ml", "job", event(n), NOW + n / 100) for n in range(1000)]
    written = [t for t in told if t is not None]
    assert len(written) == BURST
    assert {t.count for t in written} == {1}
    assert spam.release("ml", "job", NOW + 30) is None
    last = spam.release("ml", "job", NOW + 10 + MINUTE)
    assert last is not None
    assert (last.count, last.first) == (1000 - int(BURST), NOW + BURST / 100)
    assert last.message == "generation 999 (the last of 950 such events)"
    assert not spam.is_holding("ml", "job")
    assert spam.release("ml", "job", NOW + 10 + 3 * MINUTE) is None


def test_other_reasons_and_other_jobs_are_told() -> None:
    spam = SpamFilter()
    for n in range(60):
        spam.offer("ml", "job", event(n), NOW)
    assert spam.offer("ml", "other", event(1), NOW) is not None
    assert spam.offer("ml", "job", Event("Completed", "done"), NOW) is None
    reasons = [spam.release("ml", "job", NOW + n * MINUTE + 1) for n in (1, 2)]
    assert [told and told.event.reason for told in reasons] == ["WorldChanged", "Completed"]


def test_what_waits_goes_with_the_next_of_its_kind() -> None:
    spam = SpamFilter()
    for n in range(60):
        spam.offer("ml", "job", event(n), NOW)
    told = spam.offer("ml", "job", event(60), NOW + MINUTE)
    assert told is not None
    assert told.count == 11
    assert not spam.is_holding("ml", "job")


def test_of_a_long_message_that_waits_what_is_written_is_kept() -> None:
    spam = SpamFilter()
    for n in range(60):
        spam.offer("ml", "job", Event("Skipped", f"{n} " + "x" * 4096), NOW)
    (held,) = spam._sources["ml"]["job"].held.values()
    assert len(held.event.message) == LONGEST
    assert held.event.message.startswith("59 x")


def test_the_memory_is_bounded() -> None:
    spam = SpamFilter()
    for n in range(1000):
        spam.offer("ml", "job", event(n, f"Reason{n}"), NOW)
    held = 0
    while spam.release("ml", "job", NOW + (held + 1) * MINUTE) is not None:
        held += 1
    assert held == REASONS
    for n in range(OBJECTS + 10):
        spam.offer("ml", f"job-{n}", event(0), NOW)
    assert spam.offer("ml", "job-0", event(0), NOW) is not None


def test_many_jobs_of_a_namespace_take_no_events_from_others() -> None:
    spam = SpamFilter()
    for n in range(60):
        spam.offer("ml", "job", event(n), NOW)
    for n in range(2 * OBJECTS):
        spam.offer("evil", f"job-{n}", event(0), NOW)
    assert spam.is_holding("ml", "job")
    told = spam.release("ml", "job", NOW + MINUTE + 1)
    assert told is not None and told.event == event(59)
    assert len(spam._sources["evil"]) == OBJECTS - 1
