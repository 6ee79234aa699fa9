"""The pool for real: six small jobs arrive over ten minutes on a devcluster with six slots.

The same jobs at the same times, once for each way to choose sizes: a fixed size (what a user would set, first come
first served: the next job is created as soon as all of its pods have room), equal shares, and the two objectives. API
server, scheduler, operator, agents and sessions are real, and so is the training of handwritten digits. How the jobs
scale is not: what an accelerator would compute is time asleep, on a declared curve, so that six pods on a small machine
scale as six accelerators would. Run it on an idle machine: `python -m benchmarks.pool --real-only` takes about an hour,
`--minutes 2` shortens everything alike, and `--load 2` makes each job twice as long, so that more of them are there at
a time. The first line is of the simulator: what the oracle would make of these jobs if changes, starts and
communication took no time. The real ratios can only be worse.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.harness import Options, Result, say
from benchmarks.pool import cases, engine, policies
from benchmarks.pool.workload import Arrival
from benchmarks.system import JOBS, System
from elasticjob_devcluster import NodeSpec

SLOTS: Final = "nvidia.com/gpu"
SCRIPT: Final = harness.ROOT / "benchmarks" / "scripts" / "pool_job.py"
LONGEST: Final = 6.0  # times the minutes in which the jobs arrive


@dataclass(frozen=True)
class Small:
    """One job: when it arrives and how long it is, as shares of the minutes; how it scales; what a user would fix."""

    name: str
    at: float
    work: float  # on one slot
    shared: float
    fixed: int


SLOT_COUNT: Final = 6
SMALL: Final = (
    Small("long", 0.0, 1.6, 0.97, 3),
    Small("short", 0.1, 0.2, 0.9, 2),
    Small("medium", 0.2, 0.9, 0.95, 3),
    Small("scales-less", 0.4, 0.3, 0.8, 2),
    Small("scales-little", 0.5, 0.3, 0.5, 1),
    Small("short-again", 0.7, 0.2, 0.9, 2),
)


@dataclass
class Outcome:
    """Of one day, seconds."""

    completions: dict[str, float] = field(default_factory=dict)
    slot_seconds: float = 0.0  # that pods held
    offered: float = 0.0  # that there were while jobs were there

    @property
    def mean(self) -> float:
        return sum(self.completions.values()) / len(self.completions)


def run(options: Options) -> Iterator[Result]:
    """Ours against fixed sizes and equal shares."""
    minutes, load = options.extra.minutes, options.extra.load
    yield simulate(60.0 * minutes, load)
    fixed = play("fixed", None, minutes, load)
    equal = play("equal", "equal", minutes, load)
    for objective in ("completion", "goodput"):
        ours = play(objective, objective, minutes, load)
        for name, peer in (("fixed sizes", fixed), ("equal shares", equal)):
            yield Result("pool", f"real: mean completion, {objective}", [ours.mean], name, [peer.mean])
        wasted = [1 - one.slot_seconds / one.offered for one in (ours, fixed)]
        yield Result("pool", f"real: wasted share of the slots, {objective}", wasted[:1], "fixed sizes", wasted[1:])


@dataclass(frozen=True)
class Declared(Arrival):
    """A small job as the simulator sees it."""

    shared: float

    @property
    def most(self) -> int:
        return SLOT_COUNT

    def speed(self, devices: int) -> float:
        return 1.0 / (self.shared / devices + 1.0 - self.shared) if devices else 0.0


def simulate(seconds: float, load: float) -> Result:
    """The oracle against fixed sizes, of the same jobs, with nothing but their declared curves."""
    arrivals = [
        Declared(one.name, "", one.at * seconds, one.work * load * seconds, one.fixed, one.shared) for one in SMALL
    ]
    pool = engine.steady(SLOT_COUNT)
    oracle, fixed = (
        engine.simulate(arrivals, policy, pool, engine.FREE) for policy in (cases.ORACLE[0].make(), policies.Fixed())
    )
    return Result(
        "pool", "real jobs, simulated: mean completion, oracle completion", [oracle.mean], "fixed sizes", [fixed.mean]
    )


def play(name: str, objective: str | None, minutes: float, load: float) -> Outcome:
    """One day on a cluster of its own; `objective` None leaves every job at its fixed size."""
    flags = ("--pool-objective", objective) if objective else ()
    with tempfile.TemporaryDirectory(prefix="elasticjob-bench-pool-") as folder:
        nodes = tuple(NodeSpec(f"node-{number}", gpus=2) for number in range(SLOT_COUNT // 2))
        with System(Path(folder), nodes=nodes, operator_flags=("--stable-seconds", "1", *flags)) as system:
            return _play(system, name, pooled=objective is not None, seconds=60.0 * minutes, load=load)


def _play(system: System, name: str, *, pooled: bool, seconds: float, load: float) -> Outcome:
    kube, namespace = system.cluster.kube, system.make_namespace()
    path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
    began, before = time.monotonic(), 0.0
    outcome, waiting = Outcome(), list(SMALL)
    running: dict[str, Small] = {}
    while waiting or len(outcome.completions) < len(SMALL):
        now = time.monotonic() - began
        if now > LONGEST * seconds * max(1.0, load):
            raise RuntimeError(f"{name}: {sorted(running)} did not complete in time")
        while waiting and waiting[0].at * seconds <= now:
            if not pooled and sum(one.fixed for one in running.values()) + waiting[0].fixed > SLOT_COUNT:
                break
            job = waiting.pop(0)
            kube.request("POST", path, manifest(job, load * seconds, pooled=pooled))
            running[job.name] = job
        sizes = {}
        for item in kube.request("GET", path)["items"]:
            status, job_name = item.get("status") or {}, item["metadata"]["name"]
            if status.get("phase") == "Failed":
                raise RuntimeError(f"{name}: {job_name} failed: {status.get('lastFailure')}")
            if status.get("phase") == "Complete" and job_name in running:
                outcome.completions[job_name] = now - running.pop(job_name).at * seconds
                say(f"real, {name}: {job_name} took {outcome.completions[job_name]:.0f} s from its arrival")
            elif status.get("phase") != "Complete":
                sizes[job_name] = int(status.get("readyReplicas") or 0)
        if sizes:
            outcome.offered += SLOT_COUNT * (now - before)
            outcome.slot_seconds += sum(sizes.values()) * (now - before)
        before = now
        time.sleep(0.5)
    say(f"real, {name}: mean completion {outcome.mean:.0f} s")
    return outcome


def manifest(job: Small, seconds: float, *, pooled: bool) -> dict[str, Any]:
    """Steps of a fifth of a second, as many as make the job as long as it is to be on one slot."""
    step = 0.2
    words: Sequence[str] = (
        *("elasticjob-run", str(SCRIPT), "--steps", str(max(1, round(job.work * seconds / step)))),
        *("--step-seconds", str(step), "--shared", str(job.shared)),
    )
    environment = [{"name": "GLOO_SOCKET_IFNAME", "value": "lo"}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    container = {
        "name": "worker",
        "image": "none",
        "command": ["sh", "-c", f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH exec {shlex.join(words)}"],
        "env": environment,
        "resources": {"limits": {SLOTS: "1"}},
    }
    spec: dict[str, Any] = {
        "nprocPerNode": 1,
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 6},
        "template": {"spec": {"containers": [container]}},
    }
    if pooled:
        spec["scaling"] = {"mode": "Goodput"}
    else:
        spec["elasticPolicy"] = {"minReplicas": job.fixed, "maxReplicas": job.fixed}
        spec["replicas"] = job.fixed
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": job.name},
        "spec": spec,
    }
