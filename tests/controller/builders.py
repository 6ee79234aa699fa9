"""Inputs for tests of the pure modules. A builder rejects states that no cluster could have."""

from __future__ import annotations

from typing import Any

from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.membership.member_health import Settings, Situation, Worker
from elasticjob_operator.model.containers import Exit, PodPhase
from elasticjob_operator.model.observe import Agent, Job, Node, Pod
from elasticjob_operator.sizing.legal import Sizes
from elasticjob_operator.times import format_time

NOW = 1_000_000.0
TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "worker", "image": "train:1", "command": ["torchrun"]}]}}


class ImpossibleError(AssertionError):
    """A test requested an impossible state."""


def refuse_if(condition: object, why: str) -> None:
    if condition:
        raise ImpossibleError(why)


def make_spec(min: int = 2, max: int = 4, *, replicas: int | None = None, **raw: Any) -> api.Spec:
    """A valid spec; further fields as in YAML, with `elasticPolicy` merged into the bounds."""
    elastic = {"minReplicas": min, "maxReplicas": max, **raw.pop("elasticPolicy", {})}
    spec: dict[str, Any] = {"elasticPolicy": elastic, "template": TEMPLATE, **raw}
    if replicas is not None:
        spec["replicas"] = replicas
    return api.parse_spec(spec)


def make_job(spec: api.Spec | None = None, status: api.Status | None = None, **fields: Any) -> Job:
    spec = spec or make_spec()
    status = status or api.Status(template_hash=spec.template_hash)
    fields.setdefault("generation", max(1, status.observed_generation))
    refuse_if(status.observed_generation > fields["generation"], "a status cannot know of a later spec")
    return Job("default", "digits", "job-uid", spec, status, **fields)


def make_pod(index: int = 0, phase: str = "Running", *, attempt: int = 0, **fields: Any) -> Pod:
    """A worker pod. Its UID is `u<index>`, with `attempt` for a later pod of the same name `u<index>.<attempt>`."""
    state = PodPhase(phase)
    unschedulable = fields.get("unschedulable")
    if state is PodPhase.RUNNING:
        fields = {"started": True, **fields}
    if unschedulable is None and fields.get("waiting") != "unscheduled":
        fields = {"node": f"node{index}", "scheduled": NOW - 100, **fields}
    if state is PodPhase.FAILED and "exit" not in fields and not fields.get("reason"):
        fields["exit"] = Exit(1, "Error", "boom")
    if state is PodPhase.SUCCEEDED:
        fields.setdefault("exit", Exit(0, "Completed"))
    refuse_if(unschedulable is not None and fields.get("node"), "an unschedulable pod has no node")
    refuse_if(state is PodPhase.RUNNING and not fields.get("node"), "a running pod is on a node")
    refuse_if(state is PodPhase.RUNNING and fields.get("exit"), "a running trainer has no exit code")
    refuse_if(state is PodPhase.SUCCEEDED and fields["exit"].code, "a pod that succeeded ended with code 0")
    refuse_if(state is PodPhase.PENDING and fields.get("started"), "a pending pod has not started")
    refuse_if(fields.get("lingers") and "exit" not in fields, "only a trainer that has ended is outlived")
    uid = f"u{index}" if not attempt else f"u{index}.{attempt}"
    fields.setdefault("created", NOW - 100)
    refuse_if(
        fields.get("scheduled") is not None and fields["scheduled"] < fields["created"], "scheduled before it was made"
    )
    return Pod(names.pod_name("digits", index), uid, "digits", "job-uid", index, state, **fields)


def make_node(name: str = "node0", **fields: Any) -> Node:
    refuse_if(fields.get("ready", True) and fields.get("not_ready_since") is not None, "a ready node is ready")
    return Node(name, **fields)


def make_agent(index: int = 0, phase: str = "ready", generation: int = 0, *, attempt: int = 0, **fields: Any) -> Agent:
    """An agent; `store` is its port if it is ready."""
    state = AgentPhase(phase)
    port = fields.pop("port", 40000 + index if state is AgentPhase.READY else None)
    lost_by = fields.pop("lost_by", "")
    since = fields.pop("since", NOW - 50)
    state_since = fields.pop("state_since", NOW - 50)
    refuse_if(state is AgentPhase.RUNNING and generation < 1, "worlds are numbered from 1")
    refuse_if(state is AgentPhase.SUCCEEDED and generation < 1, "nobody succeeds outside a world")
    refuse_if(lost_by not in ("", "closed", "silent"), "a connection is closed or silent")
    store = wire.Store(address=f"10.0.0.{index}", port=port) if port else None
    uid = f"u{index}" if not attempt else f"u{index}.{attempt}"
    agent_state = wire.AgentState(
        phase=state, generation=generation, store=store, address=f"10.0.0.{index}", **fields.pop("said", {})
    )
    return Agent(
        pod=names.pod_name("digits", index),
        pod_uid=uid,
        connected=not lost_by,
        since=since,
        state=agent_state,
        lost_by=lost_by,
        state_since=state_since,
        **fields,
    )


def make_world(generation: int = 1, members: tuple[int, ...] = (0, 1), **fields: Any) -> api.RendezvousStatus:
    """A world of the pods with these indices, in rank order."""
    refuse_if(generation and not members, "a world has members")

    return api.RendezvousStatus(
        generation=generation,
        world_size=len(members),
        processes=len(members),
        members=[
            api.Member(pod=names.pod_name("digits", i), uid=f"u{i}", node=f"node{i}", rank=rank, address=f"10.0.0.{i}")
            for rank, i in enumerate(members)
        ],
        store=api.StoreAddress(address=f"10.0.0.{members[0]}", port=40000 + members[0]) if members else None,
        formed_time=fields.pop("formed_time", format_time(NOW - 40)),
        **fields,
    )


def make_situation(
    world: api.RendezvousStatus | None = None,
    workers: tuple[Worker, ...] = (),
    *,
    min: int = 2,
    max: int = 4,
    **fields: Any,
) -> Situation:
    sizes = fields.pop("sizes", Sizes(min, max))
    return Situation(
        world=world or api.RendezvousStatus(),
        workers=workers,
        sizes=sizes,
        now=fields.pop("now", NOW),
        settings=fields.pop("settings", Settings()),
        hub_started=fields.pop("hub_started", NOW - 1000),
        **fields,
    )


def make_worker(index: int, phase: str = "ready", generation: int = 0, **fields: Any) -> Worker:
    """A running pod with an agent in this phase."""
    kept = {k: fields.pop(k) for k in ("leaving", "patient", "replaced", "held_until") if k in fields}
    pod = fields.pop("pod", None) or make_pod(index)
    return Worker(pod, make_agent(index, phase, generation, **fields), **kept)
