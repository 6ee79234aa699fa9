"""Many jobs that need a pass at the same time do not occupy the event loop in one piece."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from controller import loop_turns
from controller.api_fixture import answering
from controller.counted_work import count_calls
from elasticjob_operator.api import names
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.apply.apply import Outcome
from elasticjob_operator.apply.refused_writes import RefusedWrites
from elasticjob_operator.failures import health_watch
from elasticjob_operator.history import faulty_nodes
from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.plan import Config, Plan, Seen, plan
from elasticjob_operator.pool import capacity
from elasticjob_operator.run import controller as controllers
from elasticjob_operator.run.controller import Controller
from elasticjob_operator.run.node_memory import NodeMarks, NodeTaint
from elasticjob_operator.run.operator import Operator
from elasticjob_operator.run.options import Options

pytestmark = pytest.mark.timeout(60)
JOBS = 300


def job_of(number: int, namespace: str = "t") -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": f"j{number}", "namespace": namespace, "uid": f"u{number}", "resourceVersion": "5"},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "w", "image": "i"}]}}},
    }


class Nothing:
    """Carries out no plan, so that only the passes compute."""

    def __init__(self, recorder: Any) -> None:
        self.served, self.recorder = Served(), recorder
        self.new_pods = SimpleNamespace(altered=dict[str, str](), given_up=dict[str, None]())
        self.refused, self.undeleted = RefusedWrites(), RefusedWrites()

    async def close(self) -> None:
        await self.recorder.close()

    def wait_until(self, job: Job, made: Plan, now: float) -> float:
        return now

    async def apply(self, *plan: object) -> Outcome:
        return Outcome()


async def test_others_have_the_loop_while_many_jobs_are_planned(tmp_path: Path) -> None:
    """The loop sends heartbeats and renews the Lease in between, however many jobs a tenant wakes at once."""
    turn, planned = 0, list[int]()

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": []})

    def count() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count)

    async with answering(answer, tmp_path) as api:
        parts = Operator(Options(), api)
        for number in range(JOBS):
            parts.cache.put_job(job_of(number))
        api.leadership.lend(math.inf)
        applier: Any = Nothing(parts.applier.recorder)
        controller = Controller(
            *(api, parts.cache, parts.hub, applier, parts.controller.config),
            parallel=2 * JOBS + 2,
            find_pool_decision=lambda key: planned.append(turn),
        )
        asyncio.get_running_loop().call_soon(count)
        controller.start()
        async with asyncio.timeout(50):
            while len(planned) < JOBS:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.001)
        await controller.stop()
    assert max(Counter(planned).values()) < JOBS / 2, "for 10 ms at a time"


class Slow:
    """A function that computes for longer than one turn. Counts where it is called: in the event loop, in threads."""

    def __init__(self, work: Callable[..., object]) -> None:
        self._work = work
        self.in_loop = self.in_threads = 0
        self.pieces = 0  # of work in the loop, with turns of others in between

    def __call__(self, *args: Any, **options: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            self.in_loop += 1
            time.sleep(0.011)
        else:
            self.in_threads += 1
        return self._work(*args, **options)

    async def watch(self) -> None:
        """Runs beside it, until it is cancelled."""
        before = 0
        while True:
            self.pieces += self.in_loop > before
            before = self.in_loop
            await asyncio.sleep(0)


async def answer_empty(request: web.Request) -> web.StreamResponse:
    return web.json_response({"items": []})


def pod_of(number: int, job: int, namespace: str = "t", says: str = "") -> dict[str, Any]:
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": f"j{job}", "uid": f"u{job}"}
    labels = {
        names.LABEL_APP: names.LABEL_APP_VALUE,
        names.LABEL_JOB: f"j{job}",
        names.LABEL_JOB_UID: f"u{job}",
        names.LABEL_INDEX: str(number),
    }
    metadata: dict[str, Any] = {"name": names.pod_name(f"j{job}", number), "namespace": namespace}
    metadata |= {"uid": f"p{job}-{number}", "labels": labels, "resourceVersion": "1"}
    metadata |= {"ownerReferences": [{**owner, "controller": True}]}
    ended = {"name": "w", "state": {"terminated": {"exitCode": 1, "message": says}}}
    status = {"phase": "Failed", "containerStatuses": [ended]} if says else {}
    return {"metadata": metadata, "spec": {"nodeName": "n", "containers": [{"name": "w"}]}, "status": status}


async def test_others_have_the_loop_while_the_pool_counts_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(capacity.count_held)
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(pools=(capacity.Pool("rest", "pods"),)), api)
        parts.cache.put_node({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "110"}}})
        for number in range(20):
            raw = job_of(number)
            if not number:
                raw["spec"] |= {"scaling": {"mode": "Goodput"}, "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}}
            parts.cache.put_job(raw)
            parts.cache.put_pod(pod_of(0, number))
        assert sum(parts.cache.count_pods().values()) == 20
        monkeypatch.setattr(capacity, "count_held", slow)
        watch = asyncio.create_task(slow.watch())
        await parts.pool.decide()
        watch.cancel()
    assert slow.in_loop >= 20, "the jobs are counted"
    assert slow.pieces > 15, "others have their turns in between"


async def test_the_faults_of_all_jobs_are_added_up_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(faulty_nodes.find_suspects)
    monkeypatch.setattr(faulty_nodes, "find_suspects", slow)
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)
        fault = {"node": "n", "count": 1, "lastTime": "2026-01-01T00:00:00Z"}
        parts.cache.put_job({**job_of(0), "status": {"nodeFaults": [fault]}})
        await NodeMarks(api, parts.cache, [NodeTaint()]).renew(time.time())
    assert (slow.in_loop, slow.in_threads) == (0, 1)


async def run_pass(tmp_path: Path, slow: Slow, pods: int, says: str = "") -> None:
    """Run a job with so many pods, each of which ends with these words, until the slow function has been called."""
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)
        parts.cache.put_job(job_of(0))
        for number in range(pods):
            parts.cache.put_pod(pod_of(number, 0, says=says))
        api.leadership.lend(math.inf)
        applier: Any = Nothing(parts.applier.recorder)
        controller = Controller(api, parts.cache, parts.hub, applier, parts.controller.config)
        controller.start()
        async with asyncio.timeout(50):
            while not slow.in_loop + slow.in_threads:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.001)
        await controller.stop()


@pytest.mark.parametrize(
    ("pods", "says", "in_loop"),
    [
        pytest.param(1, "", True, id="one pod"),
        pytest.param(600, "", False, id="many pods"),
        pytest.param(60, "\n" * 4096, False, id="some pods that end with much to read"),
    ],
)
async def test_a_large_job_is_planned_in_a_thread(
    pods: int, says: str, in_loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(plan)
    monkeypatch.setattr(controllers, "plan", slow)
    await run_pass(tmp_path, slow, pods, says)
    assert (bool(slow.in_loop), bool(slow.in_threads)) == (in_loop, not in_loop)


@pytest.mark.parametrize(("pods", "in_loop"), [(1, True), (600, False)])
async def test_what_many_ranks_report_is_judged_in_a_thread(
    pods: int, in_loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen rules about each of thousands of ranks take a second."""
    slow = Slow(health_watch.look)
    monkeypatch.setattr(health_watch, "look", slow)
    await run_pass(tmp_path, slow, pods)
    assert (bool(slow.in_loop), bool(slow.in_threads)) == (in_loop, not in_loop)


