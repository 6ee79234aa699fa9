"""Runs a script in one world after another on this machine: the agent of `elasticjob verify`.

It speaks the agent's end of the control channel. A session keeps its memory when a rank is killed, as in a pod; a
script without one is stopped and started again in the next world.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticjob import env
from elasticjob.channel import control
from elasticjob.channel.place import Place

_POLL = 0.02  # seconds


class WorldFailedError(Exception):
    """The script ended with an error, or took too long."""


class Worlds:
    """The worlds of one run. Use it as a context manager: no process outlives it."""

    def __init__(self, command: Sequence[str], folder: Path, timeout: float) -> None:
        """`timeout` is the most seconds without a new step."""
        self._command = [one.replace("{dir}", str(folder / "dir")) for one in command]
        self._folder, self._timeout = folder, timeout
        self._generation = 0
        self._processes: list[subprocess.Popen[bytes]] = []  # by rank
        self._idle: set[int] = set()  # pids
        self._stores: list[Any] = []
        (folder / "dir").mkdir(parents=True)
        (folder / "trace").mkdir()
        self._server = control.Server(self._on_message)

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill(self._processes)
        self._server.close()

    def _on_message(self, peer: control.Peer, message: control.Message | None) -> None:
        if message is not None and message.get("type") == "idle":
            self._idle.add(peer.pid)

    def start(self, size: int) -> None:
        """The first world."""
        self._begin(size)
        self._processes = [self._spawn(self._place(rank, size)) for rank in range(size)]

    def kill(self, victim: int, size: int) -> None:
        """Kill a rank; the next world has `size` ranks: survivors, and new ones where they are fewer."""
        lost = self._processes.pop(victim)
        self._kill([lost])
        sessions = {peer.pid: peer for peer in self._server.peers(control.SESSION)}
        if not all(process.pid in sessions for process in self._processes):
            self._kill(self._processes)
            self.start(size)
            return
        for process in self._processes:
            sessions[process.pid].send({"type": "regroup", "generation": self._generation, "announced": False})
        self._wait(lambda: all(one.pid in self._idle for one in self._processes), "the survivors to leave their world")
        self._idle.clear()
        self._kill(self._processes[size:])
        del self._processes[size:]
        new = [self._spawn(None) for _ in range(size - len(self._processes))]
        self._processes += new
        self._wait(lambda: all(one.pid in self._find_sessions() for one in new), "a new rank to make its session")
        self._begin(size)
        for rank, process in enumerate(self._processes):
            self._find_sessions()[process.pid].send(self._place(rank, size).as_message())

    def wait_for(self, steps: int) -> bool:
        """Wait until this many steps were made. False if the script ended before, without an error."""
        seen, deadline = -1, time.monotonic() + self._timeout
        while True:
            made = count_steps(read_lines(self._folder))
            if made >= steps:
                return True
            if made > seen:
                seen, deadline = made, time.monotonic() + self._timeout
            ended = [process.poll() for process in self._processes]
            if any(code for code in ended):
                raise WorldFailedError(f"the script ended with exit code {next(code for code in ended if code)}")
            if all(code == 0 for code in ended):
                return False
            if time.monotonic() > deadline:
                raise WorldFailedError(f"no new step in {self._timeout:.0f} s")
            time.sleep(_POLL)

    def _find_sessions(self) -> Mapping[int, control.Peer]:
        return {peer.pid: peer for peer in self._server.peers(control.SESSION)}

    def _wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + self._timeout
        while not condition():
            failed = next((one.returncode for one in self._processes if one.poll()), None)
            if failed is not None or time.monotonic() > deadline:
                raise WorldFailedError(f"waited for {what}" + (f", and one ended with {failed}" if failed else ""))
            time.sleep(_POLL)

    def _begin(self, size: int) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._generation += 1
        self._stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))

    def _place(self, rank: int, size: int) -> Place:
        port = self._stores[-1].port
        return Place(self._generation, rank, size, "127.0.0.1", port, rank, size, self._generation - 1)

    def _spawn(self, place: Place | None) -> subprocess.Popen[bytes]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTICJOB_", "PET_"))}
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", env.GENERATION):
            variables.pop(name, None)
        variables |= {env.CONTROL: str(self._server.path), env.TRACE: str(self._folder / "trace"), "LOCAL_RANK": "0"}
        variables |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}
        variables |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "LOCAL_WORLD_SIZE": "1"}
        variables |= {} if place is None else place.as_environ()
        with (self._folder / "output").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *self._command],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @staticmethod
    def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in processes:
            process.wait()


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """All lines of a run's trace, with the process that wrote them."""
    lines = []
    for path in sorted((folder / "trace").glob("*.jsonl")):
        for text in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # half a line of a killed process
                lines.append(json.loads(text) | {"process": path.stem})
    return lines


def count_steps(lines: Sequence[Mapping[str, Any]]) -> int:
    """The number of different steps that some process has completed, or at least reported."""
    traced = {tuple(line["step"]) for line in lines if "buffers" in line}
    return len(traced or {line["step"] for line in lines if "reported" in line})


def plan_kills(seed: int, size: int, steps: int, kills: int) -> list[tuple[int, int, int]]:
    """When to kill which rank, and the size of the next world: (step, rank, size). Pure."""
    chance, plan, now = random.Random(seed), [], size  # noqa: S311 - it chooses victims
    for number in range(kills):
        step = (number + 1) * steps // (kills + 1)
        after = max(1, now - 1) if number % 2 == 0 else size
        plan.append((step, chance.randrange(now), after))
        now = after
    return plan
