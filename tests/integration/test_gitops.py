"""What a GitOps tool applies again and again: no conflict and no difference, whoever sets the size meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from operator_fixture import Jobs, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

APPLY = "application/apply-patch+yaml"


def apply(jobs: Jobs, name: str, spec: dict[str, Any], *, dry: bool = False) -> dict[str, Any]:
    """As `kubectl apply --server-side` does, or with `dry` as `kubectl diff --server-side`. A conflict is an error."""
    body = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}, "spec": spec}
    path = f"{jobs.path}/{name}?fieldManager=gitops" + ("&dryRun=All" if dry else "")
    return jobs.kube.request("PATCH", path, body, content_type=APPLY)


def differs(jobs: Jobs, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The parts that applying this spec would change."""
    before, after = jobs.get(name), apply(jobs, name, spec, dry=True)
    parts = {part: (before[part], after[part]) for part in ("spec", "status") if before.get(part) != after.get(part)}
    generations = before["metadata"]["generation"], after["metadata"]["generation"]
    return parts | ({"generation": generations} if len({*generations}) > 1 else {})


def test_what_is_applied_again_changes_nothing(jobs: Jobs) -> None:
    spec = light_spec()
    del spec["replicas"]  # somebody else's
    apply(jobs, "kept", spec)
    jobs.await_world("kept", 4)
    wait_for(lambda: differs(jobs, "kept", spec) == {}, "there is no difference while it trains")
    jobs.scale("kept", 2)  # as an autoscaler does
    shrunk = jobs.await_world("kept", 2, above=1)["rendezvous"]["generation"]
    wait_for(lambda: differs(jobs, "kept", spec) == {}, "there is no difference after it was scaled")
    for _ in range(3):
        apply(jobs, "kept", spec)
    assert jobs.get("kept")["spec"]["replicas"] == 2
    assert jobs.status("kept")["rendezvous"]["generation"] == shrunk
    assert not [message for reason, message in jobs.events("kept") if reason == "SizeContested"]


def test_a_spec_with_all_that_the_operator_fills_in_stays_as_it_was_written(jobs: Jobs) -> None:
    spec = light_spec(replicas=1)
    apply(jobs, "plain", spec)
    jobs.await_world("plain", 1)
    assert jobs.get("plain")["spec"].keys() == spec.keys(), "defaults are the operator's, and not written"
    jobs.patch("plain", {"runPolicy": {"suspend": True}})  # by somebody else, of a field that is not applied
    jobs.await_condition("plain", "Suspended")
    wait_for(lambda: differs(jobs, "plain", spec) == {}, "there is no difference while it is suspended")


def test_a_size_that_the_pool_has_chosen_is_no_difference(jobs: Jobs) -> None:
    spec = light_spec("--step-seconds", "0.2", scaling={"mode": "Goodput"}, elasticPolicy={"maxReplicas": 2})
    del spec["replicas"]
    spec["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    apply(jobs, "pooled", spec)
    jobs.await_world("pooled", 2, timeout=120)
    wait_for(lambda: jobs.get("pooled")["spec"].get("replicas") == 2, "the pool has written its choice")
    for _ in range(3):
        wait_for(lambda: differs(jobs, "pooled", spec) == {}, "there is no difference")
        apply(jobs, "pooled", spec)
    assert jobs.get("pooled")["spec"]["replicas"] == 2
    assert not jobs.status("pooled")["scaling"].get("pinned"), "applying it again takes it not from the pool"
