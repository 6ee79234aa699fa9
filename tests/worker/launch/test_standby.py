"""The standby process with torch imported, as seen by its agent."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import time

import pytest

from elasticjob.launch import process, standby

pytestmark = pytest.mark.timeout(120)


def test_a_standby_ends_silently_when_its_agent_has_not_read_that_it_is_ready() -> None:
    """A kernel resets a connection of which something is unread: what the standby then sees is no error."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "elasticjob.launch.standby", str(theirs.fileno())]
    with theirs:
        server = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
    with server:
        assert select.select([ours], [], [], 100)[0], "it says that it is ready"
        ours.close()
        _, said = server.communicate(timeout=30)
    assert b"Traceback" not in said
    assert re.fullmatch(
        rb"elasticjob: Workers can start after [\d.]+ s: torch and the agent [\d.]+ s, what optimizers need [\d.]+ s, "
        rb"the script's imports 0\.00 s\.\n",
        said,
    )
    assert server.returncode == 0


def test_it_tells_where_the_time_until_its_workers_can_start_went() -> None:
    assert standby.describe_start(1.05, 1.75, 1.82) == (
        "Workers can start after 1.82 s: torch and the agent 1.05 s, what optimizers need 0.70 s, "
        "the script's imports 0.07 s."
    )


def test_the_age_of_a_process_grows_from_its_start() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        age = process.age(child.pid)
        assert 0 <= age <= time.clock_gettime(time.CLOCK_BOOTTIME) - before + 0.02
        assert process.age(os.getpid()) > age, "this process is older"
        child.communicate(b"\n")
