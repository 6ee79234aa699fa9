"""torchft: fault tolerance inside the process, the peer of our sessions. `benchmarks.peers` installs it.

Each replica is one `torchrun` with one process, and all meet at a lighthouse, like in torchft's own example. Two
settings:

- `defaults`: the lighthouse as started in its documentation.
- `tuned`: a replica counts as dead after one second without a heartbeat instead of five (heartbeats are sent every 0.1
  s, and the authors recommend one second), the lighthouse checks every 10 ms, and replicas retry a lost lighthouse ten
  times.

torchft has no message for leaving: a leaving replica just falls silent. A replica meets the others only at its next
step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from benchmarks import launchers, peers
from benchmarks.launchers.nodes import Nodes
from benchmarks.launchers.torchrun import find_port, wait_for_port

SCRIPT = launchers.ROOT / "benchmarks" / "scripts" / "torchft_loop.py"
DOCUMENTED = ("--min_replicas=1", "--quorum_tick_ms=100", "--join_timeout_ms=10000")
TUNED = ("--min_replicas=1", "--quorum_tick_ms=10", "--join_timeout_ms=10000", "--heartbeat_timeout_ms=1000")
LACKS = {"SIGKILL outside a collective": "replicas synchronize only at their next step, which takes minutes here"}


@dataclass
class Torchft(Nodes):
    """See the module."""

    name: str = "torchft defaults"
    options: tuple[str, ...] = DOCUMENTED
    retries: int = 0

    def open(self, job: launchers.Job, wanted: int) -> None:
        super().open(replace(job, script=SCRIPT), wanted)
        self.port = find_port("127.0.0.1")
        self.start_lighthouse()
        self.agents_port = self.find_way("127.0.0.1", self.port)

    def start_lighthouse(self) -> None:
        command = [str(peers.BIN / "torchft_lighthouse"), f"--bind=127.0.0.1:{self.port}", *self.options]
        self.start_keeper(command, launchers.base_environment())
        wait_for_port("127.0.0.1", self.port)

    def start_agent(self, node: int) -> float:
        host = launchers.address(node)
        env = launchers.base_environment() | {
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.agents_port}",
            "TORCHFT_QUORUM_RETRIES": str(self.retries),
            "REPLICA_GROUP_ID": str(node),
        }
        command = [
            *(str(peers.BIN / "python"), "-m", "torch.distributed.run"),
            *("--nnodes=1", "--nproc-per-node=1", "--max-restarts=100"),
            *(f"--master-addr={host}", f"--master-port={find_port(host)}"),
            *self.job.command(node),
        ]
        began = time.time()
        self.start_node(node, command, env)
        return began

    def lose_coordinator(self) -> float | None:
        """Kill the lighthouse, and start another one a second later: its state does not matter."""
        assert self.keeper is not None
        began = time.time()
        self.keeper.close()
        time.sleep(1)
        self.start_lighthouse()
        return began


def defaults() -> Torchft:
    return Torchft()


def tuned() -> Torchft:
    return Torchft(name="torchft tuned", options=TUNED, retries=10)
