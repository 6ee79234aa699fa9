"""The operator's hub and its membership rules without Kubernetes, to measure their cost alone.

It reads one JSON object per line from standard input, always the complete state: `{"wanted", "min", "pods": [{"name",
"uid", "index", "phase", "deleting"}]}`. It writes a trace of JSON lines `{"t", "event", ...}`: `listening`, `phase` of
an agent, `regroup`, `world`, and `running` with the hub's counters. The current generation is written to the state file
before it is announced, so a new process continues from it. A pod's token is `<uid>/<name>`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from elasticjob_operator import api
from elasticjob_operator.hub import auth, server
from elasticjob_operator.membership import decide, member_health
from elasticjob_operator.model import observe
from elasticjob_operator.model.containers import PodPhase
from elasticjob_operator.sizing import legal

JOB = ("bench", "job")


async def identify(token: str, address: str) -> auth.Identity | auth.Refusal:
    uid, _, name = token.strip().partition("/")
    return auth.Identity(JOB[0], name, uid, JOB[1])


def make_pod(raw: dict[str, Any], now: float) -> observe.Pod:
    return observe.Pod(
        name=raw["name"],
        uid=raw["uid"],
        job=JOB[1],
        job_uid="bench",
        index=raw["index"],
        phase=PodPhase(raw["phase"]),
        scheduled=0.0,
        started=True,
        deleting=now if raw.get("deleting") else None,
    )


class LocalOperator:
    def __init__(self, trace: Path, state: Path) -> None:
        self.trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.state = state
        self.pods: list[dict[str, Any]] = []
        self.wanted, self.minimum = 0, 1
        self.woken = asyncio.Event()
        self.seen: dict[str, tuple[str, int]] = {}
        self.regrouped, self.ran = -1, -1
        self.world = (
            api.RendezvousStatus.model_validate_json(state.read_text()) if state.exists() else api.RendezvousStatus()
        )

    def write(self, event: str, **values: Any) -> None:
        os.write(self.trace, (json.dumps({"t": time.time(), "event": event, **values}) + "\n").encode())

    async def listen(self) -> None:
        """Read standard input until its end, which ends the process."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            said = json.loads(line)
            self.pods, self.wanted, self.minimum = said["pods"], said["wanted"], said["min"]
            self.woken.set()

    async def run(self, port: int) -> None:
        self.hub = server.Hub(authenticate=identify, wake=lambda _job: self.woken.set())
        self.hub.leader = True
        self.write("listening", port=await self.hub.start("127.0.0.1", port))
        work = asyncio.create_task(self.follow())
        await self.listen()
        work.cancel()
        await self.hub.stop()

    async def follow(self) -> None:
        while True:
            self.woken.clear()
            wake_at = self.step(time.time())
            timeout = None if wake_at is None else max(0.001, wake_at - time.time())
            try:
                await asyncio.wait_for(self.woken.wait(), timeout)
            except TimeoutError:
                continue

    def step(self, now: float) -> float | None:
        """One pass: observe, decide, persist, announce."""
        agents = self.hub.agents(JOB)
        for uid, agent in agents.items():
            where = (str(agent.state.phase), agent.state.generation)
            if self.seen.get(uid) != where:
                self.seen[uid] = where
                self.write("phase", pod=agent.pod, phase=where[0], generation=where[1])
        decision = decide.decide(self.situation(agents, now))
        if decision.state is decide.State.REGROUPING and self.regrouped < self.world.generation:
            self.regrouped = self.world.generation
            self.write("regroup", generation=self.regrouped, cause=decision.cause)
        if decision.state is decide.State.RUNNING and self.ran < self.world.generation:
            self.ran = self.world.generation
            self.write("running", generation=self.ran, counts=dict(self.hub.counts))
        if decision.world is not None:
            self.world = decision.world
            new = self.state.with_suffix(".new")
            new.write_text(self.world.model_dump_json(by_alias=True, exclude_none=True))
            new.replace(self.state)
            self.write("world", generation=self.world.generation, size=len(self.world.members))
        self.hub.direct(JOB, decision.directives)
        return decision.wake_at

    def situation(self, agents: Any, now: float) -> member_health.Situation:
        pods = [make_pod(raw, now) for raw in self.pods]
        live = [pod for pod in pods if pod.live]
        surplus = {pod.uid for pod in sorted(live, key=lambda pod: pod.index)[self.wanted :]}
        workers = tuple(
            member_health.Worker(
                pod,
                agents.get(pod.uid),
                leaving="scale-down" if pod.uid in surplus else self.notice(agents.get(pod.uid)),
            )
            for pod in pods
        )
        return member_health.Situation(
            world=self.world,
            workers=workers,
            sizes=legal.Sizes(min=self.minimum, wanted=self.wanted),
            now=now,
            hub_started=self.hub.started_at,
            missing=max(0, self.wanted - len(live)),
        )

    def notice(self, agent: observe.Agent | None) -> str:
        """The reason why an agent leaves: after SIGTERM it asks to leave."""
        return "asked to leave" if agent is not None and agent.state.phase == "leaving" else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    args = parser.parse_args()
    operator = LocalOperator(args.trace, args.state)
    asyncio.run(operator.run(args.port))


if __name__ == "__main__":
    main()
