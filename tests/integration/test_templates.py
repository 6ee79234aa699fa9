"""A job and its ElasticJobTemplate on a real API server: it waits for it, takes it once, and keeps what it took."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from elasticjob_devcluster import Cluster, KubeError
from elasticjob_operator.cli.root import run
from operator_fixture import GROUP, MERGE, Jobs, OperatorProcess, light_spec, wait_for

PATIENCE = 240.0  # for what takes a second on an idle machine
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def template(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name}
    return {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJobTemplate", "metadata": metadata, "spec": spec}


def marks(jobs: Jobs, name: str) -> list[str | None]:
    """What the environment of each pod says of the template that it was made from."""
    found = []
    for pod in jobs.pods(name):
        env = {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
        found.append(env.get("MARK"))
    return found


def test_a_job_waits_for_its_template_and_keeps_what_it_took(
    cluster: Cluster, jobs: Jobs, operator: OperatorProcess, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kube = cluster.kube
    shared = f"shared-{secrets.token_hex(3)}"
    of_all = f"{GROUP}/namespaces/default/elasticjobtemplates"  # the operator's namespace
    whole = light_spec("--step-seconds", "0.1")
    trainer = whole["template"]["spec"]["containers"][0] | {"name": "node", "env": [{"name": "MARK", "value": "first"}]}
    of_template = {
        "elasticPolicy": whole["elasticPolicy"],
        "template": {"spec": {"containers": [trainer], "tolerations": [{"key": "gpu", "operator": "Exists"}]}},
    }
    own = {"containers": [{"name": "worker", "env": [{"name": "MINE", "value": "1"}]}]}
    jobs.create("taker", {"templateRef": {"name": shared}, "replicas": 1, "template": {"spec": own}})
    waits = jobs.await_condition("taker", "Degraded", timeout=PATIENCE)
    assert waits["reason"] == "TemplateNotFound"
    assert f"no ElasticJobTemplate {shared} in namespace {namespace} or default" in waits["message"]
    assert jobs.status("taker")["phase"] == "Pending"
    assert jobs.pods("taker") == []

    try:
        kube.request("POST", of_all, template(shared, of_template))
        jobs.await_world("taker", 1, timeout=PATIENCE)
        (pod,) = jobs.pods("taker")
        assert marks(jobs, "taker") == ["first"]
        assert [c["name"] for c in pod["spec"]["containers"]] == ["worker"]
        assert {"key": "gpu", "operator": "Exists"} in pod["spec"]["tolerations"]
        taken = jobs.status("taker")["template"]
        assert (taken["name"], taken["namespace"], taken["generation"]) == (shared, "default", 1)
        assert "elasticPolicy" in taken["fields"]
        assert "template.spec.containers[worker].image" in taken["fields"]
        assert jobs.get("taker")["spec"]["template"] == {"spec": own}, "what is stored stays what the user wrote"
        wait_for(lambda: jobs.condition("taker", "Degraded")["status"] == "False", "the condition is over", PATIENCE)
        target = ["-n", namespace, "--kubeconfig", str(cluster.kubeconfig)]
        assert run(["describe", "taker", *target]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert f"{shared} of namespace default, generation 1: elasticPolicy" in said
        assert "1 wanted, 1 to 4 allowed" in said

        # Neither a change nor the deletion of the template reaches the job, not even through a new operator.
        kube.request("PATCH", f"{of_all}/{shared}", {"spec": {"elasticPolicy": {"maxReplicas": 1}}}, content_type=MERGE)
        jobs.scale("taker", 2)
        jobs.await_world("taker", 2, timeout=PATIENCE)
    finally:
        kube.request("DELETE", f"{of_all}/{shared}")
    operator.kill()
    operator.start()
    jobs.scale("taker", 3)
    jobs.await_world("taker", 3, timeout=PATIENCE)
    assert marks(jobs, "taker") == ["first"] * 3
    assert jobs.status("taker")["template"] == taken

    # What the job itself says can change still, within what the template says.
    with pytest.raises(KubeError) as caught:
        jobs.patch("taker", {"templateRef": {"kind": "Other"}})
    assert caught.value.status == 422
    jobs.patch("taker", {"runPolicy": {"suspend": True}})
    wait_for(lambda: not jobs.pods("taker"), "a suspended job has no pods", PATIENCE)
    jobs.patch("taker", {"runPolicy": {"suspend": False}})
    jobs.await_world("taker", 3, timeout=PATIENCE)


def test_the_template_of_the_namespace_comes_first_and_must_fit(cluster: Cluster, jobs: Jobs, namespace: str) -> None:
    kube = cluster.kube
    name = f"team.v1-{secrets.token_hex(3)}"
    whole = light_spec("--steps", "3")
    del whole["replicas"]
    near, far = (f"{GROUP}/namespaces/{place}/elasticjobtemplates" for place in (namespace, "default"))
    kube.request("POST", far, template(name, {"health": {"preflight": "Node"}, **whole}))
    try:
        kube.request("POST", near, template(name, whole | {"elasticPolicy": {"maxReplicas": 1}}))
        jobs.create("misfit", {"templateRef": {"name": name}, "elasticPolicy": {"minReplicas": 2}})
        refused = jobs.await_condition("misfit", "Degraded", timeout=PATIENCE)
        assert refused["reason"] == "InvalidSpec"
        assert f"together with ElasticJobTemplate {name} of namespace {namespace}" in refused["message"]
        assert "spec.elasticPolicy: minReplicas must not be greater than maxReplicas" in refused["message"]
        assert jobs.pods("misfit") == []
        jobs.patch("misfit", {"elasticPolicy": {"minReplicas": 1}})
        jobs.await_condition("misfit", "Complete", timeout=PATIENCE)
        assert jobs.status("misfit")["template"]["namespace"] == namespace
    finally:
        kube.request("DELETE", f"{far}/{name}")
