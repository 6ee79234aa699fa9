"""The life cycle of a job on a real API server. The workers are light agents: their computation does not matter."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
import pytest

from elasticjob_devcluster import Cluster, KubeError
from operator_fixture import Jobs, OperatorProcess, light_spec, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def uids(jobs: Jobs, name: str) -> set[str]:
    return {p["metadata"]["uid"] for p in jobs.pods(name)}


def test_start_grow_shrink_and_complete(jobs: Jobs) -> None:
    jobs.create("story", light_spec("--steps", "120"))
    first = jobs.await_world("story", 2)
    assert first["rendezvous"]["generation"] == 1
    assert [m["rank"] for m in first["rendezvous"]["members"]] == [0, 1]
    assert first["selector"] == "elasticjob.dev/job-name=story"

    jobs.scale("story", 3)
    grown = jobs.await_world("story", 3)
    before = [m["uid"] for m in first["rendezvous"]["members"]]
    assert [m["uid"] for m in grown["rendezvous"]["members"]][:2] == before, "ranks are sticky"

    jobs.scale("story", 1)
    shrunk = jobs.await_world("story", 1)
    assert shrunk["rendezvous"]["members"][0]["uid"] == before[0], "rank 0 goes last"
    wait_for(lambda: len(jobs.pods("story")) == 1, "the victims are gone")
    assert shrunk["restarts"]["total"] == 0, "changes of size are free"

    jobs.await_condition("story", "Complete")
    status = jobs.status("story")
    assert status["phase"] == "Complete"
    assert "completionTime" in status

    def told() -> list[str]:
        return [reason for reason, _ in jobs.events("story")]

    wait_for(lambda: "Completed" in told(), "its end is told")  # events are written after the status
    assert told().count("WorldFormed") == 1
    wait_for(lambda: [p["status"]["phase"] for p in jobs.pods("story")] == ["Succeeded"], "the pod stays for its log")


@together
def test_a_killed_follower_and_a_killed_rank_0_are_replaced(jobs: Jobs, cluster: Cluster) -> None:
    jobs.create("kill", light_spec(replicas=3))
    status = jobs.await_world("kill", 3)
    for rank in (2, 0):
        world = status["rendezvous"]
        cluster.kill_pod(jobs.namespace, world["members"][rank]["pod"], signal.SIGKILL)
        status = jobs.await_world("kill", 3, above=world["generation"])
        survivors = [m["uid"] for m in world["members"] if m["rank"] != rank]
        assert [m["uid"] for m in status["rendezvous"]["members"]][:2] == survivors
    assert status["restarts"]["total"] == 0, "lost pods are free"
    assert status["restarts"]["infrastructure"] >= 2


def test_the_operator_is_killed_or_told_to_stop_and_nothing_happens(jobs: Jobs, operator: OperatorProcess) -> None:
    jobs.create("calm", light_spec())
    before = jobs.await_world("calm", 2)
    pods = uids(jobs, "calm")
    operator.kill()
    operator.start()
    jobs.scale("calm", 3)
    after = jobs.await_world("calm", 3)
    assert pods < uids(jobs, "calm")
    assert after["rendezvous"]["generation"] == before["rendezvous"]["generation"] + 1

    began = time.monotonic()
    assert operator.kill(signal.SIGTERM) == 0
    assert time.monotonic() - began < 5, "told to stop, it does not hold its Lease for another five seconds"


@together
def test_suspend_and_resume(jobs: Jobs) -> None:
    jobs.create("pause", light_spec())
    before = jobs.await_world("pause", 2)
    jobs.patch("pause", {"runPolicy": {"suspend": True}})
    jobs.await_condition("pause", "Suspended")
    assert jobs.pods("pause") == []
    jobs.patch("pause", {"replicas": 1})
    jobs.patch("pause", {"runPolicy": {"suspend": False}})
    after = jobs.await_world("pause", 1)
    assert after["rendezvous"]["generation"] > before["rendezvous"]["generation"]
    assert jobs.condition("pause", "Suspended")["status"] == "False"


@together
def test_crashes_use_up_the_budget(jobs: Jobs) -> None:
    policy = {"maxRestarts": 1, "minReplicas": 1, "maxReplicas": 2, "gracefulShutdownTimeoutSeconds": 2}
    jobs.create("crash", light_spec("--fail-at", "3:9", "--exit-code", "3", elasticPolicy=policy))
    failed = jobs.await_condition("crash", "Failed", timeout=90)
    assert failed["reason"] == "MaxRestartsExceeded"
    assert "maxRestarts=1" in failed["message"]
    assert "exit code 3" in failed["message"]
    failure = jobs.status("crash")["lastFailure"]
    assert failure["exitCode"] == 3
    assert failure["traceback"].endswith("ValueError: asked to fail")


@together
def test_a_failed_worker_is_told_with_its_traceback(jobs: Jobs) -> None:
    jobs.create("tell", light_spec("--fail-at", "3:1", replicas=1))
    status = wait_for(
        lambda: s if (s := jobs.status("tell")).get("restarts", {}).get("total") == 1 else None, "one restart"
    )
    assert status["lastFailure"]["traceback"].endswith("ValueError: asked to fail")
    jobs.await_world("tell", 1, above=1)


@pytest.mark.parametrize("native", [False, True], ids=["ordinary", "native"])
@together
def test_a_job_with_sidecars(jobs: Jobs, cluster: Cluster, native: bool) -> None:
    """A trainer that is killed is replaced, and the job is complete when all trainers have ended."""
    spec = light_spec("--steps", "150")
    pod = spec["template"]["spec"]
    proxy = {"name": "proxy", "image": "light/proxy:1", "command": ["sleep", "600"]}
    if native:
        pod["initContainers"] = [{**proxy, "restartPolicy": "Always"}]
    else:
        pod["containers"].append(proxy)
    jobs.create("side", spec)
    (pod, *_) = wait_for(lambda: jobs.pods("side"), "pods")
    if native and "restartPolicy" not in pod["spec"]["initContainers"][0]:
        pytest.skip("the API server is older than native sidecars (1.29)")
    first = jobs.await_world("side", 2)["rendezvous"]
    victim = cluster.pod_pids(jobs.namespace, first["members"][1]["pod"])
    (trainer,) = [pid for pid in victim if "light_agent" in " ".join(psutil.Process(pid).cmdline())]
    os.kill(trainer, signal.SIGKILL)
    status = jobs.await_world("side", 2, above=first["generation"])
    assert status["lastFailure"]["exitCode"] == 137
    assert jobs.await_condition("side", "Complete")["message"] == "all 2 members succeeded"

    def run_on() -> bool:
        """The kubelet ends a native sidecar after the trainer; the pod stays if that came before its deletion."""
        return any(not native or pod["status"]["phase"] == "Running" for pod in jobs.pods("side"))

    wait_for(lambda: not run_on(), "sidecars that run on are ended with the job")


@together
def test_fail_job_rule(jobs: Jobs) -> None:
    rules = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
    jobs.create("rule", light_spec("--fail-at", "3", "--exit-code", "42", failurePolicy=rules))
    assert jobs.await_condition("rule", "Failed")["reason"] == "FailurePolicy"


@together
def test_ttl_deletes_the_finished_job(jobs: Jobs) -> None:
    jobs.create("short", light_spec("--steps", "3", runPolicy={"ttlSecondsAfterFinished": 1}))
    wait_for(lambda: not jobs.get("short"), "the job is deleted")
    wait_for(lambda: not jobs.pods("short"), "its pods are collected")


@together
def test_active_deadline(jobs: Jobs) -> None:
    jobs.create("late", light_spec(runPolicy={"activeDeadlineSeconds": 2}))
    assert jobs.await_condition("late", "Failed")["reason"] == "DeadlineExceeded"
    ended = ("Succeeded", "Failed")
    wait_for(lambda: all(p["status"]["phase"] in ended for p in jobs.pods("late")), "its pods end, or are gone")


@pytest.mark.parametrize("least", [1, 2])
def test_drain_moves_a_member(jobs: Jobs, cluster: Cluster, least: int) -> None:
    """Also of a job that may not be smaller: its budget holds up the drain until the pod is replaced."""
    bounds = {"minReplicas": least, "maxReplicas": 4 // least, "gracefulShutdownTimeoutSeconds": 2}
    jobs.create("drain", light_spec("--leave-on-term", replicas=2, elasticPolicy=bounds))
    before = jobs.await_world("drain", 2)
    node = before["rendezvous"]["members"][1]["node"]
    try:
        cluster.drain(node)
        after = jobs.await_world("drain", 2, above=before["rendezvous"]["generation"])
        assert node not in [m["node"] for m in after["rendezvous"]["members"]]
        assert after["restarts"]["total"] == 0
    finally:
        cluster.uncordon(node)


@together
def test_unschedulable_extras_hold_nothing_up(jobs: Jobs) -> None:
    spec = light_spec(replicas=3, elasticPolicy={"maxReplicas": 3, "scalingTimeoutSeconds": 1})
    spec["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    jobs.create("first", spec)
    jobs.await_world("first", 3)
    jobs.create("second", spec)
    wait_for(lambda: jobs.condition("second", "Degraded").get("reason") == "Unschedulable", "the user is told")
    wait_for(lambda: len(jobs.pods("second")) == 1, "extras above minReplicas are withdrawn")
    jobs.delete("first")
    assert jobs.await_world("second", 1)["capacity"]["withdrawn"] == 2


class TestBadInput:
    """Each ends in one clear sentence, and the operator goes on."""

    @together
    def test_min_above_max(self, jobs: Jobs) -> None:
        bad = light_spec(elasticPolicy={"minReplicas": 5, "maxReplicas": 2}, replicas=None)
        del bad["replicas"]
        self.assert_refused(jobs, bad, "minReplicas must not be greater than maxReplicas")

    @together
    def test_replicas_out_of_range(self, jobs: Jobs) -> None:
        """Without CEL it is brought into its bounds: what `kubectl scale` writes is no reason to end a job."""
        text = "replicas must not be greater than"
        try:
            jobs.create("bad", light_spec(replicas=9, elasticPolicy={"maxReplicas": 2}))
        except KubeError as error:
            assert text in str(error)
            return
        wait_for(lambda: jobs.condition("bad", "Degraded").get("reason") == "InvalidSpec", "the user is told")
        assert text in jobs.condition("bad", "Degraded")["message"]
        jobs.await_world("bad", 2)

    @together
    def test_no_container(self, jobs: Jobs) -> None:
        self.assert_refused(jobs, light_spec(template={"spec": {"containers": []}}), "spec.containers is empty")

    def assert_refused(self, jobs: Jobs, spec: dict[str, Any], text: str) -> None:
        """By the API server where it knows CEL, else by the operator."""
        try:
            jobs.create("bad", spec)
        except KubeError as error:
            assert text in str(error)
            return
        failed = jobs.await_condition("bad", "Failed")
        assert failed["reason"] == "InvalidSpec"
        assert text in failed["message"]
        assert jobs.pods("bad") == []

    @together
    def test_a_template_that_the_api_server_rejects(self, jobs: Jobs) -> None:
        spec = light_spec()
        spec["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}
        jobs.create("bad", spec)
        failed = jobs.await_condition("bad", "Failed")
        assert failed["reason"] == "InvalidTemplate"
        assert "spec.template" in failed["message"]

    @together
    def test_an_image_that_does_not_exist(self, jobs: Jobs) -> None:
        spec = light_spec()
        spec["template"]["spec"]["containers"][0]["image"] = "registry.invalid/no/such:image"
        jobs.create("bad", spec)
        wait_for(lambda: jobs.condition("bad", "Degraded").get("reason") == "ImagePullFailed", "the user is told")
        assert "registry.invalid" in jobs.condition("bad", "Degraded")["message"]

    @together
    def test_a_command_that_does_not_exist(self, jobs: Jobs) -> None:
        spec = light_spec()
        spec["template"]["spec"]["containers"][0]["command"] = ["no-such-program"]
        jobs.create("bad", spec)
        failed = jobs.await_condition("bad", "Failed")
        assert "no-such-program" in failed["message"]

    @pytest.mark.parametrize("where", ["an argument", "a variable"])
    @together
    def test_a_text_that_no_program_can_be_started_with(self, jobs: Jobs, where: str) -> None:
        """Linux takes no longer one, of however many bytes all of them may be."""
        spec, text = light_spec(), "x" * 140_000
        trainer = spec["template"]["spec"]["containers"][0]
        trainer |= {"args": [text]} if where == "an argument" else {"env": [{"name": "CONFIG", "value": text}]}
        jobs.create("bad", spec)
        failed = jobs.await_condition("bad", "Failed")
        assert "rgument list too long" in failed["message"]
        assert "ConfigMap" in failed["message"], "where such a text belongs"

    @together
    def test_a_name_that_is_taken(self, jobs: Jobs) -> None:
        pod = {
            "metadata": {"name": "mine-worker-0"},
            "spec": {"containers": [{"name": "c", "image": "a/b:1", "command": ["sleep", "600"]}]},
        }
        jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/pods", pod)
        jobs.create("mine", light_spec())
        wait_for(lambda: jobs.condition("mine", "Degraded").get("reason") == "NameTaken", "the user is told")

    @together
    def test_a_job_deleted_in_the_middle(self, jobs: Jobs) -> None:
        jobs.create("gone", light_spec(replicas=3))
        jobs.await_world("gone", 3)
        jobs.delete("gone")
        wait_for(lambda: not jobs.pods("gone"), "no pod is left")
        jobs.create("gone", light_spec(replicas=1))
        assert jobs.await_world("gone", 1)["rendezvous"]["generation"] == 1


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "the operator is killed meanwhile"])
def test_a_namespace_deleted_in_the_middle(
    jobs: Jobs, operator: OperatorProcess, cluster: Cluster, is_killed: bool
) -> None:
    jobs.create("gone", light_spec())
    jobs.create("asleep", light_spec(runPolicy={"suspend": True}))
    jobs.await_world("gone", 2)
    if is_killed:
        operator.kill()
    jobs.kube.request("DELETE", f"/api/v1/namespaces/{jobs.namespace}")
    if is_killed:
        operator.start()
    wait_for(lambda: cluster.kube.get(f"/api/v1/namespaces/{jobs.namespace}") is None, "the namespace is gone", 90)
    assert operator.process is not None
    assert operator.process.poll() is None, "the operator goes on"


def test_twenty_jobs_at_once(jobs: Jobs) -> None:
    names = [f"many-{i}" for i in range(20)]
    for name in names:
        jobs.create(name, light_spec("--steps", "5", "--step-seconds", "0.2", replicas=1))
    for name in names:
        jobs.await_condition(name, "Complete", timeout=150)
