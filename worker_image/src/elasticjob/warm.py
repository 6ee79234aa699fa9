"""The agent's side of warm start: keep a standby interpreter per local rank, hand it the next worker's order.

A restarted worker then does not pay for `import torch`. The standby costs memory and, for a moment, CPU; so the
next ones are started only a while after the workers began. ELASTICJOB_WARM_START=0 turns it off.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

logger = logging.getLogger("elasticjob")

SETTLE_SECONDS = 2.0  # after the start of workers, before new standbys compete with them


@dataclass
class Standby:
    """An interpreter that waits."""

    process: subprocess.Popen[bytes]
    channel: socket.socket

    def close(self) -> None:
        self.channel.close()
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Pool:
    """The standbys of one agent. All methods belong to the main thread: a worker dies with the thread that made it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._standbys: list[Standby] = []
        self._refill_at = 0.0

    def resize(self, size: int) -> None:
        """How many to keep from now on."""
        self._size = size
        while len(self._standbys) > size:
            self._standbys.pop().close()

    def refill(self, now: float) -> None:
        """Start what is missing, unless workers were just started."""
        if now < self._refill_at:
            return
        while len(self._standbys) < self._size:
            self._standbys.append(_start_standby())

    def take(self) -> Standby | None:
        """A living standby, ready or nearly so."""
        self._refill_at = time.monotonic() + SETTLE_SECONDS
        while self._standbys:
            standby = self._standbys.pop(0)
            if standby.process.poll() is None:
                return standby
            standby.close()
        return None

    def close(self) -> None:
        for standby in self._standbys:
            standby.channel.close()
        for standby in self._standbys:
            standby.close()
        self._standbys, self._size = [], 0


def _start_standby() -> Standby:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "elasticjob.standby", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return Standby(process, ours)


def can_warm(command: tuple[str, ...]) -> bool:
    """Whether this command is a script for the interpreter that we run ourselves."""
    return len(command) >= 3 and command[:2] == (sys.executable, "-u")


def start(
    pool: Pool, command: tuple[str, ...], env: Mapping[str, str], stdout: Any, stderr: Any
) -> subprocess.Popen[bytes]:
    """Start a worker: from a standby, else cold but with the same manners, else as the plain command."""
    if not can_warm(command):
        return subprocess.Popen(command, env=env, stdout=stdout, stderr=stderr, start_new_session=True)
    standby = pool.take()
    if standby is not None and _order(standby, command[2:], env, stdout, stderr):
        return standby.process
    cold = [*command[:2], "-m", "elasticjob.standby", "run", *command[2:]]
    return subprocess.Popen(cold, env=env, stdout=stdout, stderr=stderr, start_new_session=True)


def _order(standby: Standby, argv: tuple[str, ...], env: Mapping[str, str], stdout: Any, stderr: Any) -> bool:
    text = json.dumps({"argv": argv, "env": dict(env)}).encode() + b"\n"
    files = [1 if stdout is None else stdout.fileno(), 2 if stderr is None else stderr.fileno()]
    try:
        sent = socket.send_fds(standby.channel, [text], files)
        standby.channel.sendall(text[sent:])
    except OSError as error:
        logger.warning("A standby did not take its order (%s); starting the worker cold.", error)
        standby.close()
        return False
    standby.channel.close()
    return True


@contextlib.contextmanager
def serve_torch(pool: Pool) -> Iterator[None]:
    """While this lasts, torch's agent gets its worker processes from the pool."""
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    class Handler(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
            return start(pool, tuple(args), env, self._stdout, self._stderr)

    with mock.patch.object(api, "get_subprocess_handler", Handler):
        yield


def is_enabled(environ: Mapping[str, str]) -> bool:
    return environ.get("ELASTICJOB_WARM_START", "1") not in ("0", "false", "no") and os.name == "posix"
