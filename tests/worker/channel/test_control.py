"""The agent's folder: no other user can enter it, and it is removed."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticjob import env
from elasticjob.channel import control
from elasticjob.channel.control import Server
from worker.gang_helper import clean_environment

pytestmark = pytest.mark.timeout(60)

AGENT = """
import sys
from elasticjob import env
from elasticjob.channel import control
from elasticjob.channel.control import Server
server = Server(lambda peer, message: None)
print(server.folder, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(params=["short", "long"])
def scratch(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A TMPDIR. The address of a socket has at most 107 bytes, and such a folder may be longer by itself."""
    with tempfile.TemporaryDirectory(prefix="ej-") as folder:
        made = Path(folder, *(["x" * 70] * 3 if request.param == "long" else []))
        made.mkdir(parents=True, exist_ok=True)
        yield made


def start_agent(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT],
        env=clean_environment(TMPDIR=str(folder)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], number: signal.Signals | None = None) -> None:
    if number is not None:
        process.send_signal(number)
    process.communicate("\n", timeout=30) if number is None else process.communicate(timeout=30)


def test_the_folder_goes_with_its_agent_or_with_the_next_one(scratch: Path) -> None:
    agents = [start_agent(scratch) for _ in range(3)]
    try:
        (ends, first), (dies, second), (lives, third) = agents
        assert all(folder.stat().st_mode & 0o077 == 0 for folder in (first, second, third))
        end(ends)
        assert not first.exists()
        end(dies, signal.SIGKILL)
        assert second.exists(), "nobody was there to remove it"
        agents.append(start_agent(scratch))
        assert not second.exists()
        assert third.exists(), "its agent lives"
        assert lives.poll() is None
        assert sorted(scratch.iterdir()) == sorted([third, agents[-1][1]])
    finally:
        for process, _ in agents:
            process.kill()
            process.communicate()


def test_what_is_not_an_agents_is_left_alone(scratch: Path) -> None:
    (scratch / "elasticjob-agent-notes").mkdir()
    (scratch / "elasticjob-agent-notes" / "control").write_text("a file of somebody's")
    process, folder = start_agent(scratch)
    end(process)
    assert not folder.exists()
    assert (scratch / "elasticjob-agent-notes" / "control").exists()


def test_a_worker_is_heard_from_any_folder(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    found: queue.Queue[str] = queue.Queue()
    server = Server(lambda peer, message: found.put("over" if message is None else str(message["type"])))
    assert server.path.is_relative_to(scratch)
    code = "from elasticjob.channel import control; assert control.connect() is not None"
    files = "import os; assert len(os.listdir('/proc/self/fd')) == 6, os.listdir('/proc/self/fd')"
    environ = clean_environment(ELASTICJOB_CONTROL=str(server.path))
    subprocess.run([sys.executable, "-c", f"{code}; {files}"], env=environ, check=True, timeout=60)
    assert found.get(timeout=30) == "hello"
    server.close()
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({"TORCHELASTIC_RUN_ID": "job"}, True, id="a worker"),
        pytest.param({"TORCHELASTIC_RUN_ID": "its own"}, False, id="a worker of a launcher that a worker started"),
        pytest.param({}, True, id="a child of a worker, without a launcher's variables"),
    ],
)
def test_only_what_this_agent_launched_is_its_worker(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    """`torchrun --standalone` in a script leaves the channel in the environment of its own workers."""
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    server = Server(lambda peer, message: None)
    environ = clean_environment(ELASTICJOB_CONTROL=str(server.path), ELASTICJOB_RUN_ID="job", **variables)
    code = f"from elasticjob.channel import control; assert (control.connect() is not None) is {expected}"
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=60)
    server.close()


def test_a_closed_server_leaves_no_thread() -> None:
    before = threading.enumerate()
    server = Server(lambda peer, message: None)
    (waiting,) = [one for one in threading.enumerate() if one not in before]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server.path))
        deadline = time.monotonic() + 30
        while not server.peers():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    time.sleep(0.1)  # it waits for the next one
    server.close()
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_message_that_is_sent_while_another_one_is_waits_for_it() -> None:
    """A signal handler may send in the middle of the main thread's own message."""
    code = """
import os, signal, sys, time
from elasticjob.channel import control
client = control.connect()
signal.signal(signal.SIGALRM, lambda *_: client.send({"type": "inner"}))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for number in range(300):
    client.send({"type": "outer", "text": "x" * 200_000})
signal.setitimer(signal.ITIMER_REAL, 0)
client.send({"type": "last"})
time.sleep(60)
"""
    found: queue.Queue[str] = queue.Queue()
    server = control.Server(lambda peer, message: found.put("over" if message is None else str(message["type"])))
    environ = {**os.environ, env.CONTROL: str(server.path)}
    worker = subprocess.Popen([sys.executable, "-c", code], env=environ)
    try:
        kinds = []
        while (kind := found.get(timeout=60)) != "last":
            kinds.append(kind)
        assert kinds.count("outer") == 300
        assert "inner" in kinds
    finally:
        worker.kill()
        worker.wait()
        server.close()


def test_a_socket_that_takes_nobody_holds_up_no_agent() -> None:
    """Another user of the machine can put one beside those of agents, where they share a folder."""
    with tempfile.TemporaryDirectory(prefix="ej-") as folder, contextlib.ExitStack() as stack:
        place = Path(folder, "elasticjob-agent-other")
        place.mkdir()
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(place / "control"))
        listener.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                visitor = stack.enter_context(socket.socket(socket.AF_UNIX))
                visitor.setblocking(False)
                visitor.connect(str(place / "control"))
        looking = threading.Thread(target=control.remove_stale, args=(Path(folder),), daemon=True)
        looking.start()
        looking.join(20)
        assert not looking.is_alive() and place.exists()
