"""Which processes of a pod a signal is for, and which are left of an old world, as tables."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from elasticjob.channel import processes
from elasticjob.channel.processes import Process

TERM = 1 << (signal.SIGTERM - 1)
AGENT, STANDBY, WORKER = 10, 11, 20
CHANNEL = "/tmp/agent/control"


def tree(*found: Process) -> dict[int, Process]:
    return {one.pid: one for one in found}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([Process(20, 10, 20, "python", caught=TERM)], [20], id="a script that saves"),
        pytest.param([Process(20, 10, 20, "python")], [20], id="a script without a handler"),
        pytest.param(
            [Process(20, 10, 20, "python", caught=TERM), Process(21, 20, 20, "python", caught=TERM)],
            [20],
            id="its data loaders, which have a handler of torch",
        ),
        pytest.param(
            [Process(20, 10, 20, "python"), Process(21, 20, 20, "python", caught=TERM)], [20], id="whatever they have"
        ),
        pytest.param(
            [Process(20, 10, 20, "bash"), Process(21, 20, 20, "python", caught=TERM), Process(22, 20, 20, "tee")],
            [21],
            id="a script below a shell",
        ),
        pytest.param(
            [Process(20, 10, 20, "bash", caught=TERM), Process(21, 20, 20, "python", caught=TERM)],
            [20],
            id="a shell with a trap",
        ),
        pytest.param(
            [
                Process(20, 10, 20, "sh"),
                Process(21, 20, 20, "bash"),
                Process(22, 21, 20, "python", caught=TERM),
                Process(23, 22, 20, "python", caught=TERM),
            ],
            [22],
            id="two shells",
        ),
        pytest.param(
            [Process(20, 10, 20, "bash"), Process(21, 20, 20, "python")], [20, 21], id="nobody below a shell saves"
        ),
        pytest.param([], [20], id="it cannot be read"),
    ],
)
def test_who_gets_a_signal(found: list[Process], expected: list[int]) -> None:
    assert processes.find_receivers(tree(*found), WORKER, signal.SIGTERM) == expected


@pytest.mark.parametrize(
    ("one", "is_left"),
    [
        pytest.param(Process(30, AGENT, WORKER, channel=CHANNEL, began=60), True, id="in the worker's session"),
        pytest.param(Process(30, AGENT, 30, channel=CHANNEL, began=60), True, id="in a session of its own"),
        pytest.param(Process(30, AGENT, 29, image=7, began=60), True, id="forked, and not executed"),
        pytest.param(Process(30, AGENT, 29, began=60), False, id="somebody's, by kubectl exec"),
        pytest.param(Process(30, AGENT, 29, channel="/tmp/other", began=60), False, id="of another agent"),
        pytest.param(Process(30, AGENT, 29, image=7, began=40), False, id="older than the first worker"),
        pytest.param(Process(30, AGENT, AGENT, image=7, began=60), False, id="of the agent itself"),
        pytest.param(Process(30, AGENT, STANDBY, image=7, began=60), False, id="an orphan of the standby"),
        pytest.param(Process(30, STANDBY, 30, channel=CHANNEL, began=60), False, id="a child of the standby"),
    ],
)
def test_what_is_left_of_ended_workers(one: Process, is_left: bool) -> None:
    agent, standby = Process(AGENT, 1, AGENT, image=7), Process(STANDBY, AGENT, STANDBY, image=7, began=41)
    below = Process(31, one.pid, 31)
    found = processes.find_leftovers(tree(agent, standby, one, below), AGENT, [STANDBY], 50, CHANNEL)
    assert found == ([one, below] if is_left else [])


def test_without_the_kernels_word_a_fork_is_not_recognised() -> None:
    agent, other = Process(AGENT, 1, AGENT), Process(30, AGENT, 29, began=60)
    assert processes.find_leftovers(tree(agent, other), AGENT, [], 50, CHANNEL) == []


def test_a_tree_is_read() -> None:
    environ = {**os.environ, "ELASTICJOB_CONTROL": CHANNEL}
    command = ["sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        seen = processes.read_tree(os.getpid())
        found = seen[child.pid]
        assert (found.parent, found.session, found.name, found.channel) == (os.getpid(), child.pid, "sh", CHANNEL)
        assert found.catches(signal.SIGTERM)
        assert not found.catches(signal.SIGUSR2)
        assert found.image != seen[os.getpid()].image, "it was executed"
        forked = os.fork()
        if not forked:
            signal.pause()
        assert processes.read_tree(os.getpid())[forked].image == seen[os.getpid()].image != 0
        os.kill(forked, signal.SIGKILL)
        assert processes.read(forked) is None or os.waitpid(forked, 0)
        child.terminate()


@pytest.mark.parametrize(
    ("name", "writes"),
    [
        *((name, True) for name in ("g++", "cc", "gcc-12", "clang++-17", "cc1plus", "as", "collect2", "ld", "ld.gold")),
        *((name, True) for name in ("nvcc", "cicc", "ptxas", "x86_64-linux-gn", "hipcc", "ld.lld-17", "lld")),
        *((name, False) for name in ("python", "sh", "cat", "bash", "ldconfig", "assets", "gccgo-daemon", "sleep")),
    ],
)
def test_compilers_are_known_by_their_names(name: str, writes: bool) -> None:
    one = Process(30, AGENT, 20, name)
    assert processes.find_writing([one]) == ([one] if writes else [])


def test_what_a_compiler_has_started_writes_too() -> None:
    driver, shell, below = Process(30, AGENT, 20, "nvcc"), Process(31, 30, 20, "sh"), Process(32, 31, 20, "cat")
    pool, loader = Process(40, AGENT, 20, "python"), Process(41, 40, 20, "python")
    assert {one.pid for one in processes.find_writing([loader, below, pool, shell, driver])} == {30, 31, 32}
