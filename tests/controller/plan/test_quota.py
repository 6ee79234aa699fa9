"""What a pass decides for a job that is in a queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, make_agent, make_job, make_pod, make_spec, make_world
from controller.plan.test_plan import condition, see, started
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import Cause
from elasticjob_operator.apply import manifests
from elasticjob_operator.model.observe import Job, Pod
from elasticjob_operator.model.quota import Placement, Quota, Share
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan.plan import Config, NewPod, Plan, plan
from elasticjob_operator.times import format_time

BASE = Placement({"queue": "a"}, {"workload": "base"}, {"pool": "on-demand"})
MORE = Placement(
    {"queue": "a"}, {"workload": "more"}, {"pool": "spot"}, ({"key": "spot", "operator": "Exists"},), ("gate",)
)
WAITING = Quota(False, "Pending", "LocalQueue a: no room")


def admit(*shares: Share) -> Quota:
    return Quota(True, "Admitted", "some pods", shares)


def running(*indices: int) -> tuple[Job, tuple[Pod, ...], dict[str, object]]:
    """A job whose world is of these pods."""
    world = make_world(1, indices)
    agents = {f"u{i}": make_agent(i, "running", 1) for i in indices}
    return make_job(status=started(rendezvous=world)), tuple(make_pod(i) for i in indices), {"agents": agents}


def test_a_job_that_is_not_admitted_waits_without_pods() -> None:
    made = plan(see(make_job(), quota=WAITING))
    assert made.create == ()
    assert made.asks == 2, "the base, and no more"
    assert condition(made, "Admitted") == ("False", "Pending", "LocalQueue a: no room")
    assert condition(made, "Suspended")[:2] == ("True", "Queued")
    assert made.status.phase is api.Phase.SUSPENDED
    assert [e.reason for e in made.events if e.warning] == []


@pytest.mark.parametrize(
    ("reason", "quota", "is_told"),
    [
        pytest.param("ImagePullFailed", WAITING, True, id="evicted, as its pods did not start"),
        pytest.param("InvalidSpec", WAITING, False, id="mended in the queue"),
        pytest.param("ImagePullFailed", None, False, id="suspended by its user"),
    ],
)
def test_what_is_told_of_a_job_without_pods(reason: str, quota: Quota | None, is_told: bool) -> None:
    degraded = api.Condition(type="Degraded", status="True", reason=reason, message="no such image")
    spec = make_spec(runPolicy={"suspend": quota is None})
    made = plan(see(make_job(spec, started(conditions=[degraded])), quota=quota))
    assert condition(made, "Degraded")[0] == str(is_told)


def test_what_only_a_person_can_mend_is_a_warning_once() -> None:
    quota = Quota(False, "QueueNotFound", "LocalQueue a doesn't exist")
    made = plan(see(make_job(), quota=quota))
    assert [e.reason for e in made.events if e.warning] == ["QueueNotFound"]
    again = plan(see(make_job(status=made.status), quota=quota))
    assert again.events == ()


NAMED = {"kueue.x-k8s.io/queue-name": "team-a"}
NOBODY = "names the queue 'team-a', and the job does not wait for its quota"
MOVE, INSTALL = "write it into metadata.labels of the job", "install the operator with integrations.kueue=true"


@pytest.mark.parametrize(
    ("fields", "template", "has_kueue", "place", "remedies"),
    [
        pytest.param({"labels": NAMED}, {}, True, "", (), id="where it belongs"),
        pytest.param({}, {}, False, "", (), id="none is named"),
        pytest.param({"labels": NAMED}, {"labels": NAMED}, True, "", (), id="there, and on the pods"),
        pytest.param({"labels": NAMED}, {}, False, "metadata.labels", (INSTALL,), id="nobody asks a queue"),
        pytest.param({}, {"labels": NAMED}, True, "spec.template.metadata.labels", (MOVE,), id="on the pods alone"),
        pytest.param({}, {"labels": NAMED}, False, "spec.template.metadata.labels", (MOVE, INSTALL), id="both"),
        pytest.param({"annotations": NAMED}, {}, True, "metadata.annotations", (MOVE,), id="an annotation"),
        pytest.param(
            {}, {"annotations": NAMED}, True, "spec.template.metadata.annotations", (MOVE,), id="one of the pods"
        ),
        pytest.param({}, {"labels": None, "annotations": []}, True, "", (), id="nothing that can name one"),
    ],
)
def test_a_queue_that_nobody_asks_is_told(
    fields: dict[str, Any], template: dict[str, Any], has_kueue: bool, place: str, remedies: tuple[str, ...]
) -> None:
    spec = make_spec(template={"metadata": template, "spec": {"containers": [{"name": "worker"}]}})
    made = plan(see(make_job(spec, **fields)), Config(has_kueue=has_kueue))
    status, reason, message = condition(made, "Warning")
    if not place:
        assert reason != "NotQueued"
        return
    assert (status, reason) == ("True", "NotQueued")
    assert message == f"{place}[kueue.x-k8s.io/queue-name] {NOBODY}: {', and '.join(remedies)}; or remove it"
    assert [e.reason for e in made.events if e.warning] == ["NotQueued"]
    assert made.create, "it trains"


def test_an_admitted_job_makes_the_pods_that_have_quota() -> None:
    made = plan(see(make_job(), quota=admit(Share(0, 2, BASE), Share(2, 1, MORE))))
    assert made.create == (NewPod(0, (), BASE), NewPod(1, (), BASE), NewPod(2, (), MORE))
    assert made.asks == 4
    assert condition(made, "Admitted")[:2] == ("True", "Admitted")


def test_pods_are_placed_where_their_quota_is() -> None:
    template = {"spec": {"containers": [{"name": "worker"}], "nodeSelector": {"zone": "b"}}}
    job = make_job(make_spec(template=template))
    assert job.spec is not None
    pod = manifests.build_pod(job, job.spec, NewPod(2, (), MORE), manifests.Settings(hub_url="ws://hub:1"))
    assert pod["spec"]["nodeSelector"] == {"zone": "b", "pool": "spot"}
    assert pod["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert pod["spec"]["schedulingGates"] == [{"name": "gate"}]
    assert pod["metadata"]["labels"]["queue"] == "a"
    assert pod["metadata"]["annotations"]["workload"] == "more"


def test_pods_without_quota_leave_announced() -> None:
    job, pods, agents = running(0, 1, 2)
    made = plan(see(job, pods, quota=admit(Share(0, 2, BASE)), **agents))
    assert made.delete == (), "the members save first"
    assert {type(d) for d in made.directives.values()} == {wire.Regroup}
    assert {m.uid: m.leaving for m in made.status.rendezvous.members} == {"u0": None, "u1": None, "u2": Cause.QUOTA}


def test_the_pods_that_leave_are_those_of_the_quota_that_went() -> None:
    job, pods, agents = running(0, 1, 2, 3)
    made = plan(see(job, pods, quota=admit(Share(0, 2, BASE), Share(3, 1, MORE)), **agents))
    assert [m.uid for m in made.status.rendezvous.members if m.leaving] == ["u2"]


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param((make_pod(0), make_pod(1, deleting=2e6)), (), id="a pod that goes holds its quota"),
        pytest.param((make_pod(0),), (1,), id="until it is gone"),
        pytest.param((make_pod(0), make_pod(1, "Failed")), (), id="as one that has failed holds its name"),
    ],
)
def test_a_replacement_waits_for_what_it_replaces(pods: tuple[Pod, ...], expected: tuple[int, ...]) -> None:
    made = plan(see(make_job(status=started()), pods, quota=admit(Share(0, 2, BASE))))
    assert tuple(new.index for new in made.create) == expected


def test_a_share_may_keep_pods_and_take_no_new_ones() -> None:
    job, pods, agents = running(0, 1)
    made = plan(see(job, (pods[0],), quota=admit(Share(0, 2, None)), agents={"u0": agents["agents"]["u0"]}))  # type: ignore[index]
    assert made.create == ()
    assert "u0" not in {d.uid for d in made.delete}


def test_a_job_that_is_smaller_than_wanted_says_that_it_is_its_queue() -> None:
    job, pods, agents = running(0, 1)
    made = plan(see(job, pods, quota=admit(Share(0, 2, BASE)), **agents))
    assert condition(made, "Degraded")[1:] == (
        "BelowWanted",
        "2 of 4 requested pods are training: its queue has admitted 2 pods",
    )


def test_a_member_without_quota_goes_although_no_world_can_be_formed() -> None:
    job, (_, *pods), _ = running(0, 1, 2)
    waiting = make_pod(0, "Pending", attempt=1, unschedulable=NOW - 5, created=NOW - 5)
    quota = admit(Share(0, 2, BASE))
    for phases in (("stopping", "ready"), ("ready", "stopping")):
        agents = {
            f"u{i}": make_agent(i, phase, 1, state_since=NOW - 1) for i, phase in zip((1, 2), phases, strict=True)
        }
        made = plan(see(job, (waiting, *pods), quota=quota, agents=agents))
        assert [d.uid for d in made.delete] == [], "the members stop first"
    agents = {f"u{i}": make_agent(i, "ready", 1) for i in (1, 2)}
    made = plan(see(job, (waiting, *pods), quota=quota, agents=agents))
    assert made.reason == "1 of at least 2 pods are ready"
    assert [(d.uid, d.why) for d in made.delete] == [("u2", Cause.QUOTA)]
    assert plan(see(job, (waiting, *pods), quota=admit(Share(0, 3, BASE)), agents=agents)).delete == ()


NOT_PLACED = api.CapacityStatus(withdrawn=1, attempts=1, retry_time=format_time(NOW + 60))


@pytest.mark.parametrize(
    "quota",
    [
        pytest.param(None, id="no queue"),
        pytest.param(admit(Share(0, 4, BASE)), id="still admitted for the withdrawn pod"),
        pytest.param(admit(Share(0, 3, BASE)), id="its quota was given back"),
    ],
)
def test_a_withdrawn_pod_is_subtracted_once(quota: Quota | None) -> None:
    """And not from what is admitted: else a healthy pod goes, comes back at the retry, and goes again."""
    job, pods, agents = running(0, 1, 2)
    job = replace(job, status=revise(job.status, capacity=NOT_PLACED))
    made = plan(see(job, pods, quota=quota, **agents))
    assert (made.create, made.delete) == ((), ())
    assert [m.leaving for m in made.status.rendezvous.members] == [None] * 3
    assert made.asks == 3
    assert made.status.capacity == NOT_PLACED


def test_where_a_pod_has_no_room_the_queue_is_asked_for_no_more() -> None:
    job, pods, agents = running(0, 1)
    overdue = make_pod(2, "Pending", unschedulable=NOW - 100, created=NOW - 100)
    made = plan(see(job, (*pods, overdue), quota=admit(Share(0, 2, BASE), Share(2, 1, MORE)), **agents))
    assert [d.uid for d in made.delete] == ["u2"]
    assert made.asks == 2, "neither for that one, nor for one more that would not fit either"
    after = plan(see(replace(job, status=made.status), pods, quota=admit(Share(0, 2, BASE)), **agents))
    assert (after.create, after.asks) == ((), 2)


INVALID = {"spec": None, "problems": (api.Problem(field="spec.template", message="has no container"),)}
LEFT_ALONE = [
    pytest.param(INVALID, id="an invalid spec"),
    pytest.param({"spec": make_spec(managedBy="me")}, id="another manager"),
    pytest.param({"unread": ("rendezvous",)}, id="a status that is not understood"),
    pytest.param({"deleting": True}, id="deleted, and kept by somebody's finalizer"),
]


@pytest.mark.parametrize("changes", LEFT_ALONE)
def test_no_edit_of_a_job_keeps_its_quota(changes: dict[str, Any]) -> None:
    job, pods, agents = running(0, 1, 2)
    job = replace(job, **changes)
    for quota, gone in ((WAITING, {"u0", "u1", "u2"}), (admit(Share(0, 2, BASE)), {"u2"})):
        made = plan(see(job, pods, quota=quota, **agents))
        assert {(d.uid, d.why) for d in made.delete} == {(uid, Cause.QUOTA) for uid in gone}
    assert plan(see(job, pods, quota=admit(Share(0, 3, None)), **agents)).delete == ()
    assert plan(see(job, pods, **agents)).delete == (), "a job without a queue goes on as it is"


@pytest.mark.parametrize(
    ("made", "asks"),
    [
        pytest.param(plan(see(make_job(make_spec(replicas=3)))), 3, id="without a queue: what it has"),
        pytest.param(plan(see(make_job(make_spec(runPolicy={"suspend": True})), quota=WAITING)), 0, id="suspended"),
        pytest.param(
            plan(see(make_job(make_spec(elasticPolicy={"spares": 1})), quota=admit(Share(0, 2, BASE)))), 5, id="spares"
        ),
        pytest.param(plan(see(make_job(deleting=True), quota=WAITING)), None, id="being deleted"),
    ],
)
def test_what_a_job_asks_for(made: Plan, asks: int | None) -> None:
    assert made.asks == asks
