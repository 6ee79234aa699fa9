"""A pass over a job of twice as many pods makes twice as many steps, whatever has happened to the pods.

Five thousand pods may fail, end, go or come in one second. A loop within a loop makes 25 million steps of that, in
which no other job is served. The steps are counted in lines, so that the speed of a machine does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from controller.builders import NOW, make_agent, make_job, make_node, make_pod, make_spec, make_world
from controller.counted_work import count_lines
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.model.containers import Exit
from elasticjob_operator.model.observe import Agent, Node, Pod
from elasticjob_operator.plan.plan import Seen, plan
from elasticjob_operator.times import format_time

PODS = 120
MORE = 2.4  # so many times the steps may twice the pods cost
FAILURE = {"generation": 1, "rank": 0, "exitCode": 1, "message": "ValueError: x", "traceback": "ValueError: x"}


@dataclass(frozen=True, slots=True)
class Large:
    """A job of `count` pods that runs in a world of `members`."""

    count: int
    backend: str = ""

    def see(
        self,
        pods: tuple[Pod, ...] = (),
        agents: Mapping[str, Agent] | None = None,
        *,
        members: int | None = None,
        nodes: Mapping[str, Node] | None = None,
        wanted: int | None = None,
        spec: Mapping[str, Any] | None = None,
        world: api.RendezvousStatus | None = None,
        **status: Any,
    ) -> Seen:
        raw = {**({"rendezvous": {"backend": self.backend}} if self.backend else {}), **(spec or {})}
        made = make_spec(1, self.count, replicas=self.count if wanted is None else wanted, **raw)
        size = self.count if members is None else members
        running = api.Condition(type="Running", status="True", last_transition_time=format_time(NOW - 300))
        known = api.Status(
            template_hash=made.template_hash,
            start_time=format_time(NOW - 500),
            rendezvous=world or (make_world(1, tuple(range(size))) if size else api.RendezvousStatus()),
            observed_generation=1,
            conditions=[running] if size else [],
            **status,
        )
        on = self.nodes() if nodes is None else nodes
        return Seen(
            job=make_job(made, known), pods=pods, agents=agents or {}, nodes=on, now=NOW, hub_started=NOW - 1000
        )

    def pods(self, phase: str = "Running", first: int = 0, **fields: Any) -> tuple[Pod, ...]:
        return tuple(make_pod(index, phase, **fields) for index in range(first, self.count))

    def agents(self, phase: str = "running", generation: int = 1, first: int = 0, **fields: Any) -> dict[str, Agent]:
        return {f"u{i}": make_agent(i, phase, generation, **fields) for i in range(first, self.count)}

    def nodes(self, **fields: Any) -> dict[str, Node]:
        return {f"node{index}": make_node(f"node{index}", **fields) for index in range(self.count)}

    @property
    def half(self) -> int:
        return self.count // 2


def fail_by(message: str, **fields: Any) -> dict[str, Any]:
    return {"exit": Exit(1, "Error", message), **fields}


def finish(seen: Seen) -> Seen:
    failed = api.Condition(type="Failed", status="True", reason="x", last_transition_time=format_time(NOW - 1))
    ended = {"phase": api.Phase.FAILED, "conditions": [failed], "completion_time": format_time(NOW - 1)}
    return replace(seen, job=replace(seen.job, status=seen.job.status.model_copy(update=ended)))


def report(index: int) -> wire.Progress:
    return wire.Progress(
        v=1, type="progress", generation=1, rank=index, step=5, total_steps=99, step_seconds=1.0, own_seconds=1.0
    )


WAITING: dict[str, Any] = {"node": "", "scheduled": None, "unschedulable": NOW - 50, "unschedulable_message": "no room"}
CASES: Mapping[str, Callable[[Large], Seen]] = {
    "none yet": lambda job: job.see(members=0),
    "no room": lambda job: job.see(job.pods("Pending", **WAITING), members=0),
    "ready": lambda job: job.see(job.pods(), job.agents("ready", 0), members=0),
    "running": lambda job: job.see(job.pods(), job.agents()),
    "no agents": lambda job: job.see(job.pods()),
    "all failed": lambda job: job.see(job.pods("Failed")),
    "all workers failed": lambda job: job.see(job.pods(), job.agents("failed", said={"failure": FAILURE})),
    "all pods succeeded": lambda job: job.see(job.pods("Succeeded")),
    "all agents succeeded": lambda job: job.see(job.pods(), job.agents("succeeded")),
    "all gone": lambda job: job.see(),
    "just finished": lambda job: finish(job.see(job.pods(), job.agents())),
    "half gone": lambda job: job.see(job.pods(first=job.half), job.agents(first=job.half)),
    "joiners": lambda job: job.see(job.pods(), job.agents() | job.agents("ready", 0, job.half), members=job.half),
    "joiners without room": lambda job: job.see(
        job.pods()[: job.half] + job.pods("Pending", job.half, **WAITING), job.agents(), members=job.half
    ),
    "all counted": lambda job: job.see(
        job.pods("Failed"), restarts=api.RestartStatus(counted=[f"u{i}" for i in range(job.count)], generation=1)
    ),
    "all deleted": lambda job: job.see(job.pods(deleting=NOW + 20), job.agents()),
    "overdue": lambda job: job.see(
        job.pods(deleting=NOW - 900), nodes=job.nodes(ready=False, not_ready_since=NOW - 999)
    ),
    "nodes lost": lambda job: job.see(
        job.pods(), job.agents(), nodes=job.nodes(ready=False, not_ready_since=NOW - 100)
    ),
    "nodes leave": lambda job: job.see(job.pods(), job.agents(), nodes=job.nodes(leaving="x")),
    "nodes unfit": lambda job: job.see(job.pods("Failed", **fail_by("preflight: GPU 0 is broken")), members=0),
    "evicted": lambda job: job.see(job.pods("Failed", **fail_by("", reason="Evicted", disruption="Evicted"))),
    "lost before": lambda job: job.see(
        job.pods(),
        job.agents(),
        world=make_world(
            2,
            tuple(range(job.half)),
            lost=[api.LostMember(uid=f"u{i}", rank=i, generation=1) for i in range(job.half, job.count)],
        ),
    ),
    "an older template": lambda job: job.see(
        tuple(replace(pod, template_hash="a", template_shape="b") for pod in job.pods()), job.agents()
    ),
    "one is wanted": lambda job: job.see(job.pods(), job.agents(), wanted=1),
    "suspended": lambda job: job.see(job.pods(), job.agents(), spec={"runPolicy": {"suspend": True}}),
    "suspended with stopped workers": lambda job: job.see(
        job.pods(), job.agents("ready"), spec={"runPolicy": {"suspend": True}}
    ),
    "reports": lambda job: job.see(
        job.pods(), {f"u{i}": make_agent(i, "running", 1, progress=report(i)) for i in range(job.count)}
    ),
    "silent": lambda job: job.see(job.pods(), job.agents(lost_by="silent")),
    "closed": lambda job: job.see(job.pods(), job.agents(lost_by="closed")),
}


@pytest.mark.parametrize("backend", ["", "c10d"], ids=["operator", "c10d"])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
def test_twice_the_pods_cost_twice_the_steps(make: Callable[[Large], Seen], backend: str) -> None:
    small, large = (make(Large(PODS * times, backend)) for times in (1, 2))
    plan(small)  # what is only computed once
    few, many = count_lines(lambda: plan(small)), count_lines(lambda: plan(large))
    assert many <= MORE * few, f"{few} lines for {PODS} pods, {many} for twice as many"
