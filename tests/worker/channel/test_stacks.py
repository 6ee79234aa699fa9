"""What a dump of stacks says, and that it harms nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from elasticjob.channel import stacks

pytestmark = pytest.mark.timeout(120)

DUMP = """\
Stack (most recent call first):
  File "train.py", line 20 in rest
  File "train.py", line 31 in <module>
"""
BUSY = """
import json, sys, threading
from pathlib import Path
from elasticjob.channel import stacks

text = json.dumps([{"a": [1, 2, {"b": number}]} for number in range(50)])

def work(depth):
    return work(depth - 1) if depth else json.JSONDecoder().decode(text)

def work_on():
    while True:
        work(5)

def rest():
    print("ready", flush=True)
    sys.stdin.read()

stacks.offer(Path(sys.argv[1]))
threading.Thread(target=work_on, daemon=True).start()
rest()
"""


def test_a_dump_is_read_once_it_is_whole() -> None:
    assert stacks.is_whole(DUMP)
    assert str(stacks.find_places(stacks.find_main_stack(DUMP))[0]) == "train.py:20 in rest"
    cuts = [DUMP[:end] for end in range(len(DUMP))]
    assert not any(map(stacks.is_whole, cuts))


def test_the_stack_of_another_thread_is_not_taken_for_that_of_the_main_one() -> None:
    """The kernel gives a signal to any thread that can take it."""
    other = DUMP.replace("train.py", "/lib/threading.py").replace("<module>", "_bootstrap")
    assert stacks.find_main_stack(other) == ""
    assert not stacks.is_whole(other)


def test_a_worker_with_a_busy_thread_survives_its_dumps(tmp_path: Path) -> None:
    """A dump of all threads ended it with SIGSEGV: the handler read the calls of one that was running."""
    command = [sys.executable, "-c", BUSY, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        for _ in range(3000):
            os.kill(worker.pid, signal.SIGUSR2)
            time.sleep(0.001)
        assert worker.poll() is None
        (dump,) = stacks.collect(tmp_path, {0: worker.pid}, 30).values()
        worker.communicate("", timeout=30)
    assert worker.returncode == 0
    assert [place.function for place in stacks.find_places(stacks.find_main_stack(dump))] == ["rest", "<module>"]


def test_other_threads_are_described_by_the_worker_itself() -> None:
    over = threading.Event()
    loader = threading.Thread(target=over.wait, args=(60,), name="loader")
    loader.start()
    try:
        text = stacks.describe_other_threads()
    finally:
        over.set()
        loader.join(30)
    assert "Thread loader (most recent call first):\n  File " in text
    assert " in wait\n" in text
    assert "test_other_threads" not in text, "neither the main thread nor the one that asks"
