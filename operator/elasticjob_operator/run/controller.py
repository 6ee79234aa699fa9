"""Reconciles each job in one pass at a time: observe → plan → apply, woken by every change.

Events coalesce: a job that is woken during its pass gets one more pass afterwards. Errors are retried with back-off.
Between passes, only the API server's latest rejection of a write is remembered.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace

from elasticjob_operator import text, turn
from elasticjob_operator.api import names
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.apply import deletions, refusals
from elasticjob_operator.apply.apply import LONGEST_ASKED, Applier, Outcome
from elasticjob_operator.backoff import find_pause, spread
from elasticjob_operator.failures import health_watch
from elasticjob_operator.hub import server as hubs
from elasticjob_operator.integrations.queue import Queue
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.fair_queue import Slots, Turns
from elasticjob_operator.kube.reduced_jobs import reduce_item
from elasticjob_operator.kube.threads import Threads
from elasticjob_operator.membership import directives
from elasticjob_operator.model import claims, contests, sent_jobs
from elasticjob_operator.model.claims import Judgement, Verdict
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan import beginning
from elasticjob_operator.plan.plan import Config, Plan, Seen, plan
from elasticjob_operator.plan.reporting import Event
from elasticjob_operator.plan.values import first
from elasticjob_operator.ratelimit import Bucket
from elasticjob_operator.rest.errors import BUSY, ApiError, without_frames
from elasticjob_operator.rest.request import path_of
from elasticjob_operator.run.news import JobNews, News
from elasticjob_operator.run.node_memory import NodeMemory
from elasticjob_operator.run.others import Others
from elasticjob_operator.run.overdue_pods import OverduePods
from elasticjob_operator.run.quiet_pods import EventLists, QuietPods
from elasticjob_operator.sizing.values import PoolDecision
from elasticjob_operator.templates import taking

logger = logging.getLogger(__name__)

HELD_SECONDS = 5.0  # until the next try where a pod's name was taken by one that goes; later, as long as it was so ...
MOST_HELD_SECONDS = 60.0  # ... but no longer: a finalizer may keep it
CONTEST_SECONDS = 600.0  # between two events about writers who fight about the size of a job
TROUBLE_SECONDS = 8.0  # an error that lasts longer is told
REFUSED_SECONDS = 1.0  # until the second try of what the API server refuses; it doubles with each
SHORTEST_PAUSE = 0.1  # after an error
BUSY_SECONDS = 0.5  # of a server that is too busy for a job, and answers nobody: then one looks whether it would
LINES_AT_ONCE, LINES_PER_SECOND = 50.0, 0.2  # about one job in the log
TOLD_SECONDS = 2.0  # until a job that may not tell its news looks whether it may
MOST_BEGUN = 100  # jobs whose tasks are made in one turn of the event loop
MOST_IN_LOOP = 500  # the weight of a job that is planned in the event loop
SHORTEST_REST, LONGEST_REST = 0.005, 0.25  # seconds between two passes of one job
FindTemplate = Callable[[Job], Awaitable[taking.Found | taking.Refusal | None]]
PassObserver = Callable[[Job, Plan, float], None]  # as it was before, the plan and the seconds that the pass took


@dataclass(slots=True)
class _Loop:
    """The state kept between the passes of one job."""

    dirty: bool = False
    woken: float = 0.0  # since when the job needs a pass (monotonic)
    running: bool = False
    failures: int = 0
    timer: asyncio.TimerHandle | None = None
    problem: tuple[str, str] | None = None
    is_blocked: bool = False  # the problem is one of pods, or of what they need
    problem_generation: int = 0
    refused_on: int | None = None  # the hash of the state for which the API server rejected a write ...
    again_at: float = 0.0  # ... and when it is retried (monotonic)
    is_held: bool = False  # the last pass did not write what was refused before
    undeleted: tuple[str, str] | None = None  # what is told of deletions that the API server refuses
    keeps: bool = False  # the last pass did not try them
    tries_one: bool = False  # the last new pods were refused: next time, one tries for all
    reason: str = ""
    lines: Bucket = field(default_factory=lambda: Bucket(LINES_AT_ONCE, time.monotonic()))  # of the log
    news: JobNews = field(default_factory=JobNews)
    began: float = 0.0  # when the last pass began (monotonic)
    planning: float = 0.0  # seconds that the last plan took
    unresized: tuple[str, str] = ("", "")  # see `Seen`
    held_since: float | None = None  # since when the name of a pod has been taken by one that goes
    quiet: QuietPods = field(default_factory=QuietPods)
    troubled_since: float | None = None  # since when every pass has ended with an error (monotonic) ...
    last_trouble: tuple[str, str] | None = None  # ... what would be told of it ...
    trouble: tuple[str, str] | None = None  # ... and what is told
    is_troubled_by_extra: bool = False  # the last error was about what the job can do without
    last_error: ApiError | None = None
    unanswered_at: float = math.inf  # when it was noted that the last request got no answer; inf if it got one
    busy_since: float | None = None  # since when the API server has been too busy for a write of this job (monotonic)
    busy_until: float = 0.0  # until when it is not asked for more ...
    kept_until: float = 0.0  # ... and to delete any
    unsettled_until: float = 0.0  # until when no quota is asked for or given back (monotonic), ...
    is_unsettled: bool = False  # ... which the last pass has not done
    overdue: OverduePods = field(default_factory=OverduePods)
    sizes: contests.History = ()  # that spec.replicas has had
    health: health_watch.Memory = field(default_factory=dict)  # what the reports say about the job's rules
    contest_at: float = 0.0  # when writers who fight about them are told again (monotonic)
    sent: sent_jobs.Sent | None = None  # where its queue has sent it, and with which spec

    def watch(self, seen: Seen) -> Seen:
        """With what the reports have said so far about the rules of the job."""
        if seen.job.spec is not None:
            self.health = health_watch.look(self.health, seen.job.spec, seen.job.status, seen.agents, seen.now)
        return replace(seen, health=self.health)


class Controller:
    """Runs the passes of all jobs. Does nothing until `start`."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        hub: hubs.Hub,
        applier: Applier,
        config: Config,
        *,
        clock: Callable[[], float] | None = None,
        parallel: int = 64,
        observer: PassObserver = lambda job, plan, seconds: None,
        find_pool_decision: Callable[[JobKey], PoolDecision | None] = lambda key: None,
        on_forget: Callable[[JobKey], None] = lambda key: None,
        on_error: Callable[[], None] = lambda: None,
        on_wait: Callable[[float], None] = lambda seconds: None,
        queue: Queue | None = None,
        find_template: FindTemplate | None = None,
        others: Others | None = None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._hub = hub
        self._applier = applier
        self.config = config
        self._clock = clock or api.clock
        self._slots = Slots(parallel, share=(parallel + 1) // 2)
        self._loops: dict[JobKey, _Loop] = {}
        self._order = Slots(1)
        self._threads = Threads("plan")
        self._tasks: set[asyncio.Task[None]] = set()
        self._all: tuple[JobKey, ...] = ()  # those that are to join ...
        self._asleep: set[JobKey] = set()  # ... those that are still to be woken ...
        self._order_of_asleep: Turns[JobKey] = Turns()  # ... of which namespaces have one in turn
        self._waking: asyncio.Task[None] | None = None
        self._begun = 0  # tasks of jobs in this turn of the event loop
        self._active = False
        self.observer = observer
        self._find_pool_decision = find_pool_decision
        self._on_forget = on_forget
        self._queue = queue
        self._find_template = find_template
        self._others = Others() if others is None else others
        self._faulty_nodes = NodeMemory(cache)
        self._news = News()
        self._event_lists = EventLists()
        self._on_error = on_error  # called when a pass fails, by a bug or an API error
        self._on_wait = on_wait  # called with the seconds between a wake-up and its pass

    def start(self) -> None:
        """Start reconciling; every known job gets a pass. Raises RuntimeError if this replica is not the leader."""
        if not self._api.leadership.is_held:
            raise RuntimeError("only the leader may start the controller")
        self._active = True
        self.wake_all()

    def wake_all(self) -> None:
        """Reconcile every job, and those that are gone and may hold quota still."""
        if not self._active:
            return
        known = (*self._cache.jobs, *(self._queue.keys() if self._queue is not None else ()))
        self._all = tuple(dict.fromkeys((*self._all, *known)))
        self._wake_soon()

    def _let_sleep(self, key: JobKey) -> None:
        """Wake this job when others have had the loop."""
        if not self._active:
            return
        if key not in self._asleep:
            self._asleep.add(key)
            self._order_of_asleep.push(key, key)
        self._wake_soon()

    def _wake_soon(self) -> None:
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake_asleep())
            self._tasks.add(self._waking)
            self._waking.add_done_callback(self._tasks.discard)

    async def _wake_asleep(self) -> None:
        """Ten thousand jobs are ten thousand tasks: others have the loop in between, and take turns by namespace."""
        while self._all or self._asleep:
            keys, self._all = self._all, ()
            async for key in turn.one_by_one(keys):
                self._let_sleep(key)
            if (found := self._order_of_asleep.pop(lambda _: True)) is not None:
                self._asleep.discard(found[1])
                self.wake(found[1])
                await turn.pause()

    async def stop(self) -> None:
        self._active, self._all = False, ()
        self._asleep.clear()
        self._order_of_asleep = Turns()
        for loop in self._loops.values():
            if loop.timer is not None:
                loop.timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.close()
        await self._applier.close()

    def notice(self, key: JobKey) -> None:
        """Something about this job may have changed: wake it, at once unless many have been woken in this turn.

        What changes may concern as many jobs as tenants like: a node does.
        """
        is_running = key in self._loops and self._loops[key].running
        if self._begun < MOST_BEGUN or is_running:
            self.wake(key)
        else:
            self._let_sleep(key)

    def notice_many(self, keys: Collection[JobKey]) -> None:
        """The same of these jobs. Of very many, even to note each takes long."""
        if not self._active:
            return
        if len(keys) <= MOST_BEGUN:
            for key in keys:
                self.notice(key)
        else:
            self._all = (*self._all, *keys)
            self._wake_soon()

    def wake(self, key: JobKey) -> None:
        """Reconcile this job soon."""
        if not self._active:
            return
        loop = self._loops.setdefault(key, _Loop())
        if not loop.dirty:
            loop.dirty, loop.woken = True, time.monotonic()
        if not loop.running:
            loop.running = True
            task = asyncio.create_task(self._work(key, loop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if not self._begun:
                asyncio.get_running_loop().call_soon(self._forget_begun)
            self._begun += 1

    def _forget_begun(self) -> None:
        self._begun = 0

    async def _work(self, key: JobKey, loop: _Loop) -> None:
        try:
            while loop.dirty and self._active:
                loop.dirty, since = False, loop.woken
                await self._slots.acquire(key)
                self._on_wait(time.monotonic() - since)
                try:
                    await self._order.acquire(key)  # jobs that are woken together let others have the loop in between
                    try:
                        await turn.pause()
                    finally:
                        self._order.release(key)
                    await self._try_pass(key, loop)
                finally:
                    self._slots.release(key)
                # The first event is handled at once, further ones together. A large job rests for as long as planning
                # takes, so that a thousand events of a thousand pods do not cost a million steps.
                await asyncio.sleep(max(SHORTEST_REST, min(LONGEST_REST, loop.planning)))
        finally:
            loop.running = False

    async def _try_pass(self, key: JobKey, loop: _Loop) -> None:
        if loop.timer is not None:
            loop.timer.cancel()
            loop.timer = None
        if not self._api.leadership.is_held:  # leadership is uncertain, or lost and the process is about to end
            self._wake_later(key, loop, self._backoff(loop))
            return
        try:
            wake_at = await self._pass(key, loop)
        except ApiError as error:
            await self._recover(key, loop, error)
        except Exception:
            self._on_error()
            logger.exception("%s/%s: reconciling failed; this is a bug", *key)
            self._wake_later(key, loop, self._backoff(loop))
        else:
            if not loop.is_held and not loop.keeps and not loop.is_unsettled:
                loop.troubled_since = loop.last_trouble = loop.busy_since = None
                loop.unanswered_at = math.inf
                if loop.trouble is not None:
                    loop.trouble, loop.dirty, loop.woken = None, True, time.monotonic()
                if loop.problem is None:  # otherwise the API server keeps rejecting a write, which is retried
                    loop.failures = 0
            if wake_at is not None:
                self._wake_later(key, loop, max(0.0, wake_at - self._clock()))

    async def _pass(self, key: JobKey, loop: _Loop) -> float | None:
        has_left = await deletions.clear(self._api, self._cache, self._applier.served, key)
        faulty = await self._faulty_nodes.find(key[0], self._clock())
        known = await self._find_job(key)
        self._hub.forget_pods(key, but={p.uid for p in self._cache.pods(key)})
        if known is None:
            await self._forget(key, loop, has_left=has_left)
            return None
        job, version = known
        judged = self._others.judge(job)
        if judged.verdict is not Verdict.DECIDE:
            return await self._stand_back(loop, job, version, judged)
        started = loop.began = time.monotonic()
        now = self._clock()
        often_until = self._applier.refused.wait_for_extras(job.uid, started)
        if loop.problem_generation != job.generation and often_until <= started:
            loop.problem, loop.problem_generation = None, job.generation
        told_in = self._note_trouble(loop)
        contested_until = self._watch_size(loop, job, now)
        pods = tuple(p for p in self._cache.pods(key) if p.job_uid == job.uid)
        agents, ours = self._hub.agents(key), {p.uid for p in pods}
        seen = Seen(
            job=job,
            pods=pods,
            agents={uid: agent for uid, agent in agents.items() if uid in ours},
            leftover={uid: agent for uid, agent in agents.items() if uid not in ours},
            nodes=self._cache.nodes_of(pods),
            children=self._cache.children(job),
            quota=self._queue.see(job, pods) if self._queue is not None else None,
            now=now,
            hub_started=self._hub.started_at,
            release=self._others.release,
            faulty_nodes=faulty.known,
            suspected_nodes=faulty.suspected,
            pool=self._find_pool_decision(key),
            template=await self._find_template(job) if job.awaited and self._find_template else None,
            origin=self._find_origin(job),
            problem=loop.problem or loop.trouble or loop.undeleted,
            altered=self._applier.new_pods.altered.get(job.uid, ""),
            said=loop.quiet.said,
            unresized=loop.unresized,
            contested_until=contested_until,
        )
        self._watch_sent(loop, seen)
        made = await self._plan(seen, loop)
        if job.is_short and made.writes(job.status):
            job, version = await self._read_whole(key)
            seen = replace(seen, job=job)
            made = await self._plan(seen, loop)
        if is_try := loop.tries_one and len(made.create) > 1:
            made = replace(made, create=made.create[:1])
        made = self._hold_back(loop, job, self._delete_less(loop, job, made, now, started), now, started)
        loop.planning = time.monotonic() - started
        if made.reason != loop.reason:
            if loop.lines.take(LINES_PER_SECOND, LINES_AT_ONCE, time.monotonic()):
                logger.info("%s/%s: %s", *key, text.clean(made.reason, 1024))
            loop.reason = made.reason
        outcome = await self._applier.apply(job, version, made, now)
        settled = await self._settle(loop, job, made, now)
        self.observer(job, made, time.monotonic() - started)
        if not loop.keeps and outcome.undeleted != loop.undeleted:
            loop.undeleted, loop.dirty, loop.woken = outcome.undeleted, True, time.monotonic()
        if outcome.unresized[1]:
            loop.unresized, loop.dirty, loop.woken = outcome.unresized, True, time.monotonic()
        is_tried = made.create or made.ensure or _is_whole(made)
        if outcome.problem is not None or (not loop.is_held and is_tried):
            again_at = self._note_refusal(loop, job, outcome, made, is_try=is_try)
            if again_at is not None:
                return again_at
        held_until = self._note_held(loop, outcome, made, now)
        is_news, look_at = await loop.quiet.look(self._api, self._event_lists, job, pods, seen.nodes, now)
        if is_news:
            loop.dirty, loop.woken = True, time.monotonic()
        overdue_at = await loop.overdue.look(self._api, self._cache, pods, job.namespace, now)
        return first(
            *(made.wake_at, settled, held_until, look_at, overdue_at, outcome.again_at),
            now + told_in if told_in else None,
        )

    async def _stand_back(self, loop: _Loop, job: Job, version: str, judged: Judgement) -> float:
        """Leave a job alone over which another operator decides; when to look whether that is there."""
        if loop.reason:  # it was this one's
            loop.reason = ""
            self._on_forget(job.key)
        claim, release = job.status.operator, self._others.release
        record = self._applier.recorder.record
        if judged.verdict is Verdict.TAKE:
            await self._applier.write_claim(job, version, claims.take(release))
            record(job, self._others.tell_taken(job), self._clock())
            return self._clock()
        record(job, self._others.find_news(job), self._clock())
        if judged.verdict is Verdict.ASK and claim is not None:
            await self._applier.write_claim(job, version, claims.ask(claim, release))
        return self._clock() + judged.look_at

    @staticmethod
    def _note_held(loop: _Loop, outcome: Outcome, made: Plan, now: float) -> float | None:
        """When to try the name of a pod again that one has which goes; the watch may tell of its end before."""
        if not outcome.is_held:
            loop.held_since = None if made.create else loop.held_since
            return None
        loop.held_since = now if loop.held_since is None else min(loop.held_since, now)
        return now + min(MOST_HELD_SECONDS, max(HELD_SECONDS, now - loop.held_since))

    async def _forget(self, key: JobKey, loop: _Loop, *, has_left: bool) -> None:
        """The job is gone; its quota, pods and agents may not be."""
        if self._queue is not None:
            await self._queue.forget(key, self._cache.pods(key))
        agents = self._hub.agents(key)
        self._hub.direct(key, directives.release(agents, ()))
        if has_left or loop.dirty or any(agent.connected for agent in agents.values()):
            return  # the deletion of the last pod wakes this job, or something has already
        self._hub.forget(key)
        self._cache.forget(key)
        self._loops.pop(key, None)
        self._others.forget(key)
        self._on_forget(key)

    async def _find_job(self, key: JobKey) -> tuple[Job, str] | None:
        """The job and its version. One that was not kept for want of room is read again when there is some.

        So is one with pods of whose status little was kept.
        """
        known = self._cache.jobs.get(key)
        if known is not None and self._cache.may_read_again(known[0]):
            await self._look_again(key)
        known = self._cache.jobs.get(key)
        if known is not None and known[0].is_short and self._cache.pods(key):
            return await self._read_whole(key)
        return known

    async def _settle(self, loop: _Loop, job: Job, made: Plan, now: float) -> float | None:
        """Ask for quota and give it back, unless the API server has just failed at that; when to look again."""
        if self._queue is None:
            return None
        left = loop.unsettled_until - time.monotonic()
        loop.is_unsettled = left > 0
        if loop.is_unsettled:
            return now + left
        try:
            return await self._queue.settle(job, self._cache.pods(job.key), made, now)
        except ApiError as error:
            if error.status in BUSY or error.status >= 500:
                pause = find_pause(loop.failures + 1, first=REFUSED_SECONDS)
                loop.unsettled_until = time.monotonic() + max(pause, min(error.retry_after or 0.0, LONGEST_ASKED))
            raise

    def _find_origin(self, job: Job) -> Job | None:
        """The job that this one waits for, to begin from its archive: one of the same namespace."""
        wanted = beginning.find_awaited_origin(job)
        known = None if wanted is None or wanted.job is None else self._cache.jobs.get((job.namespace, wanted.job))
        return None if known is None else known[0]

    async def _plan(self, seen: Seen, loop: _Loop) -> Plan:
        """The plan; of a large job from a thread, to which frozen values go, and from which a frozen value comes.

        The memory of the job is that of its passes, of which there is one at a time.
        """

        def work() -> Plan:
            return self._others.mark(seen.job, plan(loop.watch(seen), self.config), seen.agents)

        return work() if seen.weight <= MOST_IN_LOOP else await self._threads.run(seen.job.key, work)

    def _hold_back(self, loop: _Loop, job: Job, made: Plan, now: float, started: float) -> Plan:
        """The plan without what the API server has refused, until that is tried again."""
        # Agents may wake a job every second; a rejected write must not be retried more often because of that.
        is_same = loop.problem is not None and loop.refused_on == self._find_basis(job)
        loop.is_held = is_same and loop.again_at > started
        if loop.is_held:
            made = made.held_back(now + loop.again_at - started, pods=loop.is_blocked)
        # What has changed is tried at once, but not without a bound.
        refused = self._applier.refused
        if (wait := refused.wait_for_extras(job.uid, started) - started) > 0:
            tried, made = made, made.without_extras(now + wait)
            is_about_extras = loop.is_troubled_by_extra if loop.problem is None else not loop.is_blocked
            loop.is_held |= is_about_extras and made.ensure != tried.ensure
        busy_until = 0.0 if made.is_idle else loop.busy_until
        if (wait := max(self._applier.wait_until(job, made, started), busy_until) - started) > 0:
            made, loop.is_held = (
                replace(made.held_back(now + wait, pods=True), set_replicas=None, set_suspend=False, resize=()),
                True,
            )
        return self._tell_less(loop, job, made, now, started)

    def _tell_less(self, loop: _Loop, job: Job, made: Plan, now: float, started: float) -> Plan:
        """The plan without a status that only tells of news, if there have been many: the newest are told later."""
        if not made.only_tells(job.status) or self._news.may_tell(job.namespace, loop.news, started):
            return made
        return replace(made, status=job.status, events=(), wake_at=first(made.wake_at, now + TOLD_SECONDS))

    def _delete_less(self, loop: _Loop, job: Job, made: Plan, now: float, started: float) -> Plan:
        """The plan with one deletion for all if some were refused, and without any if many were."""
        undeleted = self._applier.undeleted
        wait = max(undeleted.wait_until(job.uid, 1, started), loop.kept_until) - started
        loop.keeps = wait > 0 and bool(made.delete or made.remove)
        if loop.keeps:
            return made.deleting_less(now + wait)
        is_try = undeleted.has_any(job.uid, started) or loop.busy_since is not None
        return made.deleting_less(None) if is_try else made

    def _note_refusal(self, loop: _Loop, job: Job, outcome: Outcome, made: Plan, *, is_try: bool) -> float | None:
        """Note whether the API server has rejected a write; return when that is tried again."""
        changed = outcome.problem != loop.problem
        loop.problem, loop.is_blocked = outcome.problem, outcome.is_blocking
        loop.tries_one = outcome.problem is not None and (loop.tries_one or bool(made.create))
        if changed or (is_try and not loop.tries_one):
            loop.dirty, loop.woken = True, time.monotonic()
        if loop.problem is None:
            return None
        delay = self._backoff(loop, REFUSED_SECONDS)
        loop.refused_on, loop.again_at = self._find_basis(job), time.monotonic() + delay
        return self._clock() + delay

    def _watch_size(self, loop: _Loop, job: Job, now: float) -> float:
        """Until when writers fight about the size of this job, 0 if none do. They are told once in ten minutes."""
        if job.spec is None or job.spec.replicas is None:
            return 0.0
        loop.sizes = contests.note(loop.sizes, job.spec.replicas, job.size_writer, now)
        contest = contests.find_contest(loop.sizes, now)
        if contest is None:
            return 0.0
        if loop.contest_at <= time.monotonic():
            loop.contest_at = time.monotonic() + CONTEST_SECONDS
            self._applier.recorder.record(job, [Event("SizeContested", contest.message, warning=True)], now)
        return contest.until

    def _watch_sent(self, loop: _Loop, seen: Seen) -> None:
        """Who changes a job that runs in another cluster hears that it is not forwarded."""
        loop.sent, told = sent_jobs.note(loop.sent, seen.job, seen.quota)
        if told:
            self._applier.recorder.record(seen.job, [Event("NotForwarded", told, warning=True)], seen.now)

    def _find_basis(self, job: Job) -> int:
        """The hash of what a refusal may depend on: if this changes, the next try is made at once.

        The job may outlive all of that for long.
        """
        given_up = self._applier.new_pods.given_up  # they come and go with each try
        pods = frozenset((p.uid, p.deleting is None) for p in self._cache.pods(job.key) if p.uid not in given_up)
        return hash((pods, self._cache.children(job)))

    async def _recover(self, key: JobKey, loop: _Loop, error: ApiError) -> None:
        """Retry a failed pass: at once with fresh data if the cache was stale, otherwise with back-off."""
        if error is loop.last_error and error.retry_after:  # the applier holds back what it would have sent
            logger.debug("%s/%s: %s", *key, without_frames(error))
            self._wake_later(key, loop, min(error.retry_after, self._note_trouble(loop) or error.retry_after))
            return
        if error.status in (404, 409):
            logger.debug("%s/%s: %s; reading the job again", *key, error)
            try:
                await self._look_again(key)
            except ApiError as again:
                error = again
            except Exception:
                logger.exception("%s/%s: the job could not be read into the cache; this is a bug", *key)
        else:
            self._on_error()
            loop.last_error = error
            logger.warning("%s/%s: %s", *key, error)
            loop.tries_one = True
        loop.is_troubled_by_extra = error.is_extra
        is_busy, answers = error.status in BUSY, self._api.heard > loop.unanswered_at
        if is_busy:
            loop.busy_since = time.monotonic() if loop.busy_since is None else loop.busy_since
            answers = await self._is_served(key, loop.busy_since)
        else:
            loop.busy_since = None
        without_frames(error)  # it is remembered
        trouble = refusals.explain_trouble(error, answers_others=answers)
        loop.unanswered_at = time.monotonic() if error.status == 0 else math.inf
        loop.last_trouble = trouble or loop.last_trouble
        loop.troubled_since = time.monotonic() if loop.troubled_since is None else loop.troubled_since
        told_in = self._note_trouble(loop)
        first_pause = REFUSED_SECONDS if is_busy or (trouble and error.status not in (404, 409)) else SHORTEST_PAUSE
        if not is_busy:
            pause = error.retry_after or self._backoff(loop, first_pause)
        else:
            pause = max(self._backoff(loop, first_pause), min(error.retry_after or 0.0, LONGEST_ASKED))
            self._ask_later(key, loop, time.monotonic() + pause)
        self._wake_later(key, loop, min(pause, told_in or pause))

    async def _is_served(self, key: JobKey, since: float) -> bool:
        """Whether the API server has answered anything else since it was too busy for a write of this job."""
        if self._api.served <= since < time.monotonic() - BUSY_SECONDS:
            try:
                await self._look_again(key)
            except ApiError:
                return False
        return self._api.served > since

    def _ask_later(self, key: JobKey, loop: _Loop, until: float) -> None:
        """Let the API server alone with the pods for which it is too busy."""
        known = self._cache.jobs.get(key)
        if known is not None and self._applier.undeleted.was_busy(known[0].uid, loop.began):
            loop.kept_until = until
        else:
            loop.busy_until = until

    def _note_trouble(self, loop: _Loop) -> float | None:
        """Tell of an error that has lasted for a while; else return in how many seconds that is so."""
        if loop.last_trouble is None or loop.troubled_since is None or loop.trouble == loop.last_trouble:
            return None
        left = loop.troubled_since + TROUBLE_SECONDS - time.monotonic()
        if left > 0:
            return left
        loop.trouble = loop.last_trouble
        return None

    async def _read_whole(self, key: JobKey) -> tuple[Job, str]:
        """The job with what was not kept of its status. Raises ApiError, also if it changes meanwhile."""
        path, since = path_of(names.API_VERSION, names.PLURAL, *key), self._cache.lists.count()
        raw = await self._api.request("GET", path, reduce=reduce_item)
        self._cache.put_job(raw, since)
        found = self._cache.complete(raw)
        if found is None:
            raise ApiError(409, "Stale", f"{key[0]}/{key[1]} has changed")
        return found

    async def _look_again(self, key: JobKey) -> None:
        path, since = path_of(names.API_VERSION, names.PLURAL, *key), self._cache.lists.count()
        try:
            self._cache.put_job(await self._api.request("GET", path, reduce=reduce_item), since)
        except ApiError as error:
            known = self._cache.jobs.get(key)
            if error.status == 404 and known is not None:
                self._cache.drop_job(key, known[0].uid)
            else:
                raise

    def _backoff(self, loop: _Loop, first_pause: float = SHORTEST_PAUSE) -> float:
        loop.failures += 1
        return spread(find_pause(loop.failures, first=first_pause))

    def _wake_later(self, key: JobKey, loop: _Loop, delay: float) -> None:
        if not self._active:
            return
        if loop.timer is not None:
            loop.timer.cancel()
        loop.timer = asyncio.get_running_loop().call_later(delay, self.wake, key)


def _is_whole(made: Plan) -> bool:
    """Whether nothing is missing that the API server might refuse."""
    status = made.status
    return 0 < status.replicas == status.ready_replicas and not (made.create or made.ensure)
