"""The agent of a few real ranks of a session, without pods and a hub: a test decides what it tells them, and when.

    with FakeAgent(PROGRAM, tmp_path) as agent:
        agent.start(3)
        agent.run()  # tells of losses and forms worlds until all have ended

Each rank writes JSON lines to a file of its own in `OUT`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from elasticjob import env
from elasticjob.channel import control
from elasticjob.channel.place import Place
from elasticjob.protocol import store
from worker import warm_pods
from worker.gang_helper import clean_environment
from worker.warm_pods import WarmProcess


class FakeAgent:
    """One agent for all ranks, each of which counts as a pod."""

    tell_after = 0.2  # seconds from the death of a rank until the first of the others hears of it ...
    tell_apart = 0.0  # ... and from one to the next, in the order of the ranks, or if negative from the last one on

    def __init__(self, program: Path, folder: Path, **variables: str) -> None:
        self.generation = 0
        self.ranks: list[WarmProcess] = []  # of the present world, or of the last one, in order
        self.ended: list[int] = []  # the exit codes of the others
        self.idle: dict[int, dict[str, Any]] = {}  # what those said that have left the world, by pid
        self.history: list[dict[str, Any]] = []  # all that was said
        self._program, self._folder, self._variables = program, folder, variables
        self._told = -1  # the newest generation of which the ranks know that it is over ...
        self._lost = -1  # ... and that a member is lost
        self._stores: list[Any] = []
        self._server = control.Server(self._hear)
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.ranks:
            if one.poll() is None:
                one.kill()
            one.wait()
        self._server.close()
        print(self.log[-6000:])  # shown if the test fails

    @property
    def log(self) -> str:
        file = self._folder / "output"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What the ranks have written, rank by rank."""
        lines = [line for file in sorted(self._folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.endswith("}")]

    # What it tells.

    def start(self, count: int, **variables: str) -> None:
        """The first world."""
        self._begin()
        self.ranks = [self._spawn(self._place(rank, count), variables) for rank in range(count)]

    def join(self, **variables: str) -> None:
        """A further rank, which waits for its first world."""
        self.ranks.append(self._spawn(None, variables))

    def let_join(self, **variables: str) -> None:
        """A further rank joins: the world ends by announcement, and scripts that wait for the file `told` go on."""
        self.join(**variables)
        self.wait(lambda: self.ranks[-1].pid in self.idle, "the joiner")
        self.tell(announced=True)
        (self._folder / "told").touch()

    def tell(self, announced: bool) -> None:
        """The present world ends: by announcement, or by a loss."""
        self._told = self.generation
        if not announced:
            self._lost = self.generation
        self._send({"type": "regroup", "generation": self.generation, "announced": announced})

    def form(self) -> None:
        """The next world, of all ranks that live."""
        self.wait(lambda: set(self.idle) >= {one.pid for one in self.living}, "all ranks to be idle")
        self.idle.clear()
        self.ranks = self.living
        self._begin()
        for rank, one in enumerate(self.ranks):
            self._peer(one.pid).send(self._place(rank, len(self.ranks)).as_message())

    def run(self, seconds: float = 100.0) -> None:
        """Tell of each loss, and form the next world, until all ranks have ended well or all are lost. They fail if
        nothing comes of them for so many seconds: a busy machine takes its time.
        """
        died: float | None = None
        deadline, before = time.monotonic() + seconds, -1
        while self.living or any(one.poll() for one in self.ranks):
            if (now := self._count_signs()) != before:
                deadline, before = time.monotonic() + seconds, now
            assert time.monotonic() < deadline, (
                f"nothing comes of them for {seconds} s; idle: {self.idle}\n{self.log[-6000:]}"
            )
            for one in [one for one in self.ranks if one.poll() not in (None, 0)]:
                self.ranks.remove(one)
                self.ended.append(one.wait())
                died = died or time.monotonic()
            if died is not None and self._lost < self.generation and time.monotonic() - died >= self.tell_after:
                self.tell(announced=False)
            if self._told == self.generation and self.ranks and set(self.idle) >= {one.pid for one in self.ranks}:
                died = None
                self.form()
            time.sleep(0.01)
        self.ended += [one.wait() for one in self.ranks]

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}\n{self.log[-6000:]}"
            time.sleep(0.01)

    @property
    def living(self) -> list[WarmProcess]:
        return [one for one in self.ranks if one.poll() is None]

    # Its parts.

    def _count_signs(self) -> int:
        """Of life: what the ranks have written, said, or how many have ended."""
        written = sum(file.stat().st_size for file in self._folder.glob("*.jsonl"))
        return written + len(self.history) + len(self.ended)

    def _hear(self, peer: control.Peer, message: dict[str, Any] | None) -> None:
        if message is not None:
            self.history.append({"pid": peer.pid, "at": time.monotonic(), **message})
            if message.get("type") == "idle":
                self.idle[peer.pid] = message

    def _peer(self, pid: int) -> control.Peer:
        return next(one for one in self._server.peers(control.SESSION) if one.pid == pid)

    def _send(self, message: dict[str, Any]) -> None:
        pids = {one.pid for one in self.living}
        peers = sorted(self._server.peers(control.SESSION), key=lambda one: self._order(one.pid))
        for number, peer in enumerate(one for one in peers if one.pid in pids):
            if number:
                time.sleep(abs(self.tell_apart))
            peer.send(message)

    def _order(self, pid: int) -> int:
        ranks = [one.pid for one in self.ranks]
        place = ranks.index(pid) if pid in ranks else len(ranks)
        return -place if self.tell_apart < 0 else place

    def _begin(self) -> None:
        self.generation += 1
        made, self._where = store.listen("127.0.0.1")
        self._stores = [*self._stores[-1:], made]  # the last one may still be in use

    def _place(self, rank: int, size: int) -> Place:
        return Place(self.generation, rank, size, "127.0.0.1", self._where.port, rank, size, self.generation - 1)

    def _spawn(self, place: Place | None, variables: dict[str, str]) -> WarmProcess:
        environ = clean_environment(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GLOO_SOCKET_IFNAME="lo")
        environ |= {env.CONTROL: str(self._server.path), "OUT": str(self._folder)}
        environ |= self._variables | variables | ({} if place is None else place.as_environ())
        with (self._folder / "output").open("ab") as output:
            return warm_pods.shared("rank").start([str(self._program)], environ, self._folder, output, output)
