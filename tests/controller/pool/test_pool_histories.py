"""Histories of a pool, through all that decides a size and writes it: rounds, size sources, the number for the spec.

A small cluster obeys what was written. Capacity flaps, jobs lie, users scale by hand, jobs regroup and cannot change,
operators die between two writes. Sizes stay inside their bounds, a user's number stays, and once the disturbances end,
the pool comes to rest and nobody waits for room that is there.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import example, given
from hypothesis import strategies as st

from controller.builders import NOW, make_spec
from elasticjob_operator import api
from elasticjob_operator.model.observe import Job
from elasticjob_operator.pool import rounds
from elasticjob_operator.pool.rounds import PooledJob
from elasticjob_operator.pool.throughput import Model
from elasticjob_operator.pool.values import Objective
from elasticjob_operator.sizing import compose, written
from elasticjob_operator.sizing.values import PoolDecision, View
from elasticjob_operator.times import format_time
from examples import tries

ROUND_SECONDS = 30.0
HOUR = 120  # rounds


@dataclass
class Trainee:
    """One job, as the API server and the nodes have it, and what the operator in charge remembers of it."""

    name: str
    low: int
    most: int
    step: int
    shared: float
    lies: float | None
    batch: int  # of a pod, if the batch grows; otherwise 0
    noise: float | None
    order: float
    replicas: int | None = None
    annotation: int | None = None
    scaling: api.ScalingStatus | None = None
    placed: int = 0
    members: int = 0  # of its last world
    regroups: bool = False
    model: Model = field(default_factory=Model)
    behind: float = 0.0
    tried: frozenset[int] = frozenset()  # sizes at which it has trained

    @property
    def trains(self) -> bool:
        return self.placed >= self.low and not self.regroups

    @property
    def is_pinned(self) -> bool:
        return self.replicas is not None and self.replicas != self.annotation

    def learn(self, now: float) -> None:
        if self.trains:
            self.members = self.placed
            self.tried |= {self.placed}
            seconds = self.shared / self.placed + 1 - self.shared if self.lies is None else self.lies
            self.model = self.model.learn(self.placed, seconds, now, batch=self.batch * self.placed)
            self.model = self.model.hear_noise(self.noise)

    def observe(self, now: float) -> PooledJob:
        spec = make_spec(
            self.low,
            self.most,
            replicas=self.replicas,
            scaling={"mode": "Goodput"},
            elasticPolicy={"replicaIncrementStep": self.step},
        )
        members = [api.Member(pod=f"{self.name}-{i}", rank=i) for i in range(self.members)]
        status = api.Status(
            rendezvous=api.RendezvousStatus(generation=len(members), world_size=len(members), members=members),
            goodput=api.GoodputStatus(training=self.trains, since=format_time(now - 600)),
            scaling=self.scaling,
        )
        job = Job(
            "ns",
            self.name,
            self.name,
            spec,
            status,
            created=self.order,
            has_replicas=self.replicas is not None,
            own_replicas=self.replicas if self.replicas == self.annotation else None,
        )
        return PooledJob(job, spec, 1, self.placed, self.model, self.behind)


@dataclass
class Pool:
    trainees: list[Trainee]
    capacity: int
    objective: Objective
    now: float = NOW

    def pass_round(self, writes: int = 1000) -> int:
        """Reports, a decision, and as many writes of it as the operator lives for. Returns what was written."""
        self.now += ROUND_SECONDS
        for one in self.trainees:
            one.learn(self.now)
        seen = {one.name: one.observe(self.now) for one in self.trainees}
        verdicts = rounds.share(list(seen.values()), self.capacity, self.objective, seconds=ROUND_SECONDS, now=self.now)
        count = 0
        for one in self.trainees:
            verdict = verdicts["ns", one.name]
            one.behind = verdict.behind
            speeds, noise = rounds.keep(one.model), rounds.keep_noise(one.model)
            decision = PoolDecision(verdict.size, verdict.reason, "pool", verdict.gain, speeds, noise_scale=noise)
            job, spec = seen[one.name].job, seen[one.name].spec
            size = compose.compose(View(spec, members=one.placed, pool=decision, is_pinned=job.is_pinned))
            number = written.find_replicas(job, spec, size)
            if number is not None and count < writes:
                assert one.low <= number <= one.most
                assert (number - one.low) % one.step == 0
                assert not one.is_pinned, "a number that a user wrote stays"
                one.replicas = one.annotation = number  # both in one write
                count += 1
            if count < writes:
                one.scaling = written.build_status(job, spec, size, decision, reported=True)
        self._place()
        return count

    def count_changes(self) -> Counter[str]:
        """How often each job's number of pods changes in an hour in which none tries a size for the first time."""
        while True:
            changes = Counter({one.name: 0 for one in self.trainees})
            tried = [one.tried for one in self.trainees]
            for _ in range(HOUR):
                before = {one.name: one.replicas for one in self.trainees}
                self.pass_round()
                changes.update(one.name for one in self.trainees if one.replicas != before[one.name])
            if [one.tried for one in self.trainees] == tried:
                return changes

    def _place(self) -> None:
        """Pods that are too many go, then pods that are missing get nodes, in the order of the jobs."""
        for one in self.trainees:
            one.placed = min(one.placed, one.replicas or one.low)
        free = self.capacity - sum(one.placed for one in self.trainees)
        for one in sorted(self.trainees, key=lambda one: (one.placed == 0, one.order)):
            more = (one.replicas or one.low) - one.placed
            if one.placed + min(more, free) >= one.low and more > 0 and free > 0:
                one.placed += min(more, free)
                free -= min(more, free)

    def lose(self, capacity: int) -> None:
        """Nodes come and go. Where pods are lost with them, the newest jobs lose theirs."""
        self.capacity = capacity
        for one in sorted(self.trainees, key=lambda one: -one.order):
            over = sum(other.placed for other in self.trainees) - capacity
            if over > 0:
                kept = one.placed - over
                one.placed = kept if kept >= one.low else 0

    def change_operator(self) -> None:
        """A new leader knows what the statuses have kept."""
        for one in self.trainees:
            one.model = rounds.recall(api.Status(scaling=one.scaling))
            one.behind = 0.0


