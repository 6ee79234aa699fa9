"""Hostile tenants next to three training jobs: two real replicas, hostile objects and pods, and lost Leases.

First the good jobs run undisturbed, then under all attacks. In the first half of the attacks the Lease or its holder is
disturbed in every round; in the second half one process leads throughout, so that its memory can be compared.
`tenants_judge` has the criteria.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos import auditlog, hostile, hostile_agent, replicas, stretches
from chaos.goodjobs import MEMBERS, NAMESPACE, PATIENCE, GoodJobs
from chaos.hostile import Hostile, Prey
from chaos.lag import LagWatch, ServerWatch
from chaos.replicas import Replicas
from chaos.tenants_judge import Record, compute_pauses, is_named, judge, nine_of_ten
from chaos.trials import Report
from elasticjob_devcluster import Cluster, KubeError, NodeSpec, Tuning
from operator_fixture import MERGE, Jobs, install_crd, light_spec, wait_for
from replicas_fixture import AuditLog

EVIL = "evil"
LEASE_SECONDS = 10.0
NAMED_SECONDS = 30.0  # for a warning or a condition about an object
GREEDY = "greedy"
QUOTA = {"pods": "80"}
MOST_STRETCHES = 5  # of computing that are told, with their places
NOT_TAKEN = KubeError, TimeoutError  # a deep object may occupy the API server of a busy machine for long
FLAGS = ("--lease-seconds", str(LEASE_SECONDS), "--stable-seconds", "1", "--certificate-check-seconds", "1")


@dataclass(frozen=True, slots=True)
class Plan:
    """The durations of the run."""

    seed: int
    quiet_rounds: int = 3
    hostile_seconds: float = 300.0
    objects: int = len(hostile.CASES)  # in a round
    greedy: int = 60  # jobs of one pod each that share the pool with every size that there may be
    attacks: tuple[str, ...] = hostile_agent.MODES


class Run:
    """The cluster, the replicas, the jobs, and the recording."""

    def __init__(self, cluster: Cluster, members: Replicas, directory: Path, plan: Plan) -> None:
        self.kube, self.replicas, self.plan = cluster.kube, members, plan
        self.good, self.evil = GoodJobs(cluster, directory, self._read_logs), Jobs(cluster, EVIL)
        self.record = Record((replicas.SYSTEM, replicas.NAME))
        self.lag = LagWatch(members.members)
        self.server = ServerWatch(cluster, NAMESPACE)
        self.dice = random.Random(plan.seed)
        self.rounds = 0
        self._pool = ThreadPoolExecutor(4)
        self._beta = self.kube.get("/apis/policy/v1") is None

    def play(self) -> Record:
        """Run all phases, or until no replica leads any more."""
        with self.server.watching():
            self._play()
        self._pool.shutdown()
        return self._complete()

    def _play(self) -> None:
        self.good.start()
        with self.lag.watching("quiet"):
            for _ in range(self.plan.quiet_rounds):
                began = self._begin()
                self._change()
                self.record.quiet.append((began, time.time()))
        try:
            with self.lag.watching("hostile"):
                self._harm()
            self.good.finish()
        except AssertionError as error:
            self.record.unfinished.append(f"the run: {error}")

    def _harm(self) -> None:
        for number in range(self.plan.greedy):
            Jobs(self.evil.cluster, GREEDY).create(f"greedy-{number}", hostile.greedy_spec())
        for touches_lease in (True, False):
            begin = time.time()
            while time.time() < begin + self.plan.hostile_seconds / 2:
                self._hostile_round(touches_lease=touches_lease)
            self.record.siege = (begin, time.time())

    def _complete(self) -> Record:
        record = self.record
        record.exits, record.samples = self.replicas.exits, self.replicas.samples
        record.steps = {job: self.good.read_steps(job) for job in MEMBERS}
        record.delays = self.server.delays
        record.lag, record.busy = self.lag.longest, self.lag.busiest
        found = [one for member in self.replicas.members for one in stretches.read(member.stretches_file)]
        record.stretches = [str(one) for one in sorted(found, key=lambda one: -one.seconds)[:MOST_STRETCHES]]
        record.unfinished += self.good.wrong
        record.logs = {member.name: member.log for member in self.replicas.members}
        return record

    def _read_logs(self) -> str:
        return "\n".join(sorted(line for member in self.replicas.members for line in member.log.splitlines()))

    # Rounds.

    def _begin(self) -> float:
        self.rounds += 1
        return time.time()

    def _change(self) -> None:
        self.good.change(self.dice, also_training=self.rounds % 4 == 3)

    def _hostile_round(self, *, touches_lease: bool) -> None:
        began = self._begin()
        self._keep_hostile_pods()
        made = self._burst()
        if touches_lease:
            self._touch_lease()
        wait_for(lambda: self.replicas.leader, "a replica leads", 3 * PATIENCE)
        self._change()
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self._find_unnamed(made), "all are named", NAMED_SECONDS, 1.0)
        unnamed = self._find_unnamed(made)
        self.record.unnamed += unnamed
        list(self._pool.map(self._remove, made))
        self.kube.request("DELETE", f"/api/v1/namespaces/{EVIL}-{self.rounds}")
        self.record.hostile.append((began, time.time()))
        said: dict[str, Any] = {"round": self.rounds, "seconds": round(time.time() - began, 1), "objects": len(made)}
        said |= {"unnamed": [one.case for one in unnamed], "lag": self.lag.longest, "busy": self.lag.busiest}
        print(json.dumps(said), flush=True)

    def _touch_lease(self) -> None:
        fault = replicas.LEASE_FAULTS[(self.plan.seed + self.rounds) % len(replicas.LEASE_FAULTS)]
        print(json.dumps({"lease": fault.__name__}), flush=True)
        self.record.touched.append(time.time())
        with contextlib.suppress(KubeError):
            fault(self.replicas)
        self.record.touched.append(time.time())

    # Harm.

    def _keep_hostile_pods(self) -> None:
        """A job for each attack; one that has ended goes, and comes again in the next round."""
        for attack in self.plan.attacks:
            name = attack.replace("_", "-")
            spec = light_spec(replicas=1)
            spec["template"]["spec"]["containers"][0]["command"] = [sys.executable, hostile_agent.__file__, attack]
            if self.evil.status(name).get("phase") in ("Failed", "Complete"):
                self.evil.delete(name)
            elif not self.evil.get(name):
                self.evil.create(name, spec)

    def _make_prey(self, namespace: str) -> Prey:
        """A job whose labels and UID are stolen. It is the second of its name; the first has just been deleted."""
        jobs = Jobs(self.evil.cluster, namespace)
        jobs.create("prey", hostile.spec_of())
        jobs.delete("prey")

        def make() -> Prey | None:
            try:
                made = jobs.create("prey", hostile.spec_of())
            except KubeError:
                return None
            return Prey(namespace, "prey", made["metadata"]["uid"])

        return wait_for(make, "the name is free again", PATIENCE)

    def _burst(self) -> list[Hostile]:
        """What the API server took of this round. It has a namespace of its own: warnings are rationed by namespace."""
        seed = self.plan.seed * 10_000 + self.rounds
        namespace = f"{EVIL}-{self.rounds}"
        make_namespace(self.evil.cluster, namespace)
        objects = [self._adapt(one) for one in hostile.make_all(seed, self._make_prey(namespace), self.plan.objects)]
        made = [one for one in self._pool.map(self._make, objects) if one is not None]
        self.record.refused += len(objects) - len(made)
        self.record.made += made
        return made

    def _adapt(self, one: Hostile) -> Hostile:
        return hostile.as_policy_beta(one) if self._beta and one.kind == "PodDisruptionBudget" else one

    def _make(self, one: Hostile) -> Hostile | None:
        try:
            self.kube.raw("POST", one.collection, one.text)
            if one.status:
                self.kube.raw("PATCH", f"{one.path}/status", {"status": one.status}, content_type=MERGE)
        except NOT_TAKEN:
            self._remove(one)
            return None
        return one

    def _remove(self, one: Hostile) -> None:
        with contextlib.suppress(*NOT_TAKEN):
            self.kube.raw("DELETE", one.path, {"gracePeriodSeconds": 0})

    def _find_unnamed(self, made: list[Hostile]) -> list[Hostile]:
        logs = "\n".join(member.log for member in self.replicas.members)
        return [one for one in made if one.named and not is_named(one, logs, self._conditions(one))]

    def _conditions(self, one: Hostile) -> list[dict[str, str]]:
        if one.kind != "ElasticJob":
            return []
        try:
            found = hostile.read(self.kube.raw("GET", one.path))
        except NOT_TAKEN:
            return []
        return list((found.get("status") or {}).get("conditions") or ())


def run(plan: Plan, directory: Path, start: Callable[..., Cluster] = Cluster.start) -> Report:
    """One run in a separate cluster with an audit log of every write."""
    report, began = Report("tenants", plan.seed), time.monotonic()
    policy = directory / "audit-policy.json"
    policy.write_text(json.dumps(auditlog.build_policy(replicas.SYSTEM)))
    tuning = Tuning(audit=True, apiserver_flags=(f"--audit-policy-file={policy}",))
    cluster = start(nodes=tuple(NodeSpec(f"node-{i}", gpus=20) for i in range(3)), tuning=tuning)
    try:
        record = _play(cluster, directory, plan)
        record.requests = AuditLog(cluster).read()
    finally:
        cluster.stop()
    wrong = judge(record)
    report.histories = len(record.quiet) + len(record.hostile)
    report.faults = len(record.made) + len(record.touched) // 2
    report.violations = [f"{rule}: {text}" for rule, texts in wrong.items() for text in texts]
    report.more = summarize(record, wrong)
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations[:100], report.line()]), flush=True)
    return report


def make_namespace(cluster: Cluster, name: str) -> None:
    """A namespace of the hostile tenant, with a quota, as tenants usually have."""
    cluster.make_namespace(name)
    quota = {"metadata": {"name": "quota"}, "spec": {"hard": QUOTA}}
    cluster.kube.request("POST", f"/api/v1/namespaces/{name}/resourcequotas", quota)


def _play(cluster: Cluster, directory: Path, plan: Plan) -> Record:
    install_crd(cluster)
    cluster.make_namespace(NAMESPACE)
    make_namespace(cluster, EVIL)
    make_namespace(cluster, GREEDY)
    with Replicas(cluster, directory, *FLAGS).running() as members:
        return Run(cluster, members, directory, plan).play()


def summarize(record: Record, wrong: dict[str, list[str]]) -> dict[str, Any]:
    """The summary for the printed line."""
    rss = [sample.rss for sample in record.samples if sample.leads]
    return {
        "writesWithoutLease": len(wrong["writesWithoutLease"]),
        "wrong": {rule: len(texts) for rule, texts in wrong.items() if texts},
        "objects": dict(Counter(one.kind for one in record.made)),
        "refusedByServer": record.refused,
        "leaseFaults": len(record.touched) // 2,
        "exits": len(record.exits),
        "writes": sum(bool(r.replica) for r in record.requests),
        "serverSeconds": round(max((seconds for _, seconds in record.delays), default=0.0), 2),
        "lagSeconds": record.lag,
        "busySeconds": record.busy,
        "stretches": record.stretches,
        "pauses": {job: _spread(record, steps) for job, steps in record.steps.items()},
        "memoryMiB": [round(min(rss)), round(max(rss))] if rss else [],
    }


def _spread(record: Record, steps: Sequence[float]) -> dict[str, float]:
    """Seconds: the longest pause of the quiet run; of the hostile rounds half, nine of ten, all."""
    quiet, hostile = compute_pauses(steps, record.quiet), sorted(compute_pauses(steps, record.hostile)) or [0.0]
    found = {"quiet": max(quiet, default=0.0), "half": hostile[len(hostile) // 2]}
    found |= {"nine": nine_of_ten(hostile), "all": hostile[-1]}
    return {name: round(value, 2) for name, value in found.items()}
