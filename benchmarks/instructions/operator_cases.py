"""What the operator does again and again for a job of a thousand pods. No case does I/O."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from elasticjob_operator.api import names, wire
from elasticjob_operator.apply.manifests import common, pods
from elasticjob_operator.hub import auth, connection, frames, limits, registry
from elasticjob_operator.hub.agents import AgentEntry
from elasticjob_operator.kube import cache
from elasticjob_operator.model import observe
from elasticjob_operator.plan.plan import Plan, Seen, plan
from elasticjob_operator.plan.values import NewPod
from elasticjob_operator.rest import json_stream
from elasticjob_operator.times import format_time

Work = Callable[[], object]

PODS: Final = 1000
NOW: Final = 1_800_000_000.0
LONG_AGO: Final = NOW - 1000
JOB: Final = ("default", "digits")
STORE: Final = wire.Store(address="10.0.0.0", port=40_000)
RUNNER: Final = asyncio.Runner()
RAW_JOB: Final[dict[str, Any]] = {
    "metadata": {"namespace": JOB[0], "name": JOB[1], "uid": "job", "creationTimestamp": format_time(LONG_AGO)},
    "spec": {
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": PODS},
        "template": {"spec": {"containers": [{"name": "worker", "image": "train:1", "command": ["torchrun", "t.py"]}]}},
    },
}


def name_uid(index: int) -> str:
    return f"11111111-2222-3333-4444-{index:012}"


# What the API server has.


def build_pods(job: observe.Job) -> list[dict[str, Any]]:
    """The running pods of the job."""
    assert job.spec is not None
    settings, since = common.Settings(hub_url="wss://10.0.0.1:8443"), format_time(LONG_AGO)
    found = []
    for index in range(PODS):
        pod = pods.build_pod(job, job.spec, NewPod(index), settings)
        metadata = {"uid": name_uid(index), "resourceVersion": str(index + 1), "creationTimestamp": since}
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
        trainer = {"name": "worker", "state": {"running": {"startedAt": since}}, "ready": True}
        found.append(
            {
                **pod,
                "metadata": pod["metadata"] | metadata,
                "spec": pod["spec"] | {"nodeName": f"node-{index}"},
                "status": {
                    "phase": "Running",
                    "podIP": "10.0.0.1",
                    "conditions": [condition],
                    "containerStatuses": [trainer],
                },
            }
        )
    return found


# What the operator knows.


def make_agents(phase: wire.AgentPhase, generation: int) -> dict[str, observe.Agent]:
    store = STORE if phase is wire.AgentPhase.READY else None
    state = wire.AgentState(phase=phase, generation=generation, store=store, address="10.0.0.1")
    return {
        uid: observe.Agent(
            names.pod_name(JOB[1], index), uid, connected=True, since=LONG_AGO, state=state, state_since=LONG_AGO
        )
        for index, uid in enumerate(map(name_uid, range(PODS)))
    }


def advance(seen: Seen, made: Plan, **changes: Any) -> Seen:
    """A second after this plan was carried out."""
    return replace(seen, job=replace(seen.job, status=made.status), now=seen.now + 1, **changes)


@functools.cache
def see_ready() -> Seen:
    """All pods are ready for their first world."""
    job = observe.observe_job(RAW_JOB)
    found = tuple(pod for raw in build_pods(job) if (pod := observe.observe_pod(raw)) is not None)
    return Seen(job, found, make_agents(wire.AgentPhase.READY, 0), now=NOW, hub_started=LONG_AGO)


@functools.cache
def see_running() -> Seen:
    """All pods train in one world."""
    ready = see_ready()
    announced = advance(ready, plan(ready), agents=make_agents(wire.AgentPhase.RUNNING, 1))
    seen = advance(announced, plan(announced))
    assert seen.job.status.is_true("Running")
    return seen


def plan_first_world() -> Work:
    see_running()  # plans this once before it is counted
    seen = see_ready()

    def work() -> None:
        made = plan(seen)
        assert made.announces
        assert len(made.directives) == PODS

    return work


def plan_progress() -> Work:
    seen = see_running()
    uid = name_uid(0)
    told = replace(seen.agents[uid], progress=wire.Progress(generation=1, step=100, total_steps=1000))
    seen = replace(seen, agents={**seen.agents, uid: told})

    def work() -> None:
        made = plan(seen)
        assert made.status.progress is not None
        assert made.status.rendezvous == seen.job.status.rendezvous

    work()
    return work


def plan_loss() -> Work:
    seen = see_running()
    lost = name_uid(PODS - 1)
    agents = {uid: agent for uid, agent in seen.agents.items() if uid != lost}
    seen = replace(seen, pods=seen.pods[:-1], agents=agents)

    def work() -> None:
        made = plan(seen)
        assert len(made.create) == 1
        assert {one.action for one in made.directives.values()} == {"regroup"}

    work()
    return work


def read_job() -> Work:
    """Read a job whose status names the members of its world."""
    raw = json.loads(json.dumps(RAW_JOB | {"status": see_running().job.status.dump()}))
    assert len(observe.observe_job(raw).status.rendezvous.members) == PODS
    return lambda: observe.observe_job(raw)


def read_pods() -> Work:
    """Read a list of pods into the cache."""
    items = build_pods(observe.observe_job(RAW_JOB))
    data = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}).encode()

    def work() -> cache.Cache:
        known = cache.Cache(lambda key: None)
        RUNNER.run(json_stream.decode(data, known.put_pod))
        return known

    assert len(work().pods(JOB)) == PODS
    return work


# The hub.


async def connect_agents() -> tuple[registry.AgentRegistry, list[AgentEntry]]:
    """A hub that has the hello of each agent."""
    hub = registry.AgentRegistry(lambda key: None, lambda: NOW, limits.HubSettings())
    hello = wire.Hello(agent="a", state=wire.AgentState(phase=wire.AgentPhase.READY, store=STORE))
    entries = []
    for index in range(PODS):
        identity = auth.Identity(JOB[0], names.pod_name(JOB[1], index), name_uid(index), JOB[1])
        link = hub.admit(identity, heartbeat=2.0)
        assert isinstance(link, connection.Connection)
        hub.settle(link, identity, stays=True)
        entry = hub.enter(link, identity, hello)
        assert entry is not None
        entries.append(entry)
    return hub, entries


def in_loop(work: Work) -> Work:
    """The registry asks the running loop for the time."""

    async def run() -> None:
        work()

    return lambda: RUNNER.run(run())


def receive_progress() -> Work:
    hub, entries = RUNNER.run(connect_agents())
    said = {"v": 1, "type": "progress", "generation": 1, "totalSteps": 1000, "stepSeconds": 0.25, "ownSeconds": 0.2}
    texts = [json.dumps({**said, "step": 100 + index, "metrics": {"loss": 0.5}}) for index in range(PODS)]

    def receive() -> None:
        for entry, text in zip(entries, texts, strict=True):
            message = frames.decode(text)
            assert isinstance(message, wire.Progress)
            hub.receive(entry, message, len(text))

    work = in_loop(receive)
    work()
    return work


def make_worlds(generation: int) -> Mapping[str, wire.Directive]:
    members = tuple(wire.Member(pod=names.pod_name(JOB[1], i), rank=i, address="10.0.0.1") for i in range(PODS))
    return {name_uid(i): wire.World(generation=generation, rank=i, members=members, store=STORE) for i in range(PODS)}


def broadcast_world() -> Work:
    """Find out whom to send a new world, and encode the frame of each agent."""
    hub, entries = RUNNER.run(connect_agents())

    def broadcast(worlds: Mapping[str, wire.Directive]) -> None:
        hub.direct(JOB, worlds)
        for entry in entries:
            assert entry.wanted is not None
            entry.job.encoder.encode(entry.wanted, sizes=True)

    in_loop(functools.partial(broadcast, make_worlds(1)))()
    return in_loop(functools.partial(broadcast, make_worlds(2)))


def sweep() -> Work:
    """Look for agents that have been silent for too long: there are none."""
    hub, entries = RUNNER.run(connect_agents())
    work = in_loop(lambda: hub.sweep(3.0, 0.0))
    work()
    assert len(hub) == len(entries)
    return work


CASES: Final[Mapping[str, Callable[[], Work]]] = {
    "plan: form the first world of 1,000 pods": plan_first_world,
    "plan: one of 1,000 pods reports progress": plan_progress,
    "plan: one of 1,000 pods is lost": plan_loss,
    "read a job with a world of 1,000 pods": read_job,
    "read a list of 1,000 pods": read_pods,
    "hub: receive progress from 1,000 agents": receive_progress,
    "hub: direct 1,000 agents into a world": broadcast_world,
    "hub: look for silence among 1,000 agents": sweep,
}
