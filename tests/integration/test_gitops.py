"""What a GitOps tool applies again and again: no conflict and no difference, whoever sets the size meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob_devcluster import KubeError
from elasticjob_devcluster.flags import parse_version
from operator_fixture import Jobs, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_what_is_applied_again_changes_nothing(jobs: Jobs) -> None:
    spec = light_spec()
    del spec["replicas"]  # somebody else's
    jobs.apply("kept", spec)
    jobs.await_world("kept", 4)
    wait_for(lambda: jobs.differs("kept", spec) == {}, "there is no difference while it trains")
    jobs.scale("kept", 2)  # as an autoscaler does
    shrunk = jobs.await_world("kept", 2, above=1)["rendezvous"]["generation"]
    wait_for(lambda: jobs.differs("kept", spec) == {}, "there is no difference after it was scaled")
    for _ in range(3):
        jobs.apply("kept", spec)
    assert jobs.get("kept")["spec"]["replicas"] == 2
    assert jobs.status("kept")["rendezvous"]["generation"] == shrunk
    assert not [message for reason, message in jobs.events("kept") if reason == "SizeContested"]


def test_a_size_that_somebody_else_has_set_is_a_conflict(jobs: Jobs) -> None:
    """Of whoever has it in the file: the API server names the field."""
    if parse_version(jobs.cluster.version) < (1, 25):
        pytest.skip("old API servers do not note who writes the subresource")
    spec = light_spec()
    jobs.apply("kept", spec)
    jobs.await_world("kept", 2)
    jobs.scale("kept", 3)
    jobs.await_world("kept", 3)
    with pytest.raises(KubeError, match=r"\.spec\.replicas"):
        jobs.apply("kept", spec)
    assert jobs.get("kept")["spec"]["replicas"] == 3


def test_a_spec_with_all_that_the_operator_fills_in_stays_as_it_was_written(jobs: Jobs) -> None:
    spec = light_spec(replicas=1)
    jobs.apply("plain", spec)
    jobs.await_world("plain", 1)
    assert jobs.get("plain")["spec"].keys() == spec.keys(), "defaults are the operator's, and not written"
    jobs.patch("plain", {"runPolicy": {"suspend": True}})  # by somebody else, of a field that is not applied
    jobs.await_condition("plain", "Suspended")
    wait_for(lambda: jobs.differs("plain", spec) == {}, "there is no difference while it is suspended")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        pytest.param({"restartPolicy": "OnFailure"}, "InvalidSpec", id="the operator refuses it"),
        pytest.param({"terminationGracePeriodSeconds": 5, "dnsPolicy": "None"}, "InvalidTemplate", id="the API server"),
    ],
)
def test_a_manifest_that_is_corrected_before_the_job_began_starts_it(
    jobs: Jobs, wrong: dict[str, Any], reason: str
) -> None:
    spec = light_spec()
    right = spec["template"]["spec"]
    jobs.apply("wrong", {**spec, "template": {"spec": {**right, **wrong}}})
    assert jobs.await_condition("wrong", "Failed")["reason"] == reason
    jobs.apply("wrong", spec)
    status = jobs.await_world("wrong", 2)
    truths = {one["type"]: one["status"] for one in status["conditions"]}
    assert (truths["Failed"], truths["Running"], truths.get("Stalled")) == ("False", "True", "False")
    assert "completionTime" not in status
    assert status["observedGeneration"] == jobs.get("wrong")["metadata"]["generation"]
    assert "Corrected" in dict(jobs.events("wrong"))


def test_a_size_that_the_pool_has_chosen_is_no_difference(jobs: Jobs) -> None:
    spec = light_spec("--step-seconds", "0.2", scaling={"mode": "Goodput"}, elasticPolicy={"maxReplicas": 2})
    del spec["replicas"]
    spec["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    jobs.apply("pooled", spec)
    jobs.await_world("pooled", 2, timeout=120)
    wait_for(lambda: jobs.get("pooled")["spec"].get("replicas") == 2, "the pool has written its choice")
    for _ in range(3):
        wait_for(lambda: jobs.differs("pooled", spec) == {}, "there is no difference")
        jobs.apply("pooled", spec)
    assert jobs.get("pooled")["spec"]["replicas"] == 2
    assert not jobs.status("pooled")["scaling"].get("pinned"), "applying it again takes it not from the pool"
