"""Random jobs for API server and operator: whatever a user writes, the operator names the invalid field.

It must not exit, hit an internal error or retry without back-off, and every job that it manages has a condition. It
reports nothing about jobs that another controller manages.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from chaos.lab import Lane, Stage
from chaos.specs import Maker
from chaos.trials import Report
from elasticjob_devcluster import KubeError
from elasticjob_operator import api
from elasticjob_operator.api import names
from operator_fixture import wait_for

PATIENCE = 120.0


def run(lane: Lane, seed: int, count: int) -> Report:
    report, began = Report("fuzz", seed), time.monotonic()
    with lane.open() as stage:
        jobs, refused = _create(stage, Maker(seed), count, report)
        try:
            _look_at(stage, jobs, report)
        finally:
            _remove(stage, jobs)
    report.histories, report.faults = count, refused + sum(1 for spec in jobs.values() if _problem(spec))
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report


def _create(stage: Stage, maker: Maker, count: int, report: Report) -> tuple[dict[str, dict[str, Any]], int]:
    """The specs that the API server took, by name, and how many it refused."""
    taken, refused = {}, 0
    for number in range(count):
        name, spec = f"fuzz-{number:03}", maker.spec()
        try:
            stage.jobs.create(name, spec)
            if _is_ours(spec):
                taken[name] = spec
        except KubeError as error:
            refused += 1
            if error.status not in (400, 422) or "spec" not in str(error):
                report.violations.append(f"{name}: the API server says {error} to {spec}")
    return taken, refused


def _look_at(stage: Stage, jobs: dict[str, dict[str, Any]], report: Report) -> None:
    silent: list[str] = []

    def all_said() -> bool:
        found = {j["metadata"]["name"]: j for j in stage.jobs.kube.request("GET", stage.jobs.path)["items"]}
        silent[:] = [n for n in jobs if n in found and not (found[n].get("status") or {}).get("conditions")]
        return not silent

    with contextlib.suppress(AssertionError):
        wait_for(all_said, "", PATIENCE, 0.5)
    report.violations += [f"{name}: nothing is said of {jobs[name]}" for name in silent]
    for name, spec in jobs.items():
        wrong = _judge(stage, name)
        if wrong:
            report.violations.append(f"{name}: {wrong}; spec {spec}")
    time.sleep(6)  # what is tried again is tried ever more rarely
    before = len(stage.proxy.requests)
    time.sleep(5)
    made = sum(stage.proxy.count(before).values())
    if made > 5 * len(jobs):
        report.violations.append(f"{made} requests in 5 s: {stage.proxy.count(before).most_common(6)}")
    log = stage.operator.log
    report.violations += [f"the operator: {w!r} in {log[-3000:]}" for w in ("this is a bug", "Traceback") if w in log]
    if stage.operator.crashes:
        report.violations.append(f"the operator ended by itself: {log[-3000:]}")


def _is_ours(spec: dict[str, Any]) -> bool:
    policy = spec.get("runPolicy")
    named = (spec, policy) if isinstance(policy, dict) else (spec,)
    return all(place.get("managedBy") in (None, names.MANAGED_BY) for place in named)


def _problem(spec: dict[str, Any]) -> str:
    """The first field that is wrong, and the remedy, as the user is to be told; empty where nothing is wrong."""
    try:
        api.parse_spec(spec)
    except api.InvalidJobError as error:
        return str(error.problems[0])
    return ""


def _judge(stage: Stage, name: str) -> str:
    """What is wrong with what the operator says of a job."""
    job = stage.jobs.get(name)
    if not job:
        return ""  # its time to live was over
    # Some is dropped or filled in before it is stored: what counts is what the operator was shown.
    problem = _problem(job["spec"])
    conditions = stage.jobs.status(name).get("conditions", [])
    said = {c["reason"]: str(c.get("message", "")) for c in conditions if c["status"] == "True"}
    if problem and not any(problem in message for message in said.values()):
        return f"{problem}; and it says {conditions}"
    if "InvalidSpec" in said and not problem:
        return f"nothing is wrong, and it says {conditions}"
    if "spec.template" not in said.get("InvalidTemplate", "spec.template"):
        return f"no field is named in {said}"
    return ""


def _remove(stage: Stage, jobs: dict[str, dict[str, Any]]) -> None:
    for name in jobs:
        with contextlib.suppress(KubeError):
            stage.jobs.delete(name)
    path = f"/api/v1/namespaces/{stage.jobs.namespace}/pods"
    for pod in stage.jobs.kube.request("GET", path)["items"]:
        with contextlib.suppress(KubeError):
            stage.jobs.kube.request("DELETE", f"{path}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
