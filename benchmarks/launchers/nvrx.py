"""NVIDIA's resiliency extension, in-process restart: survivors call the function again. `benchmarks.peers` installs it.

Each node is one process with a fixed rank, as its guide wants it: a launcher that ends the others must not be above
them. What coordinates is a store in the process of rank 0. Two settings:

- `defaults`: a missing rank is noticed after 30 s without a heartbeat.
- `tuned`: after one second, with all intervals at 100 ms.

It shrinks only: no process can join, neither to grow nor to replace a lost one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from benchmarks import launchers, peers
from benchmarks.launchers.nodes import Nodes
from benchmarks.launchers.torchrun import find_port

SCRIPT = launchers.ROOT / "benchmarks" / "scripts" / "nvrx_loop.py"
NO_JOIN = "in-process restart only shrinks: no process can join"
LACKS = {
    "grow 2 to 3": NO_JOIN,
    "paused node wakes": NO_JOIN,
    "goodput": NO_JOIN,
    "bytes": NO_JOIN,
    "coordinator lost": "its store is in the process of rank 0: see SIGKILL rank 0",
}


@dataclass
class Nvrx(Nodes):
    """See the module."""

    name: str = "NVIDIA in-process restart defaults"
    tuned: bool = False

    def open(self, job: launchers.Job, wanted: int) -> None:
        super().open(replace(job, script=SCRIPT), wanted)
        self.wanted, self.port = wanted, find_port(launchers.address(0))

    def start_agent(self, node: int) -> float:
        env = launchers.base_environment() | {
            "RANK": str(node),
            "WORLD_SIZE": str(self.wanted),
            "MASTER_ADDR": launchers.address(0),
            "MASTER_PORT": str(self.port),
        }
        began = time.time()
        self.start_node(node, [str(peers.BIN / "python"), *self.job.command(node)], env | self.settings())
        return began

    def settings(self) -> dict[str, str]:
        return {"NVRX_TUNED": "1"} if self.tuned else {}


def defaults() -> Nvrx:
    return Nvrx()


def tuned() -> Nvrx:
    return Nvrx(name="NVIDIA in-process restart tuned", tuned=True)
