"""What a pass asks of whoever admits jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from elasticjob_operator.api.names import JobKey
from elasticjob_operator.model.observe import Job, Pod
from elasticjob_operator.model.quota import Quota
from elasticjob_operator.plan.values import Plan


class Queue(Protocol):
    """Whoever admits jobs, as far as a pass needs it."""

    def keys(self) -> Iterable[JobKey]: ...

    def see(self, job: Job, pods: Sequence[Pod]) -> Quota | None: ...

    async def settle(self, job: Job, pods: Sequence[Pod], made: Plan, now: float) -> float | None: ...

    async def forget(self, key: JobKey, pods: Sequence[Pod]) -> None: ...