async def test_the_large_jobs_of_one_namespace_leave_a_thread_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every job is a large one here. One tenant has many, and each of their plans takes for ever."""
    may_end, planned = threading.Event(), threading.Event()

    def compute(seen: Seen, config: Config) -> Plan:
        if seen.job.namespace == "greedy":
            may_end.wait(50)
        else:
            planned.set()
        return plan(seen, config)

    monkeypatch.setattr(controllers, "plan", compute)
    monkeypatch.setattr(controllers, "MOST_IN_LOOP", 0)
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)
        for number in range(100):
            parts.cache.put_job(job_of(number, "greedy"))
            parts.cache.put_pod(pod_of(0, number, "greedy"))
        parts.cache.put_job(job_of(100, "modest"))
        parts.cache.put_pod(pod_of(0, 100, "modest"))
        api.leadership.lend(math.inf)
        applier: Any = Nothing(parts.applier.recorder)
        controller = Controller(api, parts.cache, parts.hub, applier, parts.controller.config)
        controller.start()
        try:
            async with asyncio.timeout(20):
                while not planned.is_set():  # noqa: ASYNC110 - set in a thread
                    await asyncio.sleep(0.001)
        finally:
            may_end.set()
            await controller.stop()


async def test_a_job_waits_for_no_more_than_a_pass_of_another_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tenant has many jobs, each of which always needs a pass."""
    planned: list[str] = []

    def compute(seen: Seen, config: Config) -> Plan:
        planned.append(seen.job.namespace)
        return replace(plan(seen, config), wake_at=0.0 if seen.job.namespace == "greedy" else None)

    monkeypatch.setattr(controllers, "plan", compute)
    monkeypatch.setattr(controllers, "SHORTEST_REST", 0.0)
    monkeypatch.setattr(controllers, "LONGEST_REST", 0.0)
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)
        for number in range(100):
            parts.cache.put_job(job_of(number, "greedy"))
        api.leadership.lend(math.inf)
        applier: Any = Nothing(parts.applier.recorder)
        controller = Controller(api, parts.cache, parts.hub, applier, parts.controller.config)
        controller.start()
        waited: list[int] = []
        async with asyncio.timeout(50):
            while len(waited) < 10:
                await asyncio.sleep(0.05)
                parts.cache.put_job(job_of(100, "modest"))
                before = len(planned)
                controller.wake(("modest", "j100"))
                while "modest" not in planned[before:]:  # noqa: ASYNC110 - nobody sets an event
                    await asyncio.sleep(0)
                waited.append(planned[before:].index("modest"))
        await controller.stop()
    assert max(waited) <= 3, waited


