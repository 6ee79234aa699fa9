"""Stock `torchrun` with its c10d rendezvous, as people use it today, in three settings.

- `defaults`: only `--max-restarts` is set, which is 0 on the command line and would end the job at the first failure.
- `tuned`: the best known settings that stay correct: no shared store (sharing it makes scale-up fail), last call and
  keep-alive at one second, three attempts (with two, a busy machine splits the world).
- `tuned, external store`: the same, with the rendezvous store in a separate process, outside the workers.
"""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import dataclass, field

from benchmarks import launchers
from benchmarks.launchers.nodes import Nodes

TUNED = {"last_call_timeout": "1", "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}
STORE = (
    "import sys, time, torch.distributed as d;"
    "s = d.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False); time.sleep(1e6)"
)


def find_port(host: str) -> int:
    """A free port on this address."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def wait_for_port(host: str, port: int, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


@dataclass
class Torchrun(Nodes):
    """See the module. Node 0 holds the store unless it is external."""

    name: str = "torchrun defaults"
    conf: dict[str, str] = field(default_factory=dict)
    share_store: bool = True
    external: bool = False

    def open(self, job: launchers.Job, wanted: int) -> None:
        super().open(job, wanted)
        self.host = launchers.address(0)
        self.port = find_port(self.host)
        if self.external:
            command = [sys.executable, "-c", STORE, self.host, str(self.port)]
            self.start_keeper(command, launchers.base_environment())
            wait_for_port(self.host, self.port)
            self.port = self.find_way(self.host, self.port)

    def start_agent(self, node: int) -> float:
        is_host = "1" if node == 0 and not self.external else "0"
        conf = {**self.conf, "is_host": is_host}
        env = launchers.base_environment()
        if not self.share_store:
            env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--nnodes=1:{self.job.maximum}", "--nproc-per-node=1", "--max-restarts=100"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={self.host}:{self.port}", "--rdzv-id=bench"),
            "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in conf.items()),
            f"--local-addr={launchers.address(node)}",
            *self.job.command(node),
        ]
        began = time.time()
        self.start_node(node, command, env)
        return began


def defaults() -> Torchrun:
    return Torchrun()


def tuned() -> Torchrun:
    return Torchrun(name="torchrun tuned", conf=TUNED, share_store=False)


def external() -> Torchrun:
    return Torchrun(name="torchrun tuned, external store", conf=TUNED, share_store=False, external=True)