trainees = st.builds(
    lambda low, steps, step, shared, lies, batch, noise: Trainee(
        "", low, low + steps * step, step, shared, lies, batch, noise, 0.0
    ),
    st.integers(1, 3),
    st.integers(0, 6),
    st.integers(1, 2),
    st.floats(0.2, 0.99),
    st.none() | st.none() | st.sampled_from([0.0, -1.0, math.nan, math.inf, 1e-7, 1e6, 2.0]),
    st.sampled_from([0, 0, 1, 32, 2**32]),
    st.none() | st.sampled_from([0.0, 100.0, 1e9, -1.0, math.nan, math.inf]),
)

# Three jobs that gain as little from the two pods that only one of them can have.
alike = [Trainee("", 2, 4, 2, 0.25, None, 0, None, 0.0)] * 3

# The first two have twice the speed with twice the pods, as far as anybody can tell, and would change places for ever.
linear = [
    Trainee("", 1, 13, 2, 0.5, None, 1, None, 0.0),
    Trainee("", 1, 13, 2, 0.75, None, 1, None, 0.0),
    Trainee("", 1, 2, 1, 0.5, None, 0, None, 0.0),
    Trainee("", 1, 5, 2, 0.5, None, 0, None, 0.0),
]

# The third one wants two more pods when the second one would sell one: it shrank, and nobody grew.
unequal = [
    Trainee("", 2, 2, 1, 0.5, None, 0, None, 0.0),
    Trainee("", 1, 3, 1, 0.2, None, 0, None, 0.0),
    Trainee("", 1, 13, 2, 0.74, None, 1, None, 0.0),
    Trainee("", 1, 7, 1, 0.5, None, 0, None, 0.0),
]