async def test_others_have_the_loop_while_all_jobs_are_woken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are woken when the operator begins to lead, and when the certificate of the hub is renewed."""
    slow = Slow(Controller.wake)
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)
        for number in range(20):
            parts.cache.put_job(job_of(number))
        api.leadership.lend(math.inf)
        applier: Any = Nothing(parts.applier.recorder)
        controller = Controller(api, parts.cache, parts.hub, applier, parts.controller.config)
        monkeypatch.setattr(controller, "wake", lambda key: slow(controller, key))
        watch = asyncio.create_task(slow.watch())
        controller.start()
        async with asyncio.timeout(50):
            while slow.in_loop < 20:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.001)
        watch.cancel()
        await controller.stop()
    assert slow.pieces > 5, "others have their turns in between"


async def test_a_job_that_changes_all_the_time_does_not_fill_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever may write a job changes it as often as the API server lets him, and what is logged of it each time."""
    passes = 0

    def compute(seen: Seen, config: Config) -> Plan:
        nonlocal passes
        passes += 1
        return replace(plan(seen, config), reason=f"reason {passes}\nforged {'x' * 5_000}", wake_at=0.0)

    monkeypatch.setattr(controllers, "plan", compute)
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)
        parts.cache.put_job(job_of(0))
        api.leadership.lend(math.inf)
        applier: Any = Nothing(parts.applier.recorder)
        controller = Controller(api, parts.cache, parts.hub, applier, parts.controller.config)
        with caplog.at_level("INFO", controllers.logger.name):
            controller.start()
            async with asyncio.timeout(50):
                while passes < 200:  # noqa: ASYNC110 - nobody sets an event
                    await asyncio.sleep(0.001)
            await controller.stop()
    told = [message for message in caplog.messages if "reason " in message]
    assert 20 <= len(told) <= 100
    assert not any("\n" in message or len(message) > 1_100 for message in told)


async def test_a_node_that_has_pods_of_many_jobs_wakes_a_few_of_them_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may create pods names a node, and a job that does not exist, in as many as there is room for."""
    jobs, forgotten = 1_000, set[JobKey]()
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)
        monkeypatch.setattr(parts.metrics, "forget_job", forgotten.add)
        for number in range(jobs):
            parts.cache.put_pod(pod_of(0, number))
        api.leadership.lend(math.inf)
        parts.controller.start()
        before = asyncio.all_tasks()
        parts.cache.put_node({"metadata": {"name": "n"}})
        assert len(asyncio.all_tasks() - before) <= jobs / 5
        async with asyncio.timeout(50):
            while len(forgotten) < jobs:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.001)
        await parts.controller.stop()


class Jobs(dict[JobKey, Any]):
    """Notes in which turns of the event loop it is asked for a job."""

    def __init__(self, turns: loop_turns.Turns, known: dict[JobKey, Any]) -> None:
        super().__init__(known)
        self._turns = turns
        self.at: Counter[int] = Counter()

    def get(self, key: JobKey, default: Any = None) -> Any:
        self.at[self._turns.now] += 1
        return super().get(key, default)


async def test_the_pool_looks_through_many_jobs_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they share it is the first question of each round; a tenant has as many that do not as he likes."""
    async with answering(answer_empty, tmp_path) as api, loop_turns.counted(monkeypatch) as turns:
        parts = Operator(Options(), api)
        for number in range(JOBS):
            parts.cache.put_job(job_of(number))
        jobs = parts.cache.jobs = Jobs(turns, parts.cache.jobs)
        await parts.pool.decide()
        assert jobs.at.total() >= JOBS
        running = asyncio.create_task(parts.pool.run())
        async with asyncio.timeout(50):
            while jobs.at.total() < 2 * JOBS:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert max(jobs.at.values()) <= loop_turns.PIECES


