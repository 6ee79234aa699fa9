"""What a process and its children have done, read from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elasticjob.channel import work
from elasticjob.channel.work import Work


def make_process(proc: Path, pid: int, *, state: str = "S", ticks: int = 0, size: int = 0, threads: str = "") -> None:
    """A process of `proc`. `threads`: the state of each of its other threads, in letters."""
    folder = proc / str(pid)
    for thread, letter in enumerate(state + threads, pid):
        (folder / f"task/{thread}").mkdir(parents=True)
        (folder / f"task/{thread}/stat").write_text(f"{thread} (a (name) D) {letter} 1 2")
        (folder / f"task/{thread}/children").write_text("")
    (folder / "stat").write_text(f"{pid} (a (name) D) {state} 1 2 3 4 5 6 7 8 9 10 {ticks} 20 300 4000 20 0 1")
    (folder / "io").write_text(f"rchar: {size}\nwchar: 1000\nsyscr: 7\nread_bytes: 8\nwrite_bytes: 9\n")


def test_everything_that_a_process_and_its_children_did_counts(tmp_path: Path) -> None:
    make_process(tmp_path, 10, ticks=1, size=5)
    assert work.measure(10, tmp_path) == Work(4321, 1005)
    make_process(tmp_path, 20, ticks=1, threads="RS")
    make_process(tmp_path, 30, ticks=1)
    (tmp_path / "10/task/10/children").write_text("20 ")
    (tmp_path / "20/task/21/children").write_text("30 40 ")
    assert work.measure(10, tmp_path) == Work(3 * 4321, 3005), "40 has ended meanwhile"


@pytest.mark.parametrize("threads", ["D", "SD"])
def test_a_thread_that_waits_for_a_disk_is_at_work(tmp_path: Path, threads: str) -> None:
    make_process(tmp_path, 10)
    make_process(tmp_path, 20, threads=threads)
    assert not work.measure(10, tmp_path).waits_for_disk
    (tmp_path / "10/task/10/children").write_text("20")
    found = work.measure(10, tmp_path)
    assert found.waits_for_disk
    assert not work.is_idle(found, Work(found.ticks, found.bytes))
    assert not work.is_idle(Work(found.ticks, found.bytes), found)


SPAWNS = """
import os, sys
opened = (os.POSIX_SPAWN_OPEN, 9, sys.argv[1], os.O_RDONLY, 0)
os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}, file_actions=[opened]), 0)
"""


@pytest.mark.timeout(60)
def test_what_a_real_kernel_says_of_a_process_in_state_d(tmp_path: Path) -> None:
    """`vfork` waits as a read from a disk does, until its child has another program: this one waits for a pipe."""
    os.mkfifo(pipe := tmp_path / "pipe")
    with subprocess.Popen([sys.executable, "-c", SPAWNS, str(pipe)]) as parent:
        try:
            while not work.measure(parent.pid).waits_for_disk:
                assert parent.poll() is None
                time.sleep(0.05)
            assert not work.glance([parent.pid]).asleep, "it is no worker that waits for its peers"
        finally:
            os.close(os.open(pipe, os.O_WRONLY))  # returns when the child has it open too
        assert parent.wait() == 0
    assert not work.measure(parent.pid).waits_for_disk


def test_a_kernel_that_does_not_say_everything(tmp_path: Path) -> None:
    make_process(tmp_path, 10)
    (tmp_path / "10/io").unlink()
    (tmp_path / "10/task/10/children").unlink()
    assert work.measure(10, tmp_path) == Work(4320)
    assert work.measure(99, tmp_path) == Work()


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for line in sys.stdin:
    child.stdin.write(line)
    child.stdin.flush()
    print(child.stdout.readline(), end="", flush=True)
    if line == "end\\n":
        child.wait()
        print("ended", flush=True)
"""
CHILD = """
import sys, time
for line in sys.stdin:
    if line == "compute\\n":
        began = time.process_time()
        while time.process_time() - began < 0.2: pass
    elif line == "write\\n":
        open("file", "wb").write(bytes(3 << 20))
    print("done", flush=True)
    if line == "end\\n": break
"""


@pytest.mark.timeout(120)
def test_what_a_real_child_does_is_noticed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None

        def ask(what: str) -> Work:
            assert parent.stdin is not None
            assert parent.stdout is not None
            parent.stdin.write(what + "\n")
            assert parent.stdout.readline() == "done\n"
            return work.measure(parent.pid)

        before = ask("begin")
        computed = ask("compute")
        assert not work.is_idle(before, computed)
        written = ask("write")
        assert written.bytes - computed.bytes >= 3 << 20
        ended = ask("end")
        assert parent.stdout.readline() == "ended\n"
        after = work.measure(parent.pid)
        assert after.ticks >= ended.ticks, "a child that has ended still counts"
        assert after.bytes >= ended.bytes
