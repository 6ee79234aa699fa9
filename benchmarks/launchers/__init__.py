"""What can run an elastic script: stock torchrun in several settings, and ElasticJob.

A launcher is a small job on one host. A node is one agent with a loopback address of its own; killing it kills
everything below it, as a pod's death does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]
LOOP = ROOT / "benchmarks" / "scripts" / "loop.py"


@dataclass(frozen=True)
class Job:
    """What is launched: the script's arguments may name `{out}`, the node's own log directory."""

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
    """One job under one launcher. `time.time()` of the event is what each fault returns."""

    name: str

    def open(self, job: Job, wanted: int) -> None:
        """Start what is needed before the first agent."""

    def start_agent(self, node: int) -> float:
        """Start a node, or the replacement of one that is gone."""

    def kill(self, node: int, number: signal.Signals) -> float:
        """Signal every process of a node at once."""

    def terminate(self, node: int) -> float:
        """SIGTERM to the agent alone, as a kubelet does."""

    def shrink(self, node: int) -> float:
        """Take a node out as a scale-in does: announced, where the launcher can announce."""

    def lose_coordinator(self) -> float | None:
        """Kill what holds the rendezvous, if that is not a node; None where there is no such thing."""

    def is_alive(self) -> bool:
        """Whether any agent is left."""

    def is_node_alive(self, node: int) -> bool:
        """Whether this node's agent is left."""

    def moments(self, event: float) -> dict[str, float]:
        """What it saw after the event: see `timeline.find_phases`."""

    def close(self) -> None:
        """End everything."""


def address(node: int) -> str:
    """The loopback address of a node."""
    return f"127.0.{1 + node // 200}.{1 + node % 200}"


def base_environment() -> dict[str, str]:
    """The same for every launcher: gloo on the loopback interface, one thread, nothing inherited that matters."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "TORCH", "ELASTICJOB_"))}
    return {**kept, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
