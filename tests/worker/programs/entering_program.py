"""Two ranks enter a world again and again. Each time something stops a message later, and rank 0 hears of the loss.

What stops is the store of the world (its host is silent, or dies) or rank 1 (it is paused, or killed). Messages are
counted where they pass: between a rank and the store. Rank 0 says how long it took to be free, counted from the moment
at which it heard of the loss. The last case of each kind is one in which nothing has stopped before both have entered.

The process imports torch once and forks for each case a rank 0, a rank 1 and a host of the store.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from elasticjob.channel.place import Place
from elasticjob.collectives import messages
from elasticjob.protocol import store
from elasticjob.sessions.interrupt import Interrupter
from elasticjob.sessions.process_groups import ProcessGroups
from worker.programs.saying import say

TIMEOUT = 60.0
PATIENCE = 15.0  # seconds for a case; a rank that is not free by then is killed
KINDS = ("silent store", "dead store", "paused peer", "killed peer")


# --- the host of the store ----------------------------------------------------------------------------------


def host(kind: str, count: int, ports: tuple[int, int], heard: int, peer: int) -> None:
    """Pass messages between the ranks and the store until `count` have come from the rank that is watched."""
    _held, where = store.listen("127.0.0.1")
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    for door, port in zip(doors, ports, strict=True):
        os.write(port, str(door.getsockname()[1]).encode())
    watched = doors[1 if "peer" in kind else 0]
    ends: dict[socket.socket, socket.socket] = {}
    counted: set[socket.socket] = set()
    while True:
        for one in select.select([*doors, *ends], [], [])[0]:
            if one in doors:
                near, _ = one.accept()
                far = socket.create_connection((where.address, where.port))
                ends |= {near: far, far: near}
                counted |= {near} if one is watched else set()
            elif one in ends:
                if one in counted:
                    if count == 0:
                        stop(kind, heard, peer)
                    count -= 1
                pass_on(one, ends)


def pass_on(one: socket.socket, ends: dict[socket.socket, socket.socket]) -> None:
    with contextlib.suppress(ConnectionError):
        if data := one.recv(65536):
            ends[one].sendall(data)
            return
    for end in (one, ends[one]):
        del ends[end]
        end.close()


def stop(kind: str, heard: int, peer: int) -> None:
    if kind == "paused peer":
        os.kill(peer, signal.SIGSTOP)
    elif kind == "killed peer":
        os.kill(peer, signal.SIGKILL)
    os.write(heard, b"!")
    if kind == "dead store":
        os._exit(0)
    if kind == "silent store":
        signal.pause()


# --- the ranks ----------------------------------------------------------------------------------------------


class Rank:
    """What a session does with its groups, and when its agent tells it that a member is lost."""

    def __init__(self) -> None:
        self.heard_at: float | None = None
        self._groups = ProcessGroups("gloo", TIMEOUT)
        self._interrupter = Interrupter(self.is_lost, self._groups.shut_down)

    def is_lost(self) -> bool:
        return self.heard_at is not None

    def listen(self, heard: int) -> None:
        if os.read(heard, 1):
            self.heard_at = time.monotonic()
            self._groups.abort()
            self._interrupter.interrupt()

    def enter(self, place: Place) -> str:
        try:
            self._groups.enter(place, self.is_lost, lambda: dist.new_group(backend="gloo"))
            messages.all_gather_integers([place.rank], self._groups.flags)
        except (RuntimeError, OSError):
            return "broken"
        return "entered"


def be_rank(number: int, port: int, heard: int) -> tuple[str, float]:
    """How rank 0 ended, and the seconds since it heard of the loss; negative if it did not."""
    me = Rank()
    threading.Thread(target=me.listen, args=(heard,), daemon=True).start()
    how = me.enter(Place(2, number, 2, "127.0.0.1", int(os.read(port, 10)), number, 2))
    return how, -1.0 if me.heard_at is None else time.monotonic() - me.heard_at


# --- the cases ----------------------------------------------------------------------------------------------


def fork(action: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            action()
        os._exit(0)
    return child


def run_case(kind: str, count: int) -> tuple[str, float]:
    """How rank 0 ended, and the seconds since it heard of the loss."""
    pipes = [os.pipe() for _ in range(5)]
    to_first, to_second, heard, unheard, result = pipes

    def be_first() -> None:
        how, seconds = be_rank(0, to_first[0], heard[0])
        os.write(result[1], f"{how} {seconds}".encode())

    def be_second() -> None:
        be_rank(1, to_second[0], unheard[0])
        signal.pause()  # it leaves no world before rank 0 has

    first = fork(be_first)
    second = fork(be_second)
    third = fork(lambda: host(kind, count, (to_first[1], to_second[1]), heard[1], second))
    try:
        is_free = bool(select.select([result[0]], [], [], PATIENCE)[0])
        how, seconds = os.read(result[0], 100).decode().split() if is_free else ("stuck", PATIENCE)
    finally:
        for child in (first, second, third):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for end in (end for pipe in pipes for end in pipe):
            os.close(end)
    return how, float(seconds)


def main() -> None:
    for kind in sys.argv[1:] or KINDS:
        found = []
        for count in itertools.count():
            how, seconds = run_case(kind, count)
            found.append((how, round(seconds, 2)))
            if seconds < 0:
                break
        say(kind, found)


if __name__ == "__main__":
    main()
