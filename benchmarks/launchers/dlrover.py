"""DLRover: `dlrover-run` in each node, without Kubernetes. `benchmarks.peers` installs it.

The nodes meet at DLRover's own master, started with `--platform local`: the rendezvous of a real job, but nothing that
creates pods or reports lost ones to the master. Two settings:

- `defaults`: a rendezvous waits 60 s for late nodes unless all have arrived.
- `tuned`: it waits 1 s. The agents poll for its result every 5 s, which cannot be configured.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks import launchers, peers
from benchmarks.launchers.nodes import Nodes
from benchmarks.launchers.torchrun import find_port, wait_for_port

AGENT = launchers.ROOT / "benchmarks" / "scripts" / "dlrover_agent.py"


@dataclass
class Dlrover(Nodes):
    """See the module."""

    name: str = "dlrover-run defaults"
    conf: tuple[str, ...] = ()

    def open(self, job: launchers.Job, wanted: int) -> None:
        super().open(job, wanted)
        self.port = find_port("127.0.0.1")
        command = [
            *(str(peers.BIN / "python"), "-m", "dlrover.python.master.main", "--platform=local"),
            *("--job_name=bench", f"--node_num={job.maximum}", f"--port={self.port}"),
        ]
        self.start_keeper(command, launchers.base_environment())
        wait_for_port("127.0.0.1", self.port)
        self.port = self.find_way("127.0.0.1", self.port)

    def start_agent(self, node: int) -> float:
        env = launchers.base_environment() | {
            "DLROVER_MASTER_ADDR": f"127.0.0.1:{self.port}",
            "NODE_ID": str(node),
            "NODE_RANK": str(node),
            "NODE_NUM": str(self.job.maximum),
            "POD_IP": launchers.address(node),
            "JOB_NAME": f"bench-{self.port}-{node}",  # part of socket names in /tmp, which real nodes do not share
        }
        command = [
            *(str(peers.BIN / "python"), str(AGENT)),
            *(f"--nnodes=1:{self.job.maximum}", "--nproc-per-node=1", "--max-restarts=100"),
            *([f"--rdzv-conf={','.join(self.conf)}"] if self.conf else []),
            *self.job.command(node),
        ]
        began = time.time()
        self.start_node(node, command, env)
        return began


def defaults() -> Dlrover:
    return Dlrover()


def tuned() -> Dlrover:
    return Dlrover(name="dlrover-run tuned", conf=("lastcall_timeout=1",))