# There is no room for the share of each of the first two, and they took turns that lasted a quarter of an hour.
turns = [
    Trainee("", 1, 2, 1, 0.5, None, 0, None, 0.0),
    Trainee("", 1, 2, 1, 0.21875, None, 0, None, 0.0),
    Trainee("", 1, 2, 1, 0.5, None, 0, None, 0.0),
    Trainee("", 1, 3, 2, 0.5, None, 0, None, 0.0),
]

# The second one tries two pods late, and the first one, which gains more from them, takes them back.
late = [
    Trainee("", 1, 2, 1, 0.75, None, 0, None, 0.0),
    Trainee("", 1, 2, 1, 0.5, None, 0, None, 0.0),
    Trainee("", 1, 5, 2, 0.5, None, 1, None, 0.0),
]

# Three that gain the same from two more pods: whose speed there was measured long ago is estimated higher.
same = [
    Trainee("", 1, 2, 1, 0.5, None, 0, None, 0.0),
    *[Trainee("", 1, 3, 2, 0.25, None, 0, None, 0.0)] * 3,
]

events = st.one_of(
    st.tuples(st.just("capacity"), st.integers(0, 24)),
    st.tuples(st.just("scale"), st.integers(0, 9)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("regroup"), st.integers(0, 9)),
    st.tuples(st.just("operator dies"), st.integers(0, 3)),
    st.tuples(st.just("rounds"), st.integers(1, 3)),
)


def disturb(pool: Pool, event: str, number: int) -> None:
    one = pool.trainees[number % len(pool.trainees)]
    match event:
        case "capacity":
            pool.lose(number)
        case "scale":
            one.replicas = one.low + one.step * (number % ((one.most - one.low) // one.step + 1))
        case "release":
            one.replicas = None
        case "regroup":
            one.regroups = not one.regroups
        case "operator dies":
            pool.pass_round(writes=number)
            pool.change_operator()
        case _:
            for _ in range(number):
                pool.pass_round()


@tries(few=8, many=40)
@given(
    st.lists(trainees, min_size=2, max_size=4),
    st.lists(events, max_size=10),
    st.tuples(st.integers(1, 8), st.integers(8, 24)),
    st.sampled_from(Objective),
)
@example(alike, [], (1, 8), Objective.GOODPUT)
@example(linear, [("operator dies", 0)], (1, 20), Objective.GOODPUT)
@example(unequal, [("capacity", 9), ("release", 0), ("rounds", 1), ("capacity", 0)], (1, 17), Objective.GOODPUT)
@example(turns, [], (1, 8), Objective.COMPLETION)
@example(late, [], (1, 8), Objective.GOODPUT)
@example(same, [], (1, 8), Objective.GOODPUT)
def test_whatever_happens_sizes_are_legal_and_the_pool_comes_to_rest(
    jobs: list[Trainee], happened: list[tuple[str, int]], capacities: tuple[int, int], objective: Objective
) -> None:
    pool = Pool([replace(one, name=f"j{i}", order=float(i)) for i, one in enumerate(jobs)], capacities[0], objective)
    for event, number in happened:
        disturb(pool, event, number)
    for one in pool.trainees:
        one.regroups = False
    pool.lose(capacities[1])
    for _ in range(HOUR):  # in which it finds out how fast the jobs are, and gives those their share that lacked it
        pool.pass_round()
    changes = pool.count_changes()
    assert max(changes.values()) <= 1, f"more than one change of a job in an hour in which nothing happens: {changes}"
    pinned = sum(one.replicas or 0 for one in pool.trainees if one.is_pinned)
    if pinned + sum(one.low for one in pool.trainees if not one.is_pinned) <= pool.capacity:
        assert all(one.placed >= one.low for one in pool.trainees), "somebody waits although there is room"
        assert sum(one.replicas or 0 for one in pool.trainees) <= pool.capacity, "a device is promised twice"
