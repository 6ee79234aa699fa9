"""Scenarios of pausing and ending: success, suspend, deadlines, clean-up, deletion."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import make_spec
from controller.simulated_cluster import Cluster
from elasticjob_operator.api import wire


def started(size: int = 4, spec: Any = None, **fields: Any) -> Cluster:
    cluster = Cluster(spec or make_spec(2, 4), **fields)
    cluster.run_until(lambda: cluster.size == size)
    cluster.run(5)
    return cluster


def is_complete(cluster: Cluster) -> bool:
    return cluster.status.is_true("Complete")


def test_success_of_all() -> None:
    cluster = started()
    for index in range(4):
        assert not is_complete(cluster)
        cluster.agent(index).succeed()
        cluster.run(2)
    assert is_complete(cluster)
    found = cluster.status.condition("Complete")
    assert found is not None
    assert found.message == "all 4 members succeeded"
    assert cluster.status.phase == "Complete"
    assert cluster.status.completion_time is not None
    cluster.run(60)
    assert all(p.record.phase == "Succeeded" for p in cluster.pods.values()), "finished pods stay for their logs"
    assert "Completed" in cluster.told_events()


def test_success_of_rank_0() -> None:
    cluster = started(spec=make_spec(2, 4, successPolicy="Rank0"))
    cluster.agent(1).succeed()
    cluster.run(3)
    assert not is_complete(cluster)
    cluster.agent(0).succeed()
    cluster.run(1)
    assert is_complete(cluster)
    cluster.run(120)
    assert all(p.record.terminal for p in cluster.pods.values()), "the others are sent home"


def test_success_freezes_the_world() -> None:
    cluster = started(spec=make_spec(2, 4, replicas=3), size=3)
    cluster.agent(0).succeed()
    cluster.edit(replicas=4)
    cluster.run(9)
    assert cluster.generation == 1
    assert len(cluster.created) == 3, "nobody is needed any more"


def test_member_lost_after_others_succeeded() -> None:
    cluster = started()
    cluster.agent(0).succeed()
    cluster.agent(1).succeed()
    cluster.run(1)
    cluster.kill(2)
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert cluster.world == ["digits-worker-3"], "those that are done do not run again"
    cluster.finish()
    cluster.run(15)
    assert is_complete(cluster)


def test_all_unfinished_members_lost_after_others_succeeded() -> None:
    cluster = started()
    for index in (0, 1, 2):
        cluster.agent(index).succeed()
    cluster.run(1)
    cluster.kill(3)
    cluster.run_until(lambda: cluster.generation == 2 and cluster.trains)
    assert cluster.size == 1
    cluster.kill(cluster.member(0).record.index)
    cluster.run_until(lambda: cluster.generation == 3 and cluster.trains)
    cluster.finish()
    cluster.run(15)
    assert is_complete(cluster)


def test_a_world_that_ends_gets_no_new_pods_while_somebody_can_finish_it() -> None:
    cluster = started()
    cluster.agent(0).succeed()
    cluster.edit(min=1, max=2, replicas=2)
    cluster.run(1)
    cluster.disrupt(3)
    cluster.run(60)
    assert len(cluster.created) == 4
    cluster.finish()
    cluster.run(15)
    assert is_complete(cluster)


def test_late_joiners_are_cancelled() -> None:
    cluster = started(nodes=3, size=3)
    for index in range(3):
        cluster.agent(index).succeed()
    cluster.run(40)
    assert is_complete(cluster)
    assert len(cluster.pods) == 3, "the pending pod is gone"


def test_operator_away_while_the_job_ends() -> None:
    cluster = started()
    cluster.stop_operator()
    cluster.finish()
    cluster.run(60)
    cluster.start_operator()
    cluster.run(60)
    assert is_complete(cluster)


@pytest.mark.parametrize("policy", ["All", "Running", "None"])
@pytest.mark.parametrize("ends", ["Complete", "Failed"])
def test_clean_pod_policy(policy: str, ends: str) -> None:
    spec = make_spec(2, 4, runPolicy={"cleanPodPolicy": policy}, elasticPolicy={"maxRestarts": 0})
    cluster = started(spec=spec, nodes=3, size=3)
    if ends == "Complete":
        cluster.finish()
    else:
        cluster.kill(1, code=1)
    cluster.run(60)
    assert cluster.status.is_true(ends)
    running = [p for p in cluster.pods.values() if not p.record.terminal]
    ended = [p for p in cluster.pods.values() if p.record.terminal]
    if policy == "All":
        assert not cluster.pods
    elif policy == "Running":
        assert not running
        assert ended
    else:
        assert len(cluster.pods) >= 3
    assert not any(kind == "PodDisruptionBudget" for kind, *_ in cluster.children)


@pytest.mark.parametrize("success", ["All", "Rank0"])
@pytest.mark.parametrize("policy", ["All", "Running", "None"])
def test_a_trainer_that_ends_well_completes_beside_a_sidecar(success: str, policy: str) -> None:
    """A sidecar that runs on makes its pod one that runs: only `None` leaves it."""
    spec = make_spec(2, 4, successPolicy=success, runPolicy={"cleanPodPolicy": policy})
    cluster = started(spec=spec)
    cluster.sidecars = True
    cluster.finish() if success == "All" else cluster.agent(0).succeed()
    cluster.run(2)
    assert cluster.status.is_true("Complete")
    cluster.run(60)
    assert len(cluster.pods) == (4 if policy == "None" else 0)


def test_a_failed_job_ends_before_it_is_cleaned_up() -> None:
    """Pods that are deleted take their logs with them: those of a failed job end by themselves."""
    cluster = started(spec=make_spec(2, 4, elasticPolicy={"maxRestarts": 0}))
    cluster.agent(2).fail(3, "ValueError: bad batch")
    cluster.run(60)
    assert cluster.status.is_true("Failed")
    assert [p.record.phase for p in cluster.pods.values()] == ["Failed"] * 4
    assert not any(made.delete for made in cluster.plans), "there is nothing left to delete"
    last = cluster.status.last_failure
    assert last is not None
    assert last.log_tail == "the end of a log", "of the pod whose worker failed"


def test_a_failed_job_does_not_wait_for_agents_that_do_not_end() -> None:
    cluster = started(spec=make_spec(2, 4, elasticPolicy={"maxRestarts": 0}))
    cluster.agent(1).deaf = True
    cluster.agent(2).fail(3, "ValueError: bad batch")
    cluster.run(60)
    assert cluster.status.is_true("Failed")
    assert len(cluster.pods) == 3
    assert all(p.record.terminal for p in cluster.pods.values())


def test_ttl_deletes_the_finished_job() -> None:
    cluster = started(spec=make_spec(2, 4, runPolicy={"ttlSecondsAfterFinished": 100}))
    cluster.finish()
    cluster.run(90)
    assert not cluster.deleted
    cluster.run(20)
    assert cluster.deleted


@pytest.mark.parametrize(
    ("policy", "nodes", "reason"),
    [
        pytest.param({"activeDeadlineSeconds": 60}, 4, "DeadlineExceeded", id="active"),
        pytest.param({"startupDeadlineSeconds": 60}, 1, "StartupDeadlineExceeded", id="startup"),
    ],
)
def test_deadlines(policy: dict[str, int], nodes: int, reason: str) -> None:
    cluster = Cluster(make_spec(2, 4, runPolicy=policy), nodes=nodes)
    cluster.run(59)
    assert not cluster.status.finished
    cluster.run(40)
    assert cluster.condition("Failed") == ("True", reason)
    assert not [p for p in cluster.pods.values() if not p.record.terminal]


def test_fault_deadline() -> None:
    cluster = started(spec=make_spec(3, 4, runPolicy={"faultDeadlineSeconds": 100}), nodes=3, size=3)
    cluster.run(500)
    cluster.remove_node("node0")
    cluster.run(90)
    assert not cluster.status.finished
    cluster.run(30)
    assert cluster.condition("Failed") == ("True", "FaultDeadlineExceeded")


def test_suspend_and_resume() -> None:
    cluster = started()
    cluster.edit(suspend=True)
    cluster.run(1)
    stops = [d for p in cluster.plans for d in p.directives.values() if isinstance(d, wire.Stop)]
    assert stops
    assert all(d.checkpoint for d in stops), "the script may save"
    cluster.run(60)
    assert not cluster.pods
    assert cluster.condition("Suspended") == ("True", "Suspended")
    assert cluster.status.phase == "Suspended"
    started_at = cluster.status.start_time
    cluster.edit(replicas=3)
    cluster.run(100)
    assert not cluster.pods
    cluster.edit(suspend=False)
    cluster.run_until(lambda: cluster.trains)
    assert cluster.size == 3, "replicas may change while it is suspended"
    assert cluster.generation == 2, "the count goes on"
    assert cluster.condition("Suspended")[0] == "False"
    assert cluster.status.start_time != started_at
    assert cluster.told_events()[-3:] == ["Suspended", "Resumed", "WorldFormed"]
    assert cluster.status.restarts.total == cluster.status.restarts.infrastructure == 0
    assert cluster.status.goodput.lost_seconds < 40, "suspended time is not lost time"


def test_resume_before_the_pods_are_gone() -> None:
    cluster = started(checkpoint=20.0)
    cluster.edit(suspend=True)
    cluster.run(0.1)
    cluster.edit(suspend=False)
    cluster.run(120)
    assert cluster.size == 4


def test_suspended_from_the_start() -> None:
    cluster = Cluster(make_spec(2, 4, runPolicy={"suspend": True}))
    cluster.run(60)
    assert not cluster.created
    assert cluster.condition("Suspended")[0] == "True"
    cluster.edit(suspend=False)
    cluster.run_until(lambda: cluster.size == 4)


def test_suspend_with_a_dead_node() -> None:
    cluster = started()
    cluster.kill_node("node1")
    cluster.edit(suspend=True)
    cluster.run(200)
    assert not cluster.pods
    assert cluster.condition("Suspended")[0] == "True"


def test_active_deadline_does_not_count_suspended_time() -> None:
    cluster = started(spec=make_spec(2, 4, runPolicy={"activeDeadlineSeconds": 100}))
    cluster.edit(suspend=True)
    cluster.run(500)
    cluster.edit(suspend=False)
    cluster.run(90)
    assert cluster.size == 4
    cluster.run(20)
    assert cluster.condition("Failed") == ("True", "DeadlineExceeded")


def test_managed_by_another_controller() -> None:
    cluster = Cluster(make_spec(2, 4, managedBy="kueue.x-k8s.io/multikueue"))
    cluster.run(60)
    assert not cluster.created
    assert not cluster.children


def test_job_deleted() -> None:
    cluster = started()
    cluster.deleting = True
    plans = len(cluster.plans)
    cluster.run(60)
    assert len(cluster.plans) == plans, "owner references clean up: nothing waits for us"


def test_what_cannot_change_while_the_job_runs_waits_for_the_resume() -> None:
    cluster = started()
    generation = cluster.generation
    cluster.edit(nprocPerNode=4, rendezvous={"backend": "c10d"})
    cluster.run(30)
    assert (cluster.size, cluster.generation, cluster.status.nproc_per_node) == (4, generation, 1)
    assert cluster.condition("Warning") == ("True", "ChangeWaits")
    cluster.kill(0)
    cluster.run(60)
    assert (cluster.size, cluster.status.nproc_per_node) == (4, 1), "it is healed as what it was"
    cluster.edit(suspend=True)
    cluster.run(60)
    cluster.edit(suspend=False, rendezvous={"backend": "operator"})
    cluster.run(60)
    assert (cluster.size, cluster.status.nproc_per_node) == (4, 4)
    assert cluster.condition("Warning")[0] == "False"


def test_template_change_takes_effect_at_resume() -> None:
    cluster = started()
    template = {"spec": {"containers": [{"name": "worker", "image": "train:2"}]}}
    cluster.edit(template=template)
    cluster.run(30)
    assert cluster.size == 4
    assert cluster.condition("Degraded") == ("True", "TemplateChanged")
    cluster.edit(suspend=True)
    cluster.run(60)
    cluster.edit(suspend=False)
    cluster.run(60)
    assert cluster.condition("Degraded")[0] == "False"
    assert len({p.record.template_hash for p in cluster.pods.values()}) == 1


def test_amounts_of_cpu_and_memory_reach_the_pods_that_run() -> None:
    def ask(cpu: str, image: str = "train:1") -> dict[str, Any]:
        return {"spec": {"containers": [{"name": "worker", "image": image, "resources": {"requests": {"cpu": cpu}}}]}}

    cluster = started(spec=make_spec(2, 4, template=ask("1")))
    uids, generation = set(cluster.pods), cluster.status.rendezvous.generation
    cluster.edit(template=ask("2"))
    cluster.run(30)
    amount = ("worker", "requests", "cpu", "2")
    assert {p.record.sizes for p in cluster.pods.values()} == {(amount,)}
    assert (set(cluster.pods), cluster.status.rendezvous.generation) == (uids, generation), "nobody is disturbed"
    assert cluster.condition("Degraded")[0] != "True"
    cluster.edit(template=ask("3", image="train:2"))
    cluster.run(30)
    assert {p.record.sizes for p in cluster.pods.values()} == {(amount,)}, "not a part of another change"
    assert cluster.condition("Degraded") == ("True", "TemplateChanged")
