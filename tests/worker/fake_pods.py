"""Pods as local processes for tests of the runtime, each with its own address, token and agent.

A pod is started with only the environment that the operator would set. Killing it kills all its processes, like the end
of a container. Nothing outlives the `Pods` context manager.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import psutil

from worker import warm_pods

ROOT = Path(__file__).resolve().parents[2]
STEPS = ROOT / "worker_image" / "examples" / "steps.py"
BIN = Path(sys.executable).parent

_parts = itertools.count()


class Pod:
    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes] | warm_pods.WarmProcess,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.process = process
        self.log_file = log
        self.environment = environment
        self._agent: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):
            # With its start time: the number may be another process's one day.
            self._agent = psutil.Process(process.pid)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def tree(self) -> list[psutil.Process]:
        """All processes of the pod, the agent last."""
        if self._agent is None:
            return []
        try:
            return [*self._agent.children(recursive=True), self._agent]
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        return self.tree()[:-1]

    def last_worker(self) -> psutil.Process:
        """The youngest child of the agent itself: a standby may have children of its own."""
        assert self._agent is not None
        return max(self._agent.children(), key=lambda process: process.create_time())

    def signal_all(self, number: signal.Signals) -> None:
        for process in self.tree():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def pause(self) -> None:
        """Stop every process of the pod, and return when all of them stand; `resume` lets them go on.

        A process stops when its main thread gets a processor, which may be after the signal has been sent. Until then
        its other threads run: the agent's would notice a broken connection, and open another one, before they stop.
        """
        deadline = time.monotonic() + 30
        self.signal_all(signal.SIGSTOP)
        while not all(state in "TtZX" for process in self.tree() for state in thread_states(process.pid)):
            assert time.monotonic() < deadline, f"{self.name} still runs after SIGSTOP"
            time.sleep(0.005)
            self.signal_all(signal.SIGSTOP)  # also what was started meanwhile

    def resume(self) -> None:
        self.signal_all(signal.SIGCONT)

    def signal_worker(self, pid: int, number: signal.Signals) -> None:
        """Signal one process of this pod; ignores ended ones."""
        for process in self.workers():
            if process.pid == pid:
                process.send_signal(number)

    def kill(self) -> None:
        """End the container: kill every process at once."""
        self.signal_all(signal.SIGKILL)
        self.process.wait(30)

    def terminate(self) -> None:
        """Send SIGTERM to the container's first process, like the kubelet."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = 60.0) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {timeout} s; its log:\n{self.log[-6000:]}") from None


def thread_states(pid: int) -> list[str]:
    """The state of each thread, as in /proc: R or S if it runs, T if it stands, Z or X if it has ended."""
    found = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            found.append(stat.read_text().rpartition(")")[2].split()[0])
    return found


class Pods:
    """Starts pods and ends them all. `warm` forks them from a process that has made their imports already.

    `header`: a program that this process has run before it forks them, for its imports.
    """

    def __init__(
        self,
        folder: Path,
        hub_url: str | None,
        subnet: int | None = None,
        warm: bool = True,
        header: Path | None = None,
    ) -> None:
        self.folder = folder
        self.hub_url = hub_url
        self.warm = warm
        self._header = header
        self.pods: dict[str, Pod] = {}
        self._numbers = itertools.count(2)
        # A subnet of one's own, so that tests that run side by side do not meet, in other processes or in this one.
        self._subnet = os.getpid() % 250 + 1 if subnet is None else subnet
        self._part = next(_parts) % 250

    def __enter__(self) -> Pods:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self.pods.values():
            pod.signal_all(signal.SIGKILL)
        for pod in self.pods.values():
            pod.process.wait(30)

    def environment(self, name: str) -> dict[str, str]:
        """The environment that the operator sets in the trainer container."""
        token = self.folder / f"{name}.token"
        token.write_text(f"token-{name}\n")
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PET_", "ELASTICJOB_", "TORCHELASTIC_"))
        }
        number = next(self._numbers)
        env |= {
            "PATH": f"{BIN}:{env.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",
            "PET_NNODES": "1:64",
            "PET_NPROC_PER_NODE": "1",
            "PET_RDZV_ID": "job",
            "PET_RDZV_ENDPOINT": "",
            "PET_MONITOR_INTERVAL": "0.05",
            "ELASTICJOB_POD_IP": f"127.{self._subnet}.{self._part}.{number}",
            "ELASTICJOB_POD_NAME": name,
            "ELASTICJOB_POD_UID": f"{os.getpid()}-{id(self):x}-{number}",
            "ELASTICJOB_TOKEN_FILE": str(token),
            "ELASTICJOB_GRACEFUL_SHUTDOWN_SECONDS": "20",
            "PET_RDZV_BACKEND": "elasticjob",
        }
        if self.hub_url is not None:
            env["ELASTICJOB_HUB_URL"] = self.hub_url
        return env

    def start(
        self, name: str, *command: str, env: dict[str, str | None] | None = None, launcher: str = "torchrun"
    ) -> Pod:
        environment = self.environment(name)
        for key, value in (env or {}).items():
            if value is None:
                environment.pop(key, None)
            else:
                environment[key] = value
        log = self.folder / f"{name}-{len(self.pods)}.log"
        with log.open("wb") as output:
            process = self._start([str(BIN / launcher), *command], environment, env or {}, output)
        pod = Pod(name, process, log, environment)
        self.pods[f"{name}/{process.pid}"] = pod
        return pod

    def _start(
        self, command: list[str], env: dict[str, str], given: Mapping[str, str | None], output: IO[bytes]
    ) -> subprocess.Popen[bytes] | warm_pods.WarmProcess:
        ours = Path(command[0]).parent == BIN  # a script of another environment needs that one's interpreter
        if self.warm and ours and warm_pods.is_possible(given):
            return warm_pods.shared("agent", self._header).start(command, env, self.folder, output, output)
        return subprocess.Popen(
            command,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            start_new_session=True,
        )


class Steps:
    """Reads the output of steps.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}  # bytes of each file
        self._lines: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All lines so far, by their time; one that is not whole yet is read later."""
        for path in self.folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole = b"".join(line for line in file if line.endswith(b"\n"))
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError):  # that of a killed process, and the first one of the next
                    self._lines.append(json.loads(line))
        self._lines.sort(key=lambda line: float(line["t"]))
        return [*self._lines]

    def wait(self, condition: Callable[[list[dict[str, Any]]], bool], timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition(self.read()):
            assert time.monotonic() < deadline, f"no such steps in {timeout} s: {self.read()[-5:]}"
            time.sleep(0.05)

    def wait_for_world(self, world: int, generation: int, timeout: float = 60.0) -> float:
        """Wait until every rank of the generation has made a step; the time of the last rank's first one."""

        def first_steps(lines: list[dict[str, Any]]) -> dict[int, float]:
            found: dict[int, float] = {}
            for line in lines:
                if line["world"] == world and line["generation"] == generation:
                    found.setdefault(line["rank"], line["t"])
            return found

        self.wait(lambda lines: len(first_steps(lines)) == world, timeout)
        return max(first_steps(self.read()).values())
