"""When the workers of a pod count as waiting: tables of looks, and real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from elasticjob.channel.stillness import Stillness
from elasticjob.channel.work import Glance, glance

pytestmark = pytest.mark.timeout(120)
LOOK = 0.1


def watch(*parts: tuple[float, bool], ticks: float = 0.0, asleep: bool = True) -> Stillness:
    """`parts`: seconds, and whether the main threads are scheduled meanwhile. `ticks`: used per second of a rest."""
    seen, now, switches, used = Stillness(), 0.0, 0, 0.0
    for seconds, works in parts:
        for _ in range(round(seconds / LOOK)):
            now, switches, used = now + LOOK, switches + works, used + (3.0 if works else ticks * LOOK)
            seen = seen.look(now, Glance(asleep or works, switches, int(used)))
    return seen


WORK, REST = (2.0, True), (0.8, False)


@pytest.mark.parametrize(
    ("seen", "waits"),
    [
        pytest.param(watch(WORK), False, id="works"),
        pytest.param(watch(WORK, REST), True, id="rests"),
        pytest.param(watch(WORK, (0.4, False)), False, id="a-moment"),
        pytest.param(watch(WORK, REST, (0.1, True)), False, id="works-again"),
        pytest.param(watch(WORK, REST, ticks=50), False, id="another-thread-works"),
        pytest.param(watch(WORK, REST, ticks=3), True, id="threads-of-gloo-wake-up"),
        pytest.param(watch(WORK, REST, asleep=False), False, id="reads-from-a-disk-or-has-no-processor"),
        pytest.param(watch((0.3, True), (60.0, False)), False, id="a-main-thread-that-never-works"),
        pytest.param(watch((1.0, True), (5.0, False), WORK, REST), True, id="after-the-start-where-ranks-wait"),
        pytest.param(watch((1.0, True), *[(3.0, False), (0.1, True)] * 3, (4.0, False)), False, id="usual-rests"),
        pytest.param(watch((1.0, True), *[(3.0, False), (0.1, True)] * 3, (7.0, False)), True, id="longer-than-usual"),
        pytest.param(watch((1.0, True), *[(0.3, False), (0.1, True)] * 9, REST), True, id="steps-with-a-short-rest"),
    ],
)
def test_a_rest_counts_that_is_longer_than_usual(seen: Stillness, waits: bool) -> None:
    assert seen.is_waiting is waits


def test_short_pauses_in_ten_thousand_steps_are_no_evidence() -> None:
    """Steps of 20 ms; every 50th ends with a garbage collection or a slow disk of up to half a second."""
    seen, now, switches = Stillness(), 0.0, 0
    for step in range(10_000):
        pause = (0.02, 0.05, 0.2, 0.45)[step // 50 % 4] if step % 50 == 49 else 0.0
        for _ in range(1 + round(pause / LOOK)):
            now += LOOK if pause else 0.02
            switches += pause == 0.0
            seen = seen.look(now, Glance(asleep=True, switches=switches))
            assert not seen.is_waiting, f"step {step}"


SCRIPTS = {
    "waits": "import sys; print(flush=True); sys.stdin.read()",
    "works": "print(flush=True)\nwhile True: pass",
    "sleeps and works": "import time; print(flush=True)\nwhile True: time.sleep(0.01)",
}


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    code = SCRIPTS[request.param]
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        yield one
        one.kill()


@pytest.mark.parametrize(
    ("process", "waits"), [("waits", True), ("works", False), ("sleeps and works", False)], indirect=["process"]
)
def test_a_process_that_waits_is_told_from_one_that_works(process: subprocess.Popen[bytes], waits: bool) -> None:
    seen, until = Stillness(worked=10), time.monotonic() + 60
    while not seen.is_waiting and time.monotonic() < (until if waits else until - 58):
        seen = seen.look(time.monotonic(), glance([process.pid]))
        time.sleep(LOOK)
    assert seen.is_waiting is waits


def test_processes_that_ended_do_not_wait() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not glance([gone.pid]).asleep
    assert not glance([]).asleep
    assert not glance([os.getpid()]).asleep, "it runs: it looks at itself"
