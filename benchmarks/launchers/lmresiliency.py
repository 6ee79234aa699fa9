"""LMResiliency: `torchrun` with a rendezvous whose world has a fixed size. `benchmarks.peers` installs it.

The first `min` nodes are the world, all others stand by. A new world begins only when a manager publishes a plan for
it: the same nodes, or a standby in the place of one. The package has the functions for that, but not the program:
what notices a lost node, and when, is left to whoever writes it. So it takes part in what needs no manager. The store
is a separate process, where such a manager would have it. Two settings:

- `defaults`: the agents look at the store every 250 ms, and a heartbeat is due every 3.3 s.
- `tuned`: every 20 ms, and every third of a second.
"""

from __future__ import annotations

import sys
import time
import uuid
from dataclasses import dataclass, field

from benchmarks import launchers, peers
from benchmarks.launchers.nodes import Nodes
from benchmarks.launchers.torchrun import STORE, find_port, wait_for_port

AGENT = launchers.ROOT / "benchmarks" / "scripts" / "lmresiliency_agent.py"
FIXED = "its world has a fixed size: it neither grows nor shrinks"
NO_MANAGER = "a standby takes the place of a lost node when a manager says so, which the package does not have"
LACKS = {
    "grow 2 to 3": FIXED,
    "shrink 3 to 2, announced": FIXED,
    "SIGKILL follower": f"{FIXED}, and {NO_MANAGER}",
    "SIGKILL rank 0": f"{FIXED}, and {NO_MANAGER}",
    "SIGTERM": f"{FIXED}, and {NO_MANAGER}",
    "SIGKILL outside a collective": f"{FIXED}, and {NO_MANAGER}",
    "node paused": f"{FIXED}, and {NO_MANAGER}",
    "paused node wakes": f"{FIXED}, and {NO_MANAGER}",
    "goodput": NO_MANAGER,
    "bytes": FIXED,
}
TUNED = {"lm_resiliency_poll_interval_ms": "20", "lm_resiliency_heartbeat_timeout_ms": "1000"}


@dataclass
class LmResiliency(Nodes):
    """See the module."""

    name: str = "LMResiliency defaults"
    conf: dict[str, str] = field(default_factory=dict)

    def open(self, job: launchers.Job, wanted: int) -> None:
        super().open(job, wanted)
        self.wanted, self.port = wanted, find_port("127.0.0.1")
        self.start_keeper([sys.executable, "-c", STORE, "127.0.0.1", str(self.port)], launchers.base_environment())
        wait_for_port("127.0.0.1", self.port)

    def start_agent(self, node: int) -> float:
        machine = self.job.directory / f"machine-{node}"
        machine.write_text(uuid.uuid4().hex)
        private = self.job.directory / f"context-{node}"
        private.mkdir(mode=0o700, exist_ok=True)
        conf = {"is_host": "0", "lm_resiliency_restart_context_path": str(private / "context.json"), **self.conf}
        command = [
            *(str(peers.BIN / "python"), str(AGENT)),
            *(f"--nnodes={self.wanted}:{self.job.maximum}", "--nproc-per-node=1", "--max-restarts=100"),
            *("--rdzv-backend=lm_resiliency", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=bench"),
            "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in conf.items()),
            f"--local-addr={launchers.address(node)}",
            *self.job.command(node),
        ]
        began = time.time()
        self.start_node(node, command, launchers.base_environment() | {"LM_RESILIENCY_MACHINE_ID_PATH": str(machine)})
        return began


def defaults() -> LmResiliency:
    return LmResiliency()


def tuned() -> LmResiliency:
    return LmResiliency(name="LMResiliency tuned", conf=TUNED)
