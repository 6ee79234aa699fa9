"""Jobs that are stored, and break a rule that a newer definition brings: API servers refuse their status, too.

They check the whole object whenever a part of it is written. The rule is one between two fields, where the API server
keeps such rules; before Kubernetes 1.25, it is the bound of a field.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticjob_devcluster import Cluster, KubeError
from operator_fixture import MERGE, ROOT, Jobs, OperatorProcess, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

DEFINITION = ROOT / "crds/elasticjob.dev_elasticjobs.yaml"
TOO_MANY = 200_000  # replicas: above the largest number of any job, and above this job's maxReplicas
MOST_LINES = 10  # about one refused status: it is tried later and later


@contextlib.contextmanager
def older_definition(cluster: Cluster) -> Iterator[None]:
    """Without rules and upper bounds, until the block ends."""
    newer = yaml.safe_load(DEFINITION.read_text())
    write_definition(cluster, without_rules(newer))
    try:
        yield
    finally:
        write_definition(cluster, newer)


def without_rules(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_rules(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_rules(one) for key, one in schema.items() if key not in ("x-kubernetes-validations", "maximum")
    }


def write_definition(cluster: Cluster, body: dict[str, Any]) -> None:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{body['metadata']['name']}"
    version = cluster.kube.request("GET", path)["metadata"]["resourceVersion"]
    cluster.kube.request("PUT", path, {**body, "metadata": {**body["metadata"], "resourceVersion": version}})


def is_taken(jobs: Jobs, name: str, replicas: int) -> bool:
    """Whether the API server would take this number: it serves a new definition after a moment."""
    path = f"{jobs.path}/{name}?dryRun=All"
    try:
        jobs.kube.request("PATCH", path, {"spec": {"replicas": replicas}}, content_type=MERGE)
    except KubeError as error:
        assert error.status == 422
        return False
    return True


def count_steps(log: Path) -> int:
    return log.read_text().count('"step"') if log.exists() else 0


def test_a_job_that_breaks_a_new_rule_trains_on_and_is_told_the_rule(
    jobs: Jobs, operator: OperatorProcess, tmp_path: Path
) -> None:
    log = tmp_path / "steps"
    spec = light_spec(replicas=4)
    spec["template"]["spec"]["containers"][0]["env"] = [{"name": "LIGHT_LOG", "value": str(log)}]
    jobs.create("stored", spec)
    before = jobs.await_world("stored", 4)
    with older_definition(jobs.cluster):
        wait_for(lambda: is_taken(jobs, "stored", TOO_MANY), "the older definition is served")
        jobs.scale("stored", TOO_MANY)
        assert "replicas" in jobs.await_condition("stored", "Degraded")["message"]
        operator.kill()  # otherwise it may tell the refusal, too
    wait_for(lambda: not is_taken(jobs, "stored", TOO_MANY), "the newer definition is served")
    operator.start()
    told = wait_for(lambda: [m for r, m in jobs.events("stored") if r == "StatusRefused"], "it is told")
    made = count_steps(log)
    wait_for(lambda: count_steps(log) > made + 400, "it trains on")
    assert [m for r, m in jobs.events("stored") if r == "StatusRefused"] == told, "once"
    assert len(told) == 1
    assert "replicas" in told[0]
    assert "less than or equal to 100000" in told[0] or "greater than elasticPolicy.maxReplicas" in told[0]
    assert "status." not in told[0], "no part of the status is to blame"
    about = [line for line in operator.log.splitlines() if "is invalid" in line]
    assert len(about) <= MOST_LINES, "it is tried later and later"

    jobs.scale("stored", 4)

    def is_written() -> bool:
        status, generation = jobs.status("stored"), jobs.get("stored")["metadata"]["generation"]
        degraded = jobs.condition("stored", "Degraded")
        return status.get("observedGeneration") == generation and degraded.get("status") != "True"

    wait_for(is_written, "the status is written")
    after = jobs.status("stored")
    assert after["rendezvous"]["generation"] == before["rendezvous"]["generation"], "no training was interrupted"
    assert after["restarts"].get("total", 0) == before["restarts"].get("total", 0)
