"""The agent of `elasticjob-run`: torch's own, with warm starts.

What makes the pod a member of the job is the rendezvous handler, the same as under `torchrun`; this class adds what
torch's agent must do differently with its processes.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from elasticjob import warm
from elasticjob.handler import ElasticJobRendezvous


class ElasticJobAgent(LocalElasticAgent):
    """Watches the workers of one pod."""

    def __init__(self, *args: Any, nursery: warm.Nursery, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._nursery = nursery
        handler = self.get_worker_group().spec.rdzv_handler
        if isinstance(handler, ElasticJobRendezvous):
            handler.prepare = nursery.await_imports

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with warm.serve_torch(self._nursery):
            started: dict[int, Any] = super()._start_workers(worker_group)
        handler = worker_group.spec.rdzv_handler
        if isinstance(handler, ElasticJobRendezvous):
            handler.catch_sigterm()
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state == WorkerState.HEALTHY:
            self._nursery.reap()
        return result