async def test_all_jobs_are_woken_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the operator begins to lead, and when its certificate has changed: to put them in line takes time too."""
    async with answering(answer_empty, tmp_path) as api, loop_turns.counted(monkeypatch) as turns:
        parts, pushed = Operator(Options(), api), Counter[int]()

        def push(owner: JobKey, key: JobKey) -> None:
            pushed[turns.now] += 1
            queue(owner, key)

        queue = parts.controller._order_of_asleep.push
        monkeypatch.setattr(parts.controller._order_of_asleep, "push", push)
        for number in range(JOBS):
            parts.cache.put_job(job_of(number))
        api.leadership.lend(math.inf)
        parts.controller.start()
        async with asyncio.timeout(50):
            while pushed.total() < JOBS:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.001)
        await parts.controller.stop()
    assert max(pushed.values()) <= loop_turns.PIECES


async def test_many_that_are_woken_at_once_let_a_job_of_another_namespace_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of them needs to exist."""
    jobs, woken = 10_000, dict[str, int]()
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)

        def note(key: JobKey) -> None:
            woken.setdefault(key[0], len(asyncio.all_tasks()))

        monkeypatch.setattr(parts.metrics, "forget_job", note)
        api.leadership.lend(math.inf)
        parts.controller.start()
        for number in range(jobs):
            parts.controller.notice(("t", f"j{number}"))
        parts.controller.notice(("other", "j"))
        async with asyncio.timeout(50):
            while "other" not in woken:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.001)
        await parts.controller.stop()
    assert woken["other"] < 0.9 * jobs, "the others slept still"


async def test_jobs_that_are_noticed_before_all_are_woken_are_not_forgotten(tmp_path: Path) -> None:
    """They may be in no cache: they are gone, and have pods."""
    jobs, woken = 300, set[JobKey]()
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)
        parts.controller._on_forget = woken.add
        api.leadership.lend(math.inf)
        parts.controller.start()
        parts.controller.notice_many([("t", f"j{number}") for number in range(jobs)])
        parts.controller.wake_all()
        async with asyncio.timeout(20):
            while len(woken) < jobs:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.001)
        await parts.controller.stop()


@pytest.mark.parametrize("jobs", [pytest.param(1, id="few"), pytest.param(300, id="many")])
async def test_nothing_is_begun_after_the_end(tmp_path: Path, jobs: int) -> None:
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)
        api.leadership.lend(math.inf)
        parts.controller.start()
        await parts.controller.stop()
        before = asyncio.all_tasks()
        parts.controller.notice_many([("t", f"j{number}") for number in range(jobs)])
        parts.controller.wake_all()
        assert asyncio.all_tasks() <= before


async def test_a_node_of_many_jobs_takes_no_long_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may create pods writes the name of a node into as many as he likes."""
    jobs, woken = 1_000, set[JobKey]()
    node: dict[str, Any] = {"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    async with answering(answer_empty, tmp_path) as api:
        parts = Operator(Options(), api)
        monkeypatch.setattr(parts.metrics, "forget_job", woken.add)
        parts.cache.put_node(node)
        for number in range(jobs):
            parts.cache._move(("t", f"j{number}"), "", "n")
        api.leadership.lend(math.inf)
        parts.controller.start()
        node["status"]["conditions"][0]["status"] = "False"
        assert count_calls(lambda: parts.cache.put_node(node)) <= jobs / 2
        async with asyncio.timeout(50):
            while len(woken) < jobs:  # noqa: ASYNC110 - nobody sets an event
                await asyncio.sleep(0.01)
        await parts.controller.stop()
