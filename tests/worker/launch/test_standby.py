"""The standby process with torch imported, as seen by its agent."""

from __future__ import annotations

import select
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(120)


def test_a_standby_ends_silently_when_its_agent_has_not_read_that_it_is_ready() -> None:
    """A kernel resets a connection of which something is unread: what the standby then sees is no error."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "elasticjob.launch.standby", str(theirs.fileno())]
    with theirs:
        standby = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
    with standby:
        assert select.select([ours], [], [], 100)[0], "it says that it is ready"
        ours.close()
        _, said = standby.communicate(timeout=30)
    assert b"Traceback" not in said
    assert standby.returncode == 0
