"""Runs a script in one world after another on this machine: the agent of `elasticjob verify`.

It speaks the agent's end of the control channel. A session keeps its memory when ranks leave, come or are killed, as in
a pod; a script without one is stopped and started again in the next world.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticjob import env
from elasticjob.channel import control
from elasticjob.channel.place import Place
from elasticjob.launch.fork_server import ForkServer, Process

_POLL = 0.02  # seconds


class WorldFailedError(Exception):
    """The script ended with an error, or took too long."""


class Lines:
    """The JSON lines that the processes of a run append to files of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._lines: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All lines so far, each with the name of the file as `process`."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]  # the last line may not be complete
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            self._lines += [json.loads(line) | {"process": path.stem} for line in whole.splitlines()]
        return self._lines


class Worlds:
    """The worlds of one run. Use it as a context manager: no process outlives it."""

    def __init__(
        self,
        server: ForkServer,
        command: Sequence[str],
        folder: Path,
        count: Callable[[], int],
        timeout: float,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`count` returns the number of steps made; `timeout` is the most seconds without a new one.

        `{dir}` in the command is replaced by a folder below `folder`, where the output goes too.
        """
        self.restarts = 0  # processes that ended with an error after a kill, and were started again
        self._server, self._count, self._timeout = server, count, timeout
        self._command = [one.replace("{dir}", str(folder / "dir")) for one in command]
        self._variables = dict(variables or {})
        self._output = folder / "output"
        self._generation = 0
        self._processes: list[Process] = []  # by rank
        self._idle: set[int] = set()  # pids
        self._stores: list[Any] = []
        self._has_ended = False  # a rank that is no longer here has come to the end of the script
        self._excused = 0  # how many processes may still end with an error
        (folder / "dir").mkdir(parents=True)
        self._control = control.Server(self._on_message)

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill(self._processes)
        self._control.close()

    def _on_message(self, peer: control.Peer, message: control.Message | None) -> None:
        if message is not None and message.get("type") == "idle":
            self._idle.add(peer.pid)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self._processes)

    @property
    def is_ending(self) -> bool:
        """Whether a rank has come to the end of the script. The world should not change any more."""
        return self._has_ended or any(process.poll() == 0 for process in self._processes)

    def start(self, size: int) -> None:
        """The first world, or one that nobody has survived to."""
        self._begin()
        self._processes = [self._spawn(self._place(rank, size)) for rank in range(size)]

    def change(
        self, size: int, *, leave: Collection[int] = (), kill: Collection[int] = (), notice: float | None = None
    ) -> None:
        """The next world has `size` ranks: the others in their order, and new ones where they are too few.

        Ranks that `leave` do so when all have agreed on the last step. Ranks to `kill` get SIGKILL, at once or, with
        `notice`, this many seconds after the change was announced.
        """
        victims = [self._processes[rank] for rank in kill]
        leaving = [self._processes[rank] for rank in leave if rank not in kill]
        staying = [one for one in self._processes if one not in victims and one not in leaving]
        if not staying or not all(process.pid in self._find_sessions() for process in (*staying, *leaving)):
            self._kill(self._processes)
            self.start(size)
            return
        joining = []
        if notice is not None or not victims:
            joining = self._join(size - len(staying))
            self._call_over([*staying, *leaving, *victims], announced=True)
            time.sleep(notice or 0.0)
        if any(one.poll() is None for one in victims):
            self._excused += size  # those that stay may have lost the state, and then nobody gets any
        self._kill(victims)
        if victims:
            self._call_over([*staying, *leaving], announced=False)
        self._wait(lambda: all(self._has_left(one) for one in (*staying, *leaving)), "the ranks to leave their world")
        self._kill(leaving)
        self._form(size, staying, joining)

    def wait_for(self, steps: int) -> bool:
        """Wait until this many steps were made. False if the script ended before, without an error."""
        seen, deadline = -1, time.monotonic() + self._timeout
        while (made := self._count()) < steps:
            if made > seen:
                seen, deadline = made, time.monotonic() + self._timeout
            codes = [process.poll() for process in self._processes]
            if all(code == 0 for code in codes):
                return self._count() >= steps
            failed = [rank for rank, code in enumerate(codes) if code]
            if failed:
                self._excuse([self._processes[rank] for rank in failed])
                self.change(len(codes), kill=failed)
            if time.monotonic() > deadline:
                raise WorldFailedError(f"no new step in {self._timeout:.0f} s")
            time.sleep(_POLL)
        return True

    def _form(self, size: int, staying: Sequence[Process], joining: Sequence[Process]) -> None:
        """A world of those that have not ended, and of new ones unless the script is over."""
        self._excuse([one for one in (*staying, *joining) if one.poll()])
        self._has_ended = self.is_ending
        if self._has_ended:
            self._kill(joining)
        self._processes = [one for one in (*staying, *joining) if one.poll() is None]
        if not self._has_ended:
            self._processes += self._join(size - len(self._processes))
        self._begin()
        for rank, process in enumerate(self._processes):
            self._idle.discard(process.pid)
            self._send(process, self._place(rank, self.size).as_message())

    def _join(self, count: int) -> list[Process]:
        """New processes, which wait for a world."""
        new = [self._spawn(None) for _ in range(count)]
        self._wait(lambda: all(one.poll() is not None or one.pid in self._idle for one in new), "a new rank's session")
        return new

    def _call_over(self, members: Sequence[Process], *, announced: bool) -> None:
        for process in members:
            self._send(process, {"type": "regroup", "generation": self._generation, "announced": announced})

    def _send(self, process: Process, message: control.Message) -> None:
        peer = self._find_sessions().get(process.pid)
        if peer is not None:  # otherwise it has ended
            peer.send(message)

    def _has_left(self, process: Process) -> bool:
        return process.pid in self._idle or process.poll() is not None

    def _excuse(self, failed: Sequence[Process]) -> None:
        """After a kill, a session whose state is lost ends: its agent starts it again. More is an error."""
        self.restarts += len(failed)
        self._excused -= len(failed)
        if self._excused < 0 and failed:
            raise WorldFailedError(f"the script ended with exit code {failed[0].poll()}")

    def _find_sessions(self) -> Mapping[int, control.Peer]:
        return {peer.pid: peer for peer in self._control.peers(control.SESSION)}

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._timeout
        while not condition():
            if time.monotonic() > deadline:
                raise WorldFailedError(f"waited for {what}")
            time.sleep(_POLL)

    def _begin(self) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._generation += 1
        self._stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))

    def _place(self, rank: int, size: int) -> Place:
        port = self._stores[-1].port
        return Place(self._generation, rank, size, "127.0.0.1", port, rank, size, self._generation - 1)

    def _spawn(self, place: Place | None) -> Process:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTICJOB_", "PET_"))}
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", env.GENERATION):
            variables.pop(name, None)
        variables |= {env.CONTROL: str(self._control.path), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        variables |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}
        variables |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} | self._variables
        variables |= {} if place is None else place.as_environ()
        with self._output.open("ab") as output:
            return self._server.start((sys.executable, "-u", *self._command), variables, output, output)

    def _kill(self, processes: Sequence[Process]) -> None:
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in processes:
            process.wait()
        self._server.reap()  # what they have started


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
