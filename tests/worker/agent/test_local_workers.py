"""What the agent sees of its workers: whether they are blocked."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from elasticjob import env
from elasticjob.agent.hub_client import Hub
from elasticjob.agent.local_workers import LocalWorkers

pytestmark = pytest.mark.timeout(240)
BLOCKED_THREAD = "elasticjob-blocked"
WORKER = """
import importlib.util, sys, threading
from elasticjob.channel import control
control.connect()
spec = importlib.util.spec_from_file_location("collective", sys.argv[1])
collective = importlib.util.module_from_spec(spec)
spec.loader.exec_module(collective)
works = threading.Event()

def work():
    for line in sys.stdin:
        works.set() if line == "work\\n" else works.clear()

def compute():
    while works.wait():
        sum(range(10000))

for target in (work, compute):
    threading.Thread(target=target, daemon=True).start()
print("ready", flush=True)
collective.wait()
"""


@pytest.fixture
def workers() -> Iterator[LocalWorkers]:
    served = LocalWorkers(cast(Hub, None), None, lambda: (1, 0), lambda peer, message: None)
    yield served
    served.close()


def test_blocked_workers_are_reported_until_they_go_on(workers: LocalWorkers, tmp_path: Path) -> None:
    collective = tmp_path / "torch/distributed/collective.py"
    collective.parent.mkdir(parents=True)
    # A call in a file of this name counts as a collective.
    collective.write_text("import time\ndef wait(): time.sleep(3600)\n")
    command = [sys.executable, "-c", WORKER, str(collective)]
    environ = {**os.environ, env.CONTROL: workers.path}
    told: queue.Queue[bool] = queue.Queue()
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        workers.find_workers = lambda: {0: worker.pid}
        workers.watch_blocked(told.put)
        for blocked in (True, False, True):
            assert told.get(timeout=100) is blocked
            worker.stdin.write("work\n" if blocked else "rest\n")
        os.kill(worker.pid, signal.SIGKILL)
    for thread in threading.enumerate():
        if thread.name == BLOCKED_THREAD:
            thread.join(60)
            assert not thread.is_alive(), "nobody looks at workers that have ended"
