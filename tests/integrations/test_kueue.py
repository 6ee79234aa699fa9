"""Jobs in queues through a real API server, admitted by a stand-in and by Kueue itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import KubeError
from integration import test_last_saves as last_saves
from integrations.conftest import Admitter, Queues
from integrations.kueue_standin import find, is_true
from operator_fixture import OperatorProcess, light_spec, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

AT_ONCE = 5  # see `side_by_side`: each has up to six agents

INVALID: dict[str, Any] = {"template": {"spec": {"containers": []}}}


def bounds(min: int, max: int) -> dict[str, Any]:
    return {"elasticPolicy": {"minReplicas": min, "maxReplicas": max}, "replicas": max}


READY_SECONDS = 8.0


@pytest.fixture
def waits(kueue: Admitter) -> Iterator[Admitter]:
    """Whoever admits Workloads, waiting for their pods."""
    kueue.wait_for_pods(READY_SECONDS)
    yield kueue
    kueue.wait_for_pods(None)


def names_of(events: list[tuple[str, str]]) -> set[str]:
    return {reason for reason, _ in events}


class TestAdmission:
    @together
    def test_a_job_waits_without_pods_and_runs_when_it_is_admitted(self, queues: Queues) -> None:
        jobs = queues.jobs
        queues.make("gpus", 4)
        queues.submit("first", "gpus", **bounds(3, 3))
        jobs.await_world("first", 3)
        queues.submit("second", "gpus", **bounds(2, 2))
        wait_for(lambda: queues.condition("second") == ("False", "Pending"), "the second one waits")
        jobs.await_condition("second", "Suspended")
        assert jobs.pods("second") == []
        assert jobs.status("second")["phase"] == "Suspended"
        jobs.delete("first")
        jobs.await_world("second", 2)
        assert queues.condition("second") == ("True", "Admitted")

    @together
    def test_a_queue_that_only_the_pods_name_is_told(self, queues: Queues) -> None:
        """Kueue queues jobs: its user would believe that this one has waited for its quota."""
        jobs = queues.jobs
        queues.make("gpus", 1)
        spec = light_spec(**bounds(2, 2))
        spec["template"]["metadata"] = {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
        jobs.create("misplaced", spec)
        jobs.await_world("misplaced", 2)
        told = jobs.await_condition("misplaced", "Warning")
        assert told["reason"] == "NotQueued"
        assert told["message"].startswith("spec.template.metadata.labels[kueue.x-k8s.io/queue-name] names the queue")
        assert "metadata.labels of the job" in told["message"]

    @together
    def test_pods_carry_what_ties_them_to_their_workload(self, queues: Queues) -> None:
        queues.make("gpus", 3)
        queues.submit("tied", "gpus", **bounds(2, 3))
        queues.jobs.await_world("tied", 3)
        own = {
            int(w["metadata"]["annotations"]["elasticjob.dev/first-index"]): w["metadata"]["name"]
            for w in queues.workloads("tied")
        }
        found = {
            int(p["metadata"]["labels"]["elasticjob.dev/replica-index"]): p["metadata"]["annotations"][
                "kueue.x-k8s.io/workload"
            ]
            for p in queues.jobs.pods("tied")
        }
        assert found == {0: own[0], 1: own[0], 2: own[2]}
        wait_for(
            lambda: all(find(w, "PodsReady").get("status") == "True" for w in queues.workloads("tied")),
            "PodsReady is told",
        )

    @together
    def test_growth_waits_for_quota(self, queues: Queues) -> None:
        jobs = queues.jobs
        queues.make("gpus", 3)
        queues.submit("grows", "gpus", **bounds(2, 4))
        status = jobs.await_world("grows", 3)
        wait_for(lambda: "1 more wait" in jobs.condition("grows", "Admitted").get("message", ""), "what waits is told")
        degraded = wait_for(lambda: jobs.condition("grows", "Degraded"), "it says why it is smaller")
        assert degraded["message"] == "3 of 4 requested pods are training: its queue has admitted 3 pods"
        queues.resize("gpus", 4)
        jobs.await_world("grows", 4, status["rendezvous"]["generation"])

    @together
    def test_a_shrink_gives_quota_back(self, queues: Queues) -> None:
        jobs = queues.jobs
        queues.make("gpus", 4)
        queues.submit("big", "gpus", **bounds(1, 4))
        jobs.await_world("big", 4)
        queues.submit("small", "gpus", **bounds(2, 2))
        wait_for(lambda: queues.condition("small") == ("False", "Pending"), "it waits")
        jobs.scale("big", 2)
        jobs.await_world("small", 2)
        assert jobs.status("big")["readyReplicas"] == 2

    @together
    def test_applying_a_job_again_takes_nothing_from_its_queue_or_its_autoscaler(self, queues: Queues) -> None:
        jobs = queues.jobs
        queues.make("gpus", 4)
        spec, labels = light_spec(**bounds(1, 4)), {"kueue.x-k8s.io/queue-name": "gpus"}
        del spec["replicas"]

        def apply_again(size: int, asked: int) -> None:
            generation = jobs.await_world("kept", size)["rendezvous"]["generation"]
            wait_for(lambda: jobs.differs("kept", spec, labels=labels) == {}, "there is no difference")
            for _ in range(3):
                jobs.apply("kept", spec, labels=labels)
            assert jobs.get("kept")["spec"]["replicas"] == asked
            assert jobs.status("kept")["rendezvous"]["generation"] == generation

        jobs.apply("kept", spec, labels=labels)
        apply_again(4, asked=4)
        jobs.scale("kept", 3)
        apply_again(3, asked=3)
        queues.submit("urgent", "gpus", priority="high", **bounds(2, 2))
        jobs.await_world("urgent", 2)
        apply_again(2, asked=3)
        jobs.delete("urgent")
        apply_again(3, asked=3)
        assert "SizeContested" not in names_of(jobs.events("kept"))

    @together
    def test_quota_follows_the_bounds_where_nobody_has_written_a_number(self, queues: Queues) -> None:
        jobs = queues.jobs
        queues.make("gpus", 3)
        queues.submit("open", "gpus", elasticPolicy={"minReplicas": 1, "maxReplicas": 2}, replicas=None)
        jobs.await_world("open", 2)
        jobs.patch("open", {"elasticPolicy": {"maxReplicas": 3}})
        jobs.await_world("open", 3)
        jobs.patch("open", {"elasticPolicy": {"maxReplicas": 1}})
        jobs.await_world("open", 1)
        wait_for(lambda: queues.admitted("open") == 1, "the quota is given back")

    @pytest.mark.parametrize(
        ("queue", "size", "reason"),
        [
            pytest.param("nowhere", 1, "QueueNotFound", id="no queue"),
            pytest.param("gpus", 5, "QuotaTooSmall", id="too big"),
        ],
    )
    @together
    def test_what_can_never_be_admitted_says_so(self, queues: Queues, queue: str, size: int, reason: str) -> None:
        queues.make("gpus", 4)
        queues.submit("never", queue, **bounds(size, size))
        wait_for(lambda: queues.condition("never") == ("False", reason), f"{reason}: {queues.condition('never')}")
        assert queues.jobs.pods("never") == []

    @together
    def test_a_class_that_does_not_exist_is_told(self, queues: Queues) -> None:
        queues.make("gpus", 4)
        queues.submit("classy", "gpus", priority="nobility", **bounds(1, 1))
        wait_for(lambda: queues.condition("classy") == ("False", "WorkloadRefused"), "it says so")
        assert "nobility" in queues.jobs.condition("classy", "Admitted")["message"]

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            pytest.param({"restartPolicy": "OnFailure"}, "InvalidSpec", id="before it was queued"),
            pytest.param({"terminationGracePeriodSeconds": 5, "dnsPolicy": "None"}, "InvalidTemplate", id="admitted"),
        ],
    )
    @together
    def test_a_job_that_is_corrected_is_queued_anew(self, queues: Queues, wrong: dict[str, Any], reason: str) -> None:
        jobs = queues.jobs
        queues.make("gpus", 2)
        spec = light_spec(**bounds(2, 2))
        right = spec["template"]["spec"]
        spec["template"] = {"spec": {**right, **wrong}}
        queues.submit("wrong", "gpus", **spec)
        assert jobs.await_condition("wrong", "Failed")["reason"] == reason
        queues.submit("other", "gpus", **bounds(2, 2))
        jobs.await_world("other", 2)
        jobs.patch("wrong", {"template": {"spec": {**dict.fromkeys(wrong), **right}}})
        wait_for(lambda: queues.condition("wrong") == ("False", "Pending"), "it waits for the quota of another one")
        assert jobs.pods("wrong") == []
        jobs.delete("other")
        status = jobs.await_world("wrong", 2, timeout=120)
        assert queues.admitted("wrong") == 2
        assert not status["restarts"].get("total")
        assert jobs.condition("wrong", "Failed")["status"] == "False"
        assert "Corrected" in names_of(jobs.events("wrong"))


class TestPodsReady:
    """Kueue waits for the pods of what it has admitted (`waitForPodsReady`), and takes the quota back."""

    def test_a_job_that_does_not_start_is_queued_again_and_says_why(self, queues: Queues, waits: Admitter) -> None:
        jobs = queues.jobs
        queues.make("gpus", 2)
        spec = light_spec(**bounds(2, 2))
        spec["template"]["spec"]["containers"][0]["image"] = "registry.invalid/no/such:image"
        queues.submit("late", "gpus", **spec)
        for _ in range(2):
            wait_for(lambda: jobs.pods("late"), "it is admitted, and has pods")
            wait_for(
                lambda: queues.condition("late")[0] == "False" and not jobs.pods("late"), "its quota is taken back"
            )
        waits.wait_for_pods(READY_SECONDS, requeues=0)
        wait_for(lambda: queues.condition("late") == ("False", "Deactivated"), "it was tried often enough", 90)
        wait_for(lambda: not jobs.pods("late"), "it has no pods")
        told = jobs.condition("late", "Degraded")
        assert (told["status"], told["reason"]) == ("True", "ImagePullFailed"), "why its pods were not ready"
        assert jobs.status("late").get("restarts", {}).get("total", 0) == 0

    def test_pods_above_the_minimum_that_do_not_start_disturb_nobody(self, queues: Queues, waits: Admitter) -> None:
        jobs = queues.jobs
        queues.make("gpus", 4)
        spec = light_spec(**bounds(3, 4))
        port = {"containerPort": 23456, "hostPort": 23456}  # one pod a node, of which there are three
        spec["template"]["spec"]["containers"][0]["ports"] = [port]
        queues.submit("grows", "gpus", **spec)
        before = jobs.await_world("grows", 3)
        for _ in range(2):
            wait_for(lambda: len(jobs.pods("grows")) == 4, "the increment is admitted")
            wait_for(lambda: len(jobs.pods("grows")) == 3, "the increment is given back")
        after = jobs.status("grows")
        assert after["rendezvous"]["generation"] == before["rendezvous"]["generation"]
        assert after["phase"] == "Running"
        wait_for(lambda: "PodsReady timeout" in jobs.condition("grows", "Admitted")["message"], "it is told")

    def test_a_job_whose_pods_were_not_replaced_in_time_comes_back(self, queues: Queues, waits: Admitter) -> None:
        """It has the whole time again when it is admitted again, and not what is left of the time to recover."""
        jobs = queues.jobs
        queues.make("gpus", 1)
        queues.submit("returns", "gpus", **bounds(1, 1))
        before = jobs.await_world("returns", 1)
        wait_for(lambda: all(is_true(w, "PodsReady") for w in queues.workloads("returns")), "PodsReady is told")
        nodes = [node["metadata"]["name"] for node in jobs.kube.request("GET", "/api/v1/nodes")["items"]]
        (pod,) = jobs.pods("returns")
        with queues.cordoned(*nodes):
            queues.delete_pod(pod)
            wait_for(lambda: queues.condition("returns")[0] == "False", "its quota is taken back")
        jobs.await_world("returns", 1, before["rendezvous"]["generation"])

    def test_a_job_that_trains_without_a_lost_pod_keeps_its_quota(self, queues: Queues, waits: Admitter) -> None:
        """The pod is of its base, and no node has room for another one; the job has enough pods without it."""
        jobs = queues.jobs
        queues.make("gpus", 3)
        spec = light_spec(**bounds(2, 3))
        port = {"containerPort": 23456, "hostPort": 23456}  # one pod a node, of which there are three
        spec["template"]["spec"]["containers"][0]["ports"] = [port]
        queues.submit("loses", "gpus", **spec)
        before = jobs.await_world("loses", 3)
        wait_for(lambda: all(is_true(w, "PodsReady") for w in queues.workloads("loses")), "PodsReady is told")
        lost = next(p for p in jobs.pods("loses") if p["metadata"]["labels"]["elasticjob.dev/replica-index"] == "0")
        with queues.cordoned(lost["spec"]["nodeName"]):
            jobs.kube.request("DELETE", f"/api/v1/namespaces/{jobs.namespace}/pods/{lost['metadata']['name']}")
            after = jobs.await_world("loses", 2, before["rendezvous"]["generation"])
            wait_for(
                lambda: jobs.condition("loses", "Degraded").get("reason") == "Unschedulable", "it cannot be placed"
            )
            began = time.monotonic()
            wait_for(lambda: time.monotonic() - began > 2 * READY_SECONDS, "whoever waits for its pods has given up")
            assert [is_true(w, "Evicted") for w in queues.workloads("loses")] == [False, False]
            assert jobs.status("loses")["rendezvous"]["generation"] == after["rendezvous"]["generation"]
        jobs.await_world("loses", 3, after["rendezvous"]["generation"])


class TestPreemption:
    @together
    def test_an_increment_is_given_back_and_the_job_goes_on(self, queues: Queues) -> None:
        jobs = queues.jobs
        queues.make("gpus", 4)
        queues.submit("grown", "gpus", growth="low", **bounds(2, 4))
        before = jobs.await_world("grown", 4)
        queues.submit("urgent", "gpus", **bounds(2, 2))
        jobs.await_world("urgent", 2)
        after = jobs.await_world("grown", 2, before["rendezvous"]["generation"])
        assert after["restarts"].get("infrastructure", 0) == 0
        assert after["rendezvous"]["reason"] == "quota"
        assert "MemberLost" not in names_of(jobs.events("grown"))
        jobs.delete("urgent")
        jobs.await_world("grown", 4, after["rendezvous"]["generation"])

    @together
    def test_a_base_is_suspended_and_comes_back(self, queues: Queues) -> None:
        jobs = queues.jobs
        queues.make("gpus", 2)
        queues.submit("low", "gpus", priority="low", **bounds(2, 2))
        before = jobs.await_world("low", 2)
        queues.submit("high", "gpus", priority="high", **bounds(1, 1))
        jobs.await_world("high", 1)
        jobs.await_condition("low", "Suspended")
        assert jobs.status("low")["restarts"].get("infrastructure", 0) == 0
        jobs.delete("high")
        after = jobs.await_world("low", 2, before["rendezvous"]["generation"])
        assert after["restarts"].get("infrastructure", 0) == 0

    @pytest.mark.parametrize("mib", [16, pytest.param(last_saves.LARGE, marks=pytest.mark.long)])
    @together
    def test_what_a_base_saves_when_it_is_evicted_is_in_its_archive(
        self, queues: Queues, tmp_path: Path, mib: int
    ) -> None:
        jobs, store = queues.jobs, tmp_path / "store"
        store.mkdir()
        spec = last_saves.make_spec(store, mib)
        spec["elasticPolicy"] |= {"minReplicas": 2, "maxReplicas": 2}
        spec["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
        queues.make("gpus", 2)
        queues.submit("low", "gpus", priority="low", **spec)
        last_saves.await_archived(jobs, "low")
        starts = last_saves.count_starts(store)
        queues.submit("high", "gpus", priority="high", **bounds(1, 1))
        jobs.await_world("high", 1, timeout=120)
        jobs.await_condition("low", "Suspended", timeout=120)
        jobs.delete("high")
        last_saves.await_next_start(store, starts, mib)

    @pytest.mark.parametrize(
        "change", [pytest.param({"managedBy": "me"}, id="another manager"), pytest.param(INVALID, id="invalid")]
    )
    @together
    def test_no_edit_makes_a_job_immune(self, queues: Queues, change: dict[str, Any]) -> None:
        jobs = queues.jobs
        queues.make("gpus", 2)
        queues.submit("stubborn", "gpus", priority="low", **bounds(2, 2))
        jobs.await_world("stubborn", 2)
        try:
            jobs.patch("stubborn", change)
        except KubeError as error:  # API servers with CEL refuse it
            assert "managedBy cannot change" in str(error)
        queues.submit("high", "gpus", priority="high", **bounds(2, 2))
        jobs.await_world("high", 2)
        held = [pod["metadata"]["name"] for pod in jobs.pods("stubborn") if pod["status"]["phase"] == "Running"]
        assert held == [], "one that has ended may still be listed for a moment"


class TestEnds:
    @together
    def test_a_job_that_ends_frees_its_quota(self, queues: Queues, tmp_path: Any) -> None:
        jobs, end = queues.jobs, tmp_path / "end"
        queues.make("gpus", 2)
        spec = {**bounds(2, 2), "template": light_template("--until", str(end))}
        queues.submit("ends", "gpus", **spec)
        jobs.await_world("ends", 2)
        queues.submit("next", "gpus", **bounds(2, 2))
        wait_for(lambda: queues.condition("next") == ("False", "Pending"), "the next one waits")
        end.touch()
        jobs.await_condition("ends", "Complete")
        jobs.await_world("next", 2)
        (workload,) = queues.workloads("ends")
        assert find(workload, "Finished")["reason"] == "Succeeded"

    @together
    def test_a_suspended_job_holds_nothing(self, queues: Queues) -> None:
        jobs = queues.jobs
        queues.make("gpus", 2)
        queues.submit("rests", "gpus", **bounds(1, 2))
        jobs.await_world("rests", 2)
        jobs.patch("rests", {"runPolicy": {"suspend": True}})
        jobs.await_condition("rests", "Suspended")
        wait_for(lambda: not queues.workloads("rests"), "its Workloads are gone")
        jobs.patch("rests", {"runPolicy": {"suspend": False}})
        jobs.await_world("rests", 2)


class TestRestarts:
    def test_a_job_goes_on_and_a_deleted_one_gives_its_quota_back(
        self, queues: Queues, queue_operator: OperatorProcess
    ) -> None:
        jobs = queues.jobs
        queues.make("gpus", 4)
        queues.submit("stays", "gpus", **bounds(2, 2))
        queues.submit("gone", "gpus", **bounds(2, 2))
        before = jobs.await_world("stays", 2)
        jobs.await_world("gone", 2)
        queue_operator.kill()
        jobs.delete("gone")
        wait_for(lambda: not jobs.pods("gone"), "its pods are gone")
        queue_operator.start()
        queues.submit("next", "gpus", **bounds(2, 2))
        jobs.await_world("next", 2)
        after = jobs.await_world("stays", 2)
        assert after["rendezvous"]["generation"] == before["rendezvous"]["generation"]


def light_template(*arguments: str) -> dict[str, Any]:
    template: dict[str, Any] = light_spec(*arguments)["template"]
    return template
