"""A job is deleted while a replica leads: what is deleted with it, against a server that has the objects."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.api_fixture import answering
from controller.apply.test_deletions import POD, POLICY, Server
from controller.kube.test_cache import KEY, raw_child, raw_job, raw_pod
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.apply.apply import Outcome
from elasticjob_operator.apply.refused_writes import RefusedWrites
from elasticjob_operator.model.observe import Job, Pod
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.plan import Plan
from elasticjob_operator.run.controller import Controller
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(60)


@contextlib.asynccontextmanager
async def leading(server: Server, directory: Path) -> AsyncIterator[Operator]:
    """A replica that leads and has seen a job with one pod; its watches do not run."""
    async with answering(server.answer, directory) as api:
        operator = Operator(Options(), api)
        operator.cache.put_pod(raw_pod())
        operator.cache.put_child("NetworkPolicy", raw_child())
        api.leadership.lend(math.inf)
        operator.controller.start()
        try:
            yield operator
        finally:
            await operator.controller.stop()


async def until_deleted(server: Server, *paths: str) -> None:
    async with asyncio.timeout(20):
        while any(path in server.objects for path in paths):  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.01)


async def test_a_deletion_is_followed_by_that_of_all_it_owned(tmp_path: Path) -> None:
    server = Server((POD, raw_pod()), (POLICY, raw_child()))
    async with leading(server, tmp_path) as operator:
        operator.cache.apply_job("DELETED", raw_job())
        await until_deleted(server, POD, POLICY)
        assert [one for one in server.asked if one.startswith("DELETE")] == [
            "DELETE digits-worker-0",
            "DELETE digits-workers",
        ]


async def test_the_policy_waits_for_the_end_of_a_pod(tmp_path: Path) -> None:
    server = Server((POD, raw_pod()), (POLICY, raw_child()), grace=30)
    async with leading(server, tmp_path) as operator:
        operator.cache.apply_job("DELETED", raw_job())
        async with asyncio.timeout(20):
            while operator.cache.pods(KEY)[0].deleting is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert server.asked == ["DELETE digits-worker-0"]
        server.grace = 0
        operator.cache.apply_pod("DELETED", raw_pod())
        await until_deleted(server, POLICY)


async def test_a_job_of_the_same_name_does_not_keep_the_old_pods(tmp_path: Path) -> None:
    server = Server((POD, raw_pod()))
    async with leading(server, tmp_path) as operator:
        operator.cache.apply_job("DELETED", raw_job())
        operator.cache.put_job(raw_job("job-2", "40"))
        await until_deleted(server, POD)


class Queue:
    """It is asked to forget a job, which takes until `go`."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    def keys(self) -> tuple[JobKey, ...]:
        return ()

    def see(self, job: Job, pods: Sequence[Pod]) -> None:
        return None

    async def settle(self, job: Job, pods: Sequence[Pod], made: Plan, now: float) -> None:
        return None

    async def forget(self, key: JobKey, pods: Sequence[Pod]) -> None:
        self.asked.set()
        await self.go.wait()


class SlowApplier:
    """Notes how many plans it carries out at once."""

    def __init__(self, recorder: Any) -> None:
        self.served, self.recorder = Served(), recorder
        self.new_pods = SimpleNamespace(altered=dict[str, str](), given_up=dict[str, None]())
        self.refused, self.undeleted = RefusedWrites(), RefusedWrites()
        self.begun, self.now, self.most = asyncio.Event(), 0, 0

    async def close(self) -> None:
        await self.recorder.close()

    def wait_until(self, job: Job, made: Plan, now: float) -> float:
        return now

    async def apply(self, *plan: object) -> Outcome:
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.set()
        for _ in range(200):
            await asyncio.sleep(0)
        self.now -= 1
        return Outcome()


async def test_one_that_is_made_again_while_the_first_is_forgotten_has_one_pass_at_a_time(tmp_path: Path) -> None:
    async with answering(Server().answer, tmp_path) as api:
        parts, queue = Operator(Options(), api), Queue()
        applier: Any = SlowApplier(parts.applier.recorder)
        controller = Controller(
            *(api, parts.cache, parts.hub, applier, parts.controller.config),
            queue=queue,
        )
        api.leadership.lend(math.inf)
        controller.start()
        controller.wake(KEY)
        async with asyncio.timeout(20):
            await queue.asked.wait()
            parts.cache.put_job(raw_job("job-2", "40"))
            controller.wake(KEY)
            queue.go.set()
            await applier.begun.wait()
            for _ in range(100):
                controller.wake(KEY)
                await asyncio.sleep(0)
        await controller.stop()
    assert applier.most == 1
