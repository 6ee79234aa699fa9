"""Ray Train: elastic training with Ray's own worker group instead of torchrun. `benchmarks.peers` installs it.

The head node has Ray's store and scheduler, and the program that asks for the training; no worker runs there. Each
other node is a `ray start` with one CPU, so that one worker fits. The program waits for the nodes that the job begins
with; the group has one to `maximum` workers, and any number of failures is allowed. Two settings:

- `defaults`: the controller polls its workers every 2 s and the size of the cluster every 60 s, and waits 60 s for a
  place for each worker. A node is dead after five checks without an answer, with 3 s between them and 10 s for each.
- `tuned`: every 0.1 s and every second, and 1 s; three checks, with 0.5 s between them and 1 s for each.

What cannot be configured: the controller's view of the cluster is up to 20 s old, so it asks for a place on a lost
node until then, and every change of the world starts all its workers anew. Ray has an announcement, `ray drain-node`,
but the controller waits for its deadline, so a node leaves with a SIGTERM to `ray start`, which takes it out of the
cluster. A node must register within 30 s, or it ends; it is started again then, as a kubelet would do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks import launchers, peers
from benchmarks.launchers.nodes import Nodes
from benchmarks.launchers.torchrun import find_port, wait_for_port

SCRIPT = launchers.ROOT / "benchmarks" / "scripts" / "ray_loop.py"
HEAD = "127.0.0.2"  # Ray replaces 127.0.0.1 by the address of the machine
NODE = (
    *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),  # free ones
    *("--object-store-memory=80000000", "--include-log-monitor=false", "--disable-usage-stats"),
)
SETTINGS = {
    "RAY_agent_register_timeout_ms": "120000",  # on a busy machine a node's agents need more than the default of 30 s
    "SPT_NOENV": "1",  # a process title must not replace the environment, by which a node's processes are found
}
TUNED = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
# Like a kubelet: a node that ends by itself is started again, and one that is asked to end is waited for.
RESTART = """
trap 'asked=1; kill -TERM $node' TERM
until [ "$asked" ]; do "$@" & node=$!; wait $node; done
wait
"""
LACKS = {"bytes": "its nodes and workers also talk to each other, whose share cannot be counted"}


@dataclass
class RayTrain(Nodes):
    """See the module."""

    name: str = "Ray Train defaults"
    settings: tuple[tuple[str, str], ...] = ()
    resize_seconds: int = 60

    def open(self, job: launchers.Job, wanted: int) -> None:
        super().open(job, wanted)
        self.port = find_port(HEAD)
        start = [
            *(str(peers.BIN / "ray"), "start", "--head", f"--node-ip-address={HEAD}", f"--port={self.port}"),
            *(f"--ray-client-server-port={find_port(HEAD)}", f"--temp-dir={job.directory}"),
            *("--num-cpus=0", "--include-dashboard=false", f"--dashboard-port={find_port('127.0.0.1')}", *NODE),
        ]
        program = [str(peers.BIN / "python"), str(SCRIPT), "--out", str(job.steps), *job.arguments]
        env = {
            "BENCH_ADDRESS": f"{HEAD}:{self.port}",
            "BENCH_WORKERS": f"{wanted} {job.maximum}",
            "BENCH_RESIZE_SECONDS": str(self.resize_seconds),
        }
        # Both are the head node: one pod.
        command = ["sh", "-c", f'{" ".join(start)} && exec "$@"', "sh", *program]
        self.start_keeper(command, self.environment() | env)
        wait_for_port(HEAD, self.port)

    def start_agent(self, node: int) -> float:
        command = [
            *("sh", "-c", RESTART, "sh"),
            *(str(peers.BIN / "ray"), "start", "--block", f"--address={HEAD}:{self.port}"),
            *(f"--node-ip-address={launchers.address(node)}", "--num-cpus=1", *NODE),
        ]
        began = time.time()
        self.start_node(node, command, self.environment() | {"BENCH_NODE": str(node)})
        return began

    def environment(self) -> dict[str, str]:
        return launchers.base_environment() | SETTINGS | dict(self.settings)


def defaults() -> RayTrain:
    return RayTrain()


def tuned() -> RayTrain:
    return RayTrain(name="Ray Train tuned", settings=tuple(TUNED.items()), resize_seconds=1)
