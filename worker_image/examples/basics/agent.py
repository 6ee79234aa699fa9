"""How an elastic agent starts its workers: rendezvous, then ranks, then environment and processes.

`SimpleElasticAgent._initialize_workers` first meets the other agents, then assigns ranks, then starts the processes.
This agent is torch's own `LocalElasticAgent` with a note at each step; `elasticjob-run` has the same base class.
(Alternatives without an agent: torch.multiprocessing on one machine, a Job of fixed size, Slurm's srun.)
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry

WORKERS = 2
SHOWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def worker() -> dict[str, str]:
    """Runs in each process that the agent starts: what it was told."""
    names = [*SHOWN, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"]
    return {name: os.environ.get(name, "") for name in names}


class TalkingAgent(LocalElasticAgent):
    """Torch's agent, and a note at each step of a start."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[str] = []

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self.steps.append("rendezvous")
        super()._rendezvous(worker_group)

    def _assign_worker_ranks(self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec) -> Any:
        self.steps.append("ranks")
        return super()._assign_worker_ranks(store, group_rank, group_world_size, spec)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.steps.append("processes")
        started: dict[int, Any] = super()._start_workers(worker_group)
        return started


def main() -> None:
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint="localhost:0",
        run_id="basics",
        min_nodes=1,
        max_nodes=1,
        is_host=True,
        local_addr="127.0.0.1",
    )
    spec = WorkerSpec(
        role="trainer",
        local_world_size=WORKERS,
        entrypoint=worker,
        args=(),
        rdzv_handler=rendezvous_registry.get_rendezvous_handler(parameters),
        max_restarts=0,
        monitor_interval=0.1,
        master_addr="127.0.0.1",
    )
    with tempfile.TemporaryDirectory() as logs:
        agent = TalkingAgent(spec, DefaultLogsSpecs(log_dir=logs, redirects=Std.NONE))
        result = agent.run()
    told = [result.return_values[rank] for rank in range(WORKERS)]
    print(json.dumps({"state": result.state.name, "steps": agent.steps, "workers": told}), flush=True)


if __name__ == "__main__":
    main()
