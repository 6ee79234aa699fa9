"""Puts Kueue and the passes of a job together: what is admitted goes in, what to ask for comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from elasticjob_operator import numerals
from elasticjob_operator.api.base import MOST_SECONDS
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.apply import manifests as objects
from elasticjob_operator.integrations.kueue import asking, manifests, names
from elasticjob_operator.integrations.kueue.asking import Ask, Elsewhere, LetGo, Wish
from elasticjob_operator.integrations.kueue.following import Follower
from elasticjob_operator.integrations.kueue.quota import find_base, keep_what_runs, read_dispatch, read_quota
from elasticjob_operator.integrations.kueue.store import MOST_WORKLOADS, Store
from elasticjob_operator.integrations.kueue.values import Workload
from elasticjob_operator.integrations.kueue.writing import Writer
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.model.observe import Job, Pod
from elasticjob_operator.model.quota import Quota
from elasticjob_operator.plan.values import Plan, first
from elasticjob_operator.times import parse_time

RETRY_SECONDS = 10.0  # after the API server has refused a Workload
DEFAULT_GRACE = 30  # seconds, of Kubernetes
LEAVING_SECONDS = 60.0  # beyond all grace periods: when pods of another cluster are taken for gone


@dataclass(frozen=True, slots=True)
class _Refused:
    """What the API server said of a Workload of this job: (reason, message), and when it is tried again."""

    uid: str
    why: tuple[str, str]
    until: float


class Kueue:
    """Jobs with the label of a queue, for one replica of the operator."""

    def __init__(
        self,
        api: Api,
        namespaces: Sequence[str],
        intake: Intake,
        *,
        wake: Callable[[JobKey], None],
        wake_all: Callable[[], None],
        settings: Callable[[], objects.Settings],
    ) -> None:
        self.store = Store(wake, wake_all)
        self.settings = settings
        self.follower = Follower(api, namespaces, intake, self.store, wake_all)
        self._writer = Writer(api, self.store)
        self._refused: dict[JobKey, _Refused] = {}

    # What a pass asks before it plans.

    def keys(self) -> Iterable[JobKey]:
        """Of the jobs that there are Workloads of, whether they exist or not."""
        return self.store.keys()

    def see(self, job: Job, pods: Sequence[Pod]) -> Quota | None:
        """What is admitted of a job; None for one without a queue.

        A job that is not ours to run any more, or cannot be, has a queue for as long as it has Workloads.
        """
        if job.status.finished:
            return None
        workloads, _ = self._workloads(job)
        if manifests.is_sent_on(job.spec):
            queue = self._queue_of(job, workloads)
            return read_dispatch(workloads, queue) if queue and not self.follower.missing else None
        is_run = job.spec is not None and job.spec.is_ours
        queue = self._queue_of(job, workloads) if is_run or workloads else ""
        if not queue:
            return None
        if self.follower.missing:
            return keep_what_runs(self.follower.missing, pods)
        template_hash = job.spec.template_hash if job.spec is not None else ""
        quota = read_quota(workloads, self.store.flavors, template_hash, queue)
        refused = self._refused.get(job.key)
        if refused is None or refused.uid != job.uid:
            return quota
        if quota.is_admitted:
            return replace(quota, message=f"{quota.message}; {refused.why[1]}")
        return quota if find_base(workloads) else Quota(False, *refused.why)

    def _workloads(self, job: Job) -> tuple[list[Workload], list[Workload]]:
        """Those of this job, and those that somebody else has made in its name."""
        genuine: list[Workload] = []
        forged: list[Workload] = []
        needed = manifests.find_needed(job)
        for workload in sorted(self.store.workloads(job), key=lambda w: w.first):
            is_ours = len(genuine) < MOST_WORKLOADS and manifests.is_genuine(workload, job, needed)
            (genuine if is_ours else forged).append(workload)
        return genuine, forged

    @staticmethod
    def _queue_of(job: Job, workloads: Sequence[Workload]) -> str:
        """The queue of a job. One that holds quota stays in its queue until it is suspended."""
        holding = next((w.queue for w in workloads if w.first == 0 and w.reserves and not w.is_finished), "")
        return holding or job.labels.get(names.LABEL_QUEUE, "")

    # What a pass does after it has planned.

    async def settle(self, job: Job, pods: Sequence[Pod], made: Plan, now: float) -> float | None:
        """Asks for quota and gives it back; returns when to have another pass. Raises ApiError."""
        if self.follower.missing:
            return None
        await self._let_go_left_over(job.key, job.uid, pods)
        workloads, forged = self._workloads(job)
        queue = self._queue_of(job, workloads)
        if not (queue or workloads or forged):
            return None
        ours_now = [p for p in pods if p.job_uid == job.uid]
        wish, again_at = _wish(job, queue, made), None
        if manifests.is_sent_on(job.spec):
            elsewhere, again_at = look_elsewhere(job, find_base(workloads), now)
            decided = asking.decide_sent_on(wish, workloads, ours_now, elsewhere)
        else:
            decided = asking.decide(wish, workloads, ours_now)
        writes = (*asking.drop(forged), *decided)
        if not any(isinstance(write, Ask) for write in writes):
            self._refused.pop(job.key, None)  # what was refused is not wanted any more
        refused = self._refused.get(job.key)
        is_held = refused is not None and refused.uid == job.uid and now < refused.until
        for write in writes:
            if isinstance(write, Ask) and (is_held or job.lacks_template):
                continue
            if not isinstance(write, Ask):
                await self._writer.change(job.namespace, write, now)
                continue
            assert job.spec is not None, "quota is asked for valid jobs only"
            problem = await self._writer.ask(job, job.spec, write, queue, self.settings())
            if problem is not None:
                is_new = refused is None or refused.why != problem
                self._refused[job.key] = _Refused(job.uid, problem, now + RETRY_SECONDS)
                return now if is_new else now + RETRY_SECONDS
            self._refused.pop(job.key, None)
        return first(again_at, refused.until if is_held and refused is not None else None)

    async def forget(self, key: JobKey, pods: Sequence[Pod]) -> None:
        """A job that is gone: its Workloads go when its pods have."""
        self._refused.pop(key, None)
        if not self.follower.missing:
            await self._let_go_left_over(key, "", pods)

    async def _let_go_left_over(self, key: JobKey, uid: str, pods: Sequence[Pod]) -> None:
        for workload in self.store.left_over(key, uid):
            theirs = [p for p in pods if p.job_uid == workload.job_uid]
            for write in asking.decide(Wish(None, ""), [workload], theirs):
                if isinstance(write, LetGo):
                    await self._writer.let_go(key[0], write.workload)


def _wish(job: Job, queue: str, made: Plan) -> Wish:
    status = made.status
    if not status.finished:
        classes = [manifests.find_class(job, job.spec, is_base=is_base).name for is_base in (True, False)]
        prebuilt = manifests.find_prebuilt(job)
        return Wish(job.spec, queue, _find_asks(job, made) if queue else 0, None, (classes[0], classes[1]), prebuilt)
    last = status.condition("Complete") if status.is_true("Complete") else status.condition("Failed")
    return Wish(job.spec, queue, ended=(status.is_true("Complete"), last.message if last else ""))


def _find_asks(job: Job, made: Plan) -> int | None:
    spec = job.spec
    if spec is None or spec.is_ours:
        return made.asks
    return spec.min_replicas if manifests.is_sent_on(spec) and not spec.run_policy.suspend else 0


def look_elsewhere(job: Job, base: Workload | None, now: float) -> tuple[Elsewhere, float | None]:
    """What is known of a job that runs in another cluster, and when its silence there has lasted too long.

    Whoever has evicted it may have lost that cluster: nobody says then that its pods are gone.
    """
    status, spec = job.status, job.spec
    elsewhere = Elsewhere(has_pods=not status.is_fresh, ready=status.ready_replicas)
    if base is None or spec is None or not (base.evicted and base.reserves):
        return elsewhere, None
    of_pod = numerals.read_count(spec.template["spec"].get("terminationGracePeriodSeconds"), MOST_SECONDS)
    of_pod = DEFAULT_GRACE if of_pod is None else of_pod
    grace = spec.elastic_policy.graceful_shutdown_timeout_seconds + of_pod + LEAVING_SECONDS
    until = (parse_time(base.condition("Evicted").get("lastTransitionTime")) or 0.0) + grace
    if now >= until:
        return replace(elsewhere, has_pods=False), None
    return elsewhere, until
