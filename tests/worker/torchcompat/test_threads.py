"""How a process ends while one of its threads stays in torch's code."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elasticjob.torchcompat import threads

pytestmark = pytest.mark.timeout(100)

STAYS = """
import datetime, sys, time
import torch.distributed as dist
from elasticjob.torchcompat import threads

def stay():
    threads.Thread(lambda: None).start()  # as one that connects to a store
    try:
        dist.HashStore().wait(["nobody sets this"], datetime.timedelta(seconds=3))
    except RuntimeError:
        pass

class Large:
    def __del__(self):
        time.sleep(6)

threads.PATIENCE = threads.LIMIT = 0.1
dist.large = Large()
threads.Thread(stay).start()
print("the last words", end="")
"""
ENDS = {
    "pass": 0,
    "sys.exit(3)": 3,
    "raise SystemExit('words')": 1,
    "raise LookupError('words')": 1,
    "raise KeyboardInterrupt": -2,
}


def test_a_thread_that_starts_another_one_is_waited_for_too() -> None:
    """As one that connects to a store does in a further thread."""
    may_end, has_started = threading.Event(), threading.Event()

    def start_another() -> None:
        threads.Thread(lambda: None).start()
        has_started.set()
        may_end.wait(60)

    threads.Thread(start_another).start()
    has_started.wait(60)
    try:
        assert not threads.wait(0.01)
    finally:
        may_end.set()
    assert threads.wait(60)


def test_the_process_ends_with_the_status_of_its_script(tmp_path: Path) -> None:
    running = {}
    for number, end in enumerate(ENDS):
        script = tmp_path / f"{number}.py"
        script.write_text(STAYS + end)
        command = [sys.executable, "-m", "elasticjob.launch.standby", "run", str(script)]
        running[end] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for end, process in running.items():
        said, errors = process.communicate(timeout=90)
        assert (process.returncode, said) == (ENDS[end], "the last words"), f"{end}: {errors}"
        assert ("words" in end) == ("words" in errors), errors


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, 0),
        (ValueError(), 1),
        (KeyboardInterrupt(), -2),
        (SystemExit(), 0),
        (SystemExit(None), 0),
        (SystemExit(0), 0),
        (SystemExit(42), 42),
        (SystemExit(257), 1),
        (SystemExit(-1), 255),
        (SystemExit(True), 1),
        (SystemExit("words"), 1),
        (SystemExit(""), 1),
    ],
)
def test_the_status_is_that_of_the_interpreter(error: BaseException | None, status: int) -> None:
    assert threads.find_status(error) == status
