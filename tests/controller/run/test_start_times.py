"""What the log says of a start."""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import pytest

from elasticjob_operator.start_times import StartTimes, find_age


def test_the_phases_with_the_first_pass_and_when_every_job_had_one(caplog: pytest.LogCaptureFixture) -> None:
    now = iter((1.0, 2.0, 3.0, 4.0, 5.0))
    times = StartTimes(lambda: next(now), lambda: 0.5)
    with caplog.at_level(logging.INFO):
        times.count_pass("before it leads")
        times.end("imports")
        times.end("jobs")
        times.lead(["a", "b"])
        assert caplog.messages == []
        for job in ("a", "a", "new", "b", "b", "new"):
            times.count_pass(job)
    assert caplog.messages == [
        "since the start of the process: imports 1.00 s (CPU 0.50 s), jobs 2.00 s (CPU 0.50 s), "
        "leads 3.00 s (CPU 0.50 s), first pass 4.00 s (CPU 0.50 s)",
        "since the start of the process: every job 5.00 s (CPU 0.50 s)",
    ]


def test_a_cluster_without_jobs_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    times = StartTimes()
    with caplog.at_level(logging.INFO):
        times.lead([])
        times.count_pass("new")
    assert caplog.messages == []


def test_the_age_of_the_process() -> None:
    before = find_age()
    began = time.monotonic()
    while time.monotonic() - began < 0.05:
        pass
    assert 0 < before < before + (time.monotonic() - began) <= find_age() + 0.01


BEFORE_THE_LOOP = """
from elasticjob_operator import __main__, api
from elasticjob_operator.api import base, wire

async def look(options):
    def walk(model):
        return [model, *(one for inner in model.__subclasses__() for one in walk(inner))]
    assert api.Spec in walk(base.Model) and wire.Hello in walk(wire.Hello.__mro__[1])
    models = [*walk(base.Model), *walk(wire.Hello.__mro__[1])]
    print([model.__name__ for model in models if not model.__pydantic_complete__])
    print(wire.AGENT_MESSAGE.pydantic_complete, wire.HUB_MESSAGE.pydantic_complete)
    return 0

__main__._run = look
__main__.main(["run"])
"""


@pytest.mark.timeout(60)
def test_nothing_is_left_for_the_first_job_to_build() -> None:
    """What reads a job is built before the event loop runs: it takes longer than everything that reads."""
    ran = subprocess.run([sys.executable, "-c", BEFORE_THE_LOOP], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("[]\nTrue True\n", 0), ran.stderr
