"""Many jobs, random faults, a long time: the operator's files, threads and memory stay flat, and no job is lost.

All randomness comes from the seed; the targets depend on what exists at that time.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from chaos.lab import Lane, Stage
from chaos.trials import Report
from elasticjob_devcluster import Cluster, ClusterError, KubeError, NodeSpec
from operator_fixture import wait_for

PODS_OF_A_NODE = 100  # each takes 110, and lost pods linger


def measure(pid: int) -> dict[str, float]:
    """Open files, threads and resident memory in MiB."""
    root = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (root / "status").read_text().splitlines())
    fds = sum(1 for _ in (root / "fd").iterdir())
    return {"fds": fds, "threads": int(status["Threads"]), "rss": int(status["VmRSS"].split()[0]) / 1024}


def run(cluster: Cluster, lane: Lane, seed: int, seconds: float, jobs: int, workers: int) -> Report:
    """Faults for this long; then they stop, every job has to train with all its workers again, and to complete."""
    report, dice, began = Report("soak", seed), random.Random(seed), time.monotonic()
    for number in range(jobs * workers // PODS_OF_A_NODE):
        cluster.add_node(NodeSpec(f"soak-{number}"))
    names = [f"soak-{i}" for i in range(jobs)]
    with lane.open() as stage:
        done = stage.directory / "done"
        policy = {"minReplicas": 1, "maxReplicas": workers}
        for name in names:
            arguments = ("--step-seconds", "2", "--until", str(done))
            stage.jobs.create(name, stage.spec(*arguments, replicas=workers, elasticPolicy=policy))
        for name in names:
            stage.jobs.await_world(name, workers, timeout=900)
        first, until = measure(stage.operator.pid), time.monotonic() + seconds
        print(json.dumps({"suite": "soak", "all train after": round(time.monotonic() - began)}), flush=True)
        while time.monotonic() < until:
            report.faults += _break(cluster, stage, dice, dice.choice(names), workers)
            time.sleep(dice.uniform(0.1, 0.8))
        for name in names:
            report.histories += 1
            with _noting(report, name):
                stage.jobs.await_world(name, workers, timeout=300)
        last = measure(stage.operator.pid)
        done.touch()
        for name in names:
            with _noting(report, name):
                stage.jobs.await_condition(name, "Complete", timeout=300)
        print(json.dumps({"suite": "soak", "first": first, "last": last}), flush=True)
        if last["fds"] > first["fds"] + 10 or last["threads"] > first["threads"] + 4:
            report.violations.append(f"it grows: {first} → {last}")
        if last["rss"] > first["rss"] * 1.3 + 20:
            report.violations.append(f"memory grows: {first} → {last}")
        if stage.operator.crashes or "this is a bug" in stage.operator.log:
            report.violations.append(f"the operator has a bug: {stage.operator.log[-2000:]}")
        for name in names:
            with contextlib.suppress(KubeError):
                stage.jobs.delete(name)
        wait_for(lambda: not any(stage.jobs.pods(n) for n in names), "all pods are gone", 300)
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report


@contextlib.contextmanager
def _noting(report: Report, name: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        report.violations.append(f"{name}: {error}")


def _break(cluster: Cluster, stage: Stage, dice: random.Random, name: str, workers: int) -> int:
    """One random fault; 0 where there was nothing to break."""
    what = dice.choice(["kill", "kill", "delete", "scale", "pause"])
    try:
        pods = [p for p in stage.jobs.pods(name) if p["status"].get("phase") == "Running"]
        if not pods:
            return 0
        pod = dice.choice(pods)["metadata"]["name"]
        if what == "kill":
            cluster.kill_pod(stage.jobs.namespace, pod, signal.SIGKILL)
        elif what == "delete":
            stage.jobs.kube.request("DELETE", f"/api/v1/namespaces/{stage.jobs.namespace}/pods/{pod}")
        elif what == "scale":
            stage.jobs.scale(name, dice.randint(1, workers))
            time.sleep(dice.uniform(0.0, 0.3))
            stage.jobs.scale(name, workers)
        else:
            cluster.kill_pod(stage.jobs.namespace, pod, signal.SIGSTOP)
            time.sleep(0.5)
            cluster.kill_pod(stage.jobs.namespace, pod, signal.SIGCONT)
    except (KubeError, ClusterError):  # it went away meanwhile
        return 0
    return 1
