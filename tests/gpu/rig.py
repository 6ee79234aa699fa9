"""Processes that share one device over real NCCL, and the agent of a session.

NCCL refuses two ranks of one host on one device. It compares hashes of the host, which NCCL_HOSTID replaces: each
process here is a host of its own, and they speak over sockets on the loopback, as nodes without InfiniBand do. What
this cannot show is NVLink, shared memory between ranks, InfiniBand, and bandwidths.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from elasticjob import env
from elasticjob.channel import control, looks
from elasticjob.channel.place import Place

PROGRAMS = Path(__file__).parent / "programs"
DRY = os.environ.get("DRY") == "1"
PATIENCE = 5.0 if DRY else 1.0  # without a device it is debugged on small and busy machines
DETECTION = 0.1  # seconds in which a pod's agent learns that a process has died
_NCCL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",  # the kernels of several ranks fit on the device together
    "NCCL_DEBUG": "WARN",
    "OMP_NUM_THREADS": "1",
}
# What torchrun's agent sets for its workers.
TORCHRUN = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
_NOT_INHERITED = ("ELASTICJOB_", "PET_", "RANK", "WORLD_SIZE", "TORCH_NCCL", "NCCL_")
_numbers = itertools.count()


def spawn(folder: Path, command: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
    """A process that is a host of its own to NCCL; its output goes to a file in the folder."""
    number = next(_numbers)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    environ = kept | _NCCL | {"NCCL_HOSTID": f"host{os.getpid()}-{number}", "PYTHONUNBUFFERED": "1"} | variables
    with (folder / f"out-{number:02}.txt").open("wb") as output:
        return subprocess.Popen([sys.executable, *command], env=environ, stdout=output, stderr=subprocess.STDOUT)


def run_ranks(
    folder: Path, program: str, name: str, size: int, seconds: float, **variables: str
) -> list[dict[str, Any]]:
    """Run `programs/PROGRAM NAME RANK SIZE FILE` on so many ranks: what they said, by `say`, with the exit codes."""
    return [row for rows in run_many(folder, program, [(name, size, variables)], seconds) for row in rows]


def run_many(
    folder: Path, program: str, worlds: Sequence[tuple[str, int, dict[str, str]]], seconds: float
) -> list[list[dict[str, Any]]]:
    """Several such worlds side by side."""
    started = []
    for name, size, variables in worlds:
        file = folder / f"world-{next(_numbers)}"
        for rank in range(size):
            said = file.with_suffix(f".{rank}.jsonl")
            arguments = [str(PROGRAMS / program), name, str(rank), str(size), str(file)]
            started.append((file, rank, said, spawn(folder, arguments, SAID=str(said), **variables)))
    end = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < end and any(one.poll() is None for *_, one in started):
        time.sleep(0.02)
    worlds_rows: dict[Path, list[dict[str, Any]]] = {}
    for file, rank, said, one in started:
        is_late = one.poll() is None
        if is_late:
            one.kill()
        code = one.wait()
        rows = worlds_rows.setdefault(file, [])
        rows += [row | {"rank": rank} for row in read_rows(said)]
        rows.append({"event": "end", "rank": rank, "code": "late" if is_late else code})
    return list(worlds_rows.values())


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line; a line that is being written is left out."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().split("\n")[:-1] if line]


class LateError(RuntimeError):
    """What was waited for did not come."""


def wait(condition: Callable[[], object], what: str, seconds: float) -> None:
    seconds *= PATIENCE
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise LateError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.005)


class Gang:
    """The processes of a session, and what their agents would tell them. Each process is a pod of its own."""

    def __init__(self, folder: Path, program: str, settings: dict[str, Any], **variables: str) -> None:
        self.folder = folder / f"gang-{next(_numbers)}"
        self.folder.mkdir()
        self.output = folder
        self.settings, self.variables = settings, variables
        self.idle: dict[int, dict[str, Any]] = {}
        self.idle_at: dict[int, float] = {}
        self.generation = 0
        self.members: list[subprocess.Popen[bytes]] = []
        self._program = program
        self._all: list[subprocess.Popen[bytes]] = []
        self._stores: list[Any] = []
        self.looks = looks.Looks(None)  # what an agent sees of them
        self.server = control.Server(self._hear)

    def _hear(self, peer: control.Peer, message: control.Message | None) -> None:
        if message is not None and message.get("type") == "idle":
            self.idle_at[peer.pid] = time.time()
            self.idle[peer.pid] = dict(message)
        elif message is not None and message.get("type") == control.LOOK:
            self.looks.answer(peer.pid, message)

    def start(self, size: int) -> None:
        """Start a world of so many."""
        self._begin()
        self.members = [self._spawn(self._place(rank, size)) for rank in range(size)]

    def spare(self, **settings: Any) -> subprocess.Popen[bytes]:
        """Start a process that is in no world yet."""
        return self._spawn(None, **settings)

    def _spawn(self, place: Place | None, **settings: Any) -> subprocess.Popen[bytes]:
        variables = {env.CONTROL: str(self.server.path), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        variables |= {"FOLDER": str(self.folder), "SETTINGS": json.dumps(self.settings | settings)}
        variables |= TORCHRUN | self.variables | ({} if place is None else place.as_environ())
        one = spawn(self.output, [str(PROGRAMS / self._program)], **variables)
        self._all.append(one)
        return one

    def _begin(self) -> None:
        self.generation += 1
        store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        self._stores.append(store)

    def _place(self, rank: int, size: int) -> Place:
        return Place(self.generation, rank, size, "127.0.0.1", self._stores[-1].port, rank, size, self.generation - 1)

    def _send(self, one: subprocess.Popen[bytes], message: control.Message) -> None:
        for peer in self.server.peers(control.SESSION):
            if peer.pid == one.pid:
                peer.send(message)

    def call_over(self, announced: bool) -> float:
        """Tell the members that their world ends; when that was."""
        now = time.time()
        for one in self.members:
            self._send(one, {"type": "regroup", "generation": self.generation, "announced": announced})
        return now

    def form(self, members: Sequence[subprocess.Popen[bytes]]) -> None:
        """Begin the next world, of these."""
        self.members = list(members)
        self.idle.clear()  # here, because a rank may have noticed a loss before it was told
        self._begin()
        for rank, one in enumerate(self.members):
            self._send(one, self._place(rank, len(self.members)).as_message())

    def await_idle(self, members: Sequence[subprocess.Popen[bytes]], seconds: float = 20.0) -> None:
        def are_idle() -> bool:
            self._check_alive(members)
            return all(one.pid in self.idle for one in members)

        wait(are_idle, "all members to leave their world", seconds)

    def await_step(self, step: int, seconds: float = 30.0) -> None:
        """Until every member has done this step in this generation."""

        def have_done() -> bool:
            self._check_alive(self.members)
            done = {row["pid"] for row in self.steps(self.generation) if row["step"] >= step}
            return all(one.pid in done for one in self.members)

        wait(have_done, f"step {step} in generation {self.generation}", seconds)

    def _check_alive(self, members: Sequence[subprocess.Popen[bytes]]) -> None:
        for one in members:
            if one.poll() is not None:
                raise LateError(f"a process that nobody has killed ended with {one.returncode}")

    def die(self, one: subprocess.Popen[bytes], point: str, seconds: float = 20.0) -> None:
        """Let a member kill itself at a point of its program."""
        new = self.folder / f"die-{one.pid}.new"
        new.write_text(point)
        new.rename(self.folder / f"die-{one.pid}")
        if one in self.members:
            wait(lambda: one.poll() is not None, f"a member to die at {point!r}", seconds)

    def lose(self, one: subprocess.Popen[bytes], point: str) -> dict[str, Any]:
        """A member dies; the others are told, and begin a new world. The seconds from the telling on.

        At the point `stop` it is only paused: nothing but an abort frees the others, and it is killed afterwards.
        """
        if point == "stop":
            self.pause(one)
        else:
            self.die(one, point)
        time.sleep(DETECTION)
        found = self.continue_without(one)
        if one.poll() is None:
            one.kill()
            one.wait()
        return found

    def pause(self, one: subprocess.Popen[bytes], seconds: float = 20.0) -> None:
        """Let a member stop itself in a step."""
        wish = self.folder / f"die-{one.pid}"
        wish.write_text("stop")
        wait(lambda: not wish.exists(), "a member to stop", seconds)

    def continue_without(self, one: subprocess.Popen[bytes]) -> dict[str, Any]:
        self.members = [other for other in self.members if other is not one]
        told = self.call_over(announced=False)
        self.await_idle(self.members)
        idle = max(self.idle_at[other.pid] for other in self.members)
        steps = [self.idle[other.pid]["step"] for other in self.members]
        self.form(self.members)
        self.await_step(max(steps) + 1)
        return {"idle": max(0.0, round(idle - told, 3)), "next": round(self.first_step_at() - told, 3), "steps": steps}

    def change(
        self, joining: Sequence[subprocess.Popen[bytes]], leaving: Sequence[subprocess.Popen[bytes]] = ()
    ) -> float:
        """An announced change: seconds from the announcement until every member has done a step in the new world."""
        wait(lambda: all(self.is_connected(one) for one in joining), "those who join", 40)
        told = self.call_over(announced=True)
        self.await_idle(self.members)
        step = max(self.idle[one.pid]["step"] for one in self.members)
        self.form([*(one for one in self.members if one not in leaving), *joining])
        self.await_step(step + 1)
        return round(self.first_step_at() - told, 3)

    def is_connected(self, one: subprocess.Popen[bytes]) -> bool:
        return any(peer.pid == one.pid for peer in self.server.peers(control.SESSION))

    def first_step_at(self) -> float:
        """When the last member had its first step of this generation on the device."""
        first: dict[int, float] = {}
        for row in self.steps(self.generation):
            first[row["pid"]] = min(row["t"], first.get(row["pid"], row["t"]))
        return max(first.values())

    def rows(self) -> list[dict[str, Any]]:
        found = [row | {"pid": int(file.stem)} for file in self.folder.glob("*.jsonl") for row in read_rows(file)]
        return sorted(found, key=lambda row: row["t"])

    def find(self, event: str) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["event"] == event]

    def steps(self, generation: int | None = None) -> list[dict[str, Any]]:
        rows = self.find("step")
        return rows if generation is None else [row for row in rows if row["generation"] == generation]

    def end(self) -> None:
        for one in self._all:
            if one.poll() is None:
                one.kill()
            one.wait()

    def close(self) -> None:
        self.end()
        self.server.close()


@contextlib.contextmanager
def gang(folder: Path, program: str, settings: dict[str, Any], **variables: str) -> Iterator[Gang]:
    found = Gang(folder, program, settings, **variables)
    try:
        yield found
    finally:
        found.close()
