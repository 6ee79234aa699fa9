"""The CRD on a real API server: it is structural, the scale subresource works, CEL and validators agree."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from controller.api.test_api import BAD_ACROSS_FIELDS, BAD_CHANGES, GOOD_CHANGES
from controller.builders import TEMPLATE
from elasticjob_devcluster import Cluster, KubeError
from elasticjob_operator import api
from integration.illnesses import ILLNESSES
from operator_fixture import ROOT, install_crd

pytestmark = pytest.mark.cluster
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/elasticjobs.elasticjob.dev"


def jobs(namespace: str) -> str:
    return f"/apis/elasticjob.dev/v1alpha1/namespaces/{namespace}/elasticjobs"


def job(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def stored(cluster: Cluster) -> dict[str, Any]:
    """The CRD as the server keeps it."""
    install_crd(cluster)
    found: dict[str, Any] = cluster.kube.request("GET", CRD)
    return found


def _skip_without_rules(stored: dict[str, Any]) -> None:
    schema = stored["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    if "x-kubernetes-validations" not in schema:
        pytest.skip("this API server does not keep CEL rules (Kubernetes before 1.25)")


def test_the_server_calls_it_structural(stored: dict[str, Any]) -> None:
    conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert conditions["Established"] == "True"


def test_a_minimal_job_is_kept_as_written(cluster: Cluster, stored: dict[str, Any], namespace: str) -> None:
    spec = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}, "replicas": 2, "template": TEMPLATE}
    cluster.kube.request("POST", jobs(namespace), job("plain", {**spec, "runPolicy": {"suspend": True}}))
    made = cluster.kube.request("GET", f"{jobs(namespace)}/plain")
    assert made["spec"] == {**spec, "runPolicy": {"suspend": True}}
    scale = cluster.kube.request("GET", f"{jobs(namespace)}/plain/scale")
    assert scale["spec"]["replicas"] == 2


def list_examples() -> list[dict[str, Any]]:
    """What docs/health.md writes as people would, and what its table does."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/health.md").read_text(), re.MULTILINE | re.DOTALL)
    written = [yaml.safe_load(block) for block in blocks]
    return [one["spec"] for one in written if "spec" in one] + [
        {"health": {"rules": one.rules, **one.health}} for one in ILLNESSES if one.rules
    ]


def test_the_examples_of_the_page_about_health_are_kept_as_written(
    cluster: Cluster, stored: dict[str, Any], namespace: str
) -> None:
    examples = list_examples()
    assert len(examples) > 15
    for number, example in enumerate(examples):
        spec = {"template": TEMPLATE, **example}
        made = cluster.kube.request("POST", jobs(namespace), job(f"job-{number}", spec))
        assert made["spec"] == spec
        api.parse_spec(spec)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"template": TEMPLATE, "replicas": 0}, id="replicas-too-small"),
        pytest.param({"template": TEMPLATE, "replicas": "two"}, id="replicas-no-number"),
        pytest.param({"template": TEMPLATE, "successPolicy": "Some"}, id="unknown-policy"),
        pytest.param({"template": TEMPLATE, "runPolicy": {"activeDeadlineSeconds": 0}}, id="deadline-too-small"),
        pytest.param({"templateRef": {}}, id="no-name-of-a-template"),
        pytest.param({"templateRef": {"kind": "Job", "name": "a"}}, id="no-template-by-its-kind"),
    ],
)
def test_the_schema_refuses(cluster: Cluster, stored: dict[str, Any], namespace: str, spec: dict[str, Any]) -> None:
    with pytest.raises(KubeError) as caught:
        cluster.kube.request("POST", jobs(namespace), job("bad", spec))
    assert caught.value.status == 422


@pytest.mark.parametrize(("spec", "field", "message"), BAD_ACROSS_FIELDS)
def test_cel_refuses_what_the_validators_refuse(
    cluster: Cluster, stored: dict[str, Any], namespace: str, spec: dict[str, Any], field: str, message: str
) -> None:
    _skip_without_rules(stored)
    with pytest.raises(KubeError) as caught:
        cluster.kube.request("POST", jobs(namespace), job("bad", spec))
    assert caught.value.status == 422
    assert message in str(caught.value)


def test_a_pod_template_is_required_or_comes_from_elsewhere(
    cluster: Cluster, stored: dict[str, Any], namespace: str
) -> None:
    _skip_without_rules(stored)
    with pytest.raises(KubeError, match="template is required: set a pod template, or name") as caught:
        cluster.kube.request("POST", jobs(namespace), job("bad", {"replicas": 1}))
    assert caught.value.status == 422
    made = cluster.kube.request("POST", jobs(namespace), job("short", {"templateRef": {"name": "a"}}))
    with pytest.raises(KubeError, match="templateRef cannot change"):
        cluster.kube.request("PUT", f"{jobs(namespace)}/short", {**made, "spec": {"templateRef": {"name": "b"}}})


@pytest.mark.parametrize(("before", "after", "field"), BAD_CHANGES)
def test_cel_refuses_what_cannot_change_while_the_job_runs(
    cluster: Cluster, stored: dict[str, Any], namespace: str, before: dict[str, Any], after: dict[str, Any], field: str
) -> None:
    _skip_without_rules(stored)
    path = f"{jobs(namespace)}/change"
    made = cluster.kube.request("POST", jobs(namespace), job("change", before))
    with pytest.raises(KubeError, match=f"{field} cannot change while the job runs") as caught:
        cluster.kube.request("PUT", path, {**made, "spec": after})
    assert caught.value.status == 422
    cluster.kube.request("PUT", path, {**made, "spec": {**after, "runPolicy": {"suspend": True}}})


@pytest.mark.parametrize(("before", "after"), GOOD_CHANGES)
def test_what_may_change_while_the_job_runs(
    cluster: Cluster, stored: dict[str, Any], namespace: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    made = cluster.kube.request("POST", jobs(namespace), job("change", before))
    cluster.kube.request("PUT", f"{jobs(namespace)}/change", {**made, "spec": after})
