"""The common part of all peers: nodes that are processes, and optionally a process that hosts the rendezvous."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from benchmarks import launchers
from benchmarks.meter import Meter
from benchmarks.processes import Pod


@dataclass
class Nodes:
    """A launcher without `start_agent`. `keeper` hosts the rendezvous, if that is not a node.

    A `meter` stands between the agents and the keeper.
    """

    name: str
    pods: dict[int, Pod] = field(default_factory=dict)
    keeper: Pod | None = None
    meter: Meter | None = None

    def open(self, job: launchers.Job, wanted: int) -> None:
        self.job = job

    def start_keeper(self, command: list[str], env: dict[str, str]) -> None:
        self.keeper = Pod("keeper", command, env, self.job.directory / "logs" / "keeper.log")

    def find_way(self, host: str, port: int) -> int:
        """The port that the agents use for the keeper's: the meter's, if there is one."""
        return port if self.meter is None else self.meter.forward(host, port)

    def start_node(self, node: int, command: list[str], env: dict[str, str]) -> None:
        self.pods[node] = Pod(f"node-{node}", command, env, self.job.directory / "logs" / f"node-{node}.log")

    def kill(self, node: int, number: signal.Signals) -> float:
        return self.pods[node].signal_all(number)

    def terminate(self, node: int) -> float:
        return self.pods[node].signal_first(signal.SIGTERM)

    def shrink(self, node: int) -> float:
        """These launchers have no announcement: the pod is deleted, which is a SIGTERM."""
        return self.terminate(node)

    def lose_coordinator(self) -> float | None:
        return None if self.keeper is None else self.keeper.signal_all(signal.SIGKILL)

    def is_alive(self) -> bool:
        return any(pod.is_alive() for pod in self.pods.values())

    def is_node_alive(self, node: int) -> bool:
        return self.pods[node].is_alive()

    def moments(self, event: float) -> dict[str, float]:
        return {}

    def close(self) -> None:
        for pod in [*self.pods.values(), *([self.keeper] if self.keeper else [])]:
            pod.close()
