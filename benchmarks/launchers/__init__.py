"""The launchers that can run an elastic script: stock torchrun in several settings, its peers, and ElasticJob.

A launcher is a small job on one host. A node is one agent with its own loopback address; killing it kills all processes
below it, like the death of a pod.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from benchmarks.meter import Meter

ROOT = Path(__file__).resolve().parents[2]
LOOP = ROOT / "benchmarks" / "scripts" / "loop.py"


@dataclass(frozen=True)
class Job:
    """The job to launch: the script's arguments may contain `{out}`, the node's own log directory."""

    directory: Path
    maximum: int
    script: Path = LOOP
    arguments: Sequence[str] = ()

    @property
    def steps(self) -> Path:
        return self.directory / "steps"

    def command(self, node: int | str) -> list[str]:
        return [str(self.script), "--out", str(self.steps / str(node)), *self.arguments]


class Launcher(Protocol):
    """One job under one launcher. Each fault returns the `time.time()` of its event."""

    name: str
    meter: Meter | None

    def open(self, job: Job, wanted: int) -> None:
        """Start what is needed before the first agent."""

    def start_agent(self, node: int) -> float:
        """Start a node, or the replacement of a lost one."""

    def kill(self, node: int, number: signal.Signals) -> float:
        """Signal every process of a node at once."""

    def terminate(self, node: int) -> float:
        """Send SIGTERM to the agent alone, like a kubelet."""

    def shrink(self, node: int) -> float:
        """Remove a node as in a scale-in: announced, if the launcher can announce it."""

    def lose_coordinator(self) -> float | None:
        """Kill the process that hosts the rendezvous, if it is not a node; None if there is none."""

    def is_alive(self) -> bool:
        """Whether any agent is left."""

    def is_node_alive(self, node: int) -> bool:
        """Whether this node's agent is left."""

    def moments(self, event: float) -> dict[str, float]:
        """The observed events after `event`: see `timeline.find_phases`."""

    def close(self) -> None:
        """Stop everything."""


def address(node: int) -> str:
    """The loopback address of a node."""
    return f"127.0.{1 + node // 200}.{1 + node % 200}"


def base_environment() -> dict[str, str]:
    """The same for every launcher: gloo on the loopback interface, one thread, no inherited settings."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "TORCH", "ELASTICJOB_"))}
    return {**kept, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def run_script(name: str, *options: str, cwd: Path = ROOT, timeout: float = 300) -> list[Any]:
    """Run a script of benchmarks/scripts; return what it prints, an object a line. Raises RuntimeError if it fails."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "scripts" / name), *options],
        env=base_environment(),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} {' '.join(options)}: {done.stderr.strip()[-600:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]
