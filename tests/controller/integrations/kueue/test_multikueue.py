"""Jobs that MultiKueue sends from one cluster to another: what is decided in either of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, make_job, make_spec
from controller.integrations.kueue.test_asking import BASE, PENDING, RELEASE, THIRD, make_workload, run, say
from controller.integrations.kueue.test_quota import FLAVORS, JOB, SPEC, admit, condition, see, write
from elasticjob_operator import api
from elasticjob_operator.integrations.kueue import manifests, names
from elasticjob_operator.integrations.kueue.asking import Elsewhere, Wish, decide, decide_sent_on
from elasticjob_operator.integrations.kueue.integration import look_elsewhere
from elasticjob_operator.integrations.kueue.quota import read_dispatch, read_quota
from elasticjob_operator.integrations.kueue.values import Workload
from elasticjob_operator.model.observe import observe_job
from elasticjob_operator.model.quota import Quota
from elasticjob_operator.plan.plan import Seen, plan
from elasticjob_operator.times import format_time

ORIGIN = "kueue.x-k8s.io/multikueue-origin"
SENT_ON = make_spec(2, 4, managedBy="kueue.x-k8s.io/multikueue")
NOBODY, BUSY = Elsewhere(), Elsewhere(has_pods=True, ready=2)
EVICTED = make_workload(state="evicted")


@pytest.mark.parametrize(
    ("asks", "workloads", "elsewhere", "expected"),
    [
        pytest.param(2, [], NOBODY, ["create 0+2"], id="one Workload, for minReplicas"),
        pytest.param(2, [PENDING], NOBODY, [], id="it is waited for"),
        pytest.param(2, [BASE], BUSY, [], id="growth is asked for in the other cluster"),
        pytest.param(3, [BASE], BUSY, [], id="minReplicas is raised: it was sent with two"),
        pytest.param(1, [BASE], BUSY, [], id="minReplicas is lowered: it was sent with two"),
        pytest.param(3, [PENDING], NOBODY, ["delete 0"], id="minReplicas is raised while it waits"),
        pytest.param(2, [BASE, THIRD], BUSY, ["delete 2"], id="an increment, of a time when it ran here"),
        pytest.param(2, [replace(BASE, conditions=())], NOBODY, ["set 0 PodsReady=False"], id="not ready there"),
        pytest.param(2, [replace(BASE, conditions=())], BUSY, ["set 0 PodsReady=True"], id="ready there"),
        pytest.param(2, [EVICTED], BUSY, [], id="evicted: the job there saves"),
        pytest.param(2, [EVICTED], NOBODY, [f"set 0 {RELEASE}"], id="evicted: nothing of it runs any more"),
        pytest.param(0, [BASE], BUSY, ["delete 0"], id="suspended: MultiKueue takes the job back"),
        pytest.param(0, [EVICTED], BUSY, ["delete 0"], id="suspended while it is evicted"),
        pytest.param(0, [replace(BASE, is_deleting=True)], BUSY, ["let go 0"], id="deleted: MultiKueue cleans up"),
    ],
)
def test_what_is_asked_for_where_the_job_is_submitted(
    asks: int, workloads: list[Workload], elsewhere: Elsewhere, expected: list[str]
) -> None:
    assert say(decide_sent_on(Wish(make_spec(asks or 2, 6), "gpus", asks), workloads, (), elsewhere)) == expected


def test_pods_that_run_here_still_hold_their_quota() -> None:
    assert say(decide_sent_on(Wish(SPEC, "gpus", 2), [EVICTED], run(0), NOBODY)) == []


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        pytest.param(BASE, [], id="Finished is Kueue's to write, once it has copied the end"),
        pytest.param(replace(BASE, is_finished=True), ["let go 0"], id="then it may be deleted"),
    ],
)
def test_the_end_of_a_job_that_was_sent_on(workload: Workload, expected: list[str]) -> None:
    wish = Wish(SPEC, "gpus", ended=(True, "all ended well"))
    assert say(decide_sent_on(wish, [workload], (), NOBODY)) == expected


@pytest.mark.parametrize(
    ("workload", "suspended", "since", "expected"),
    [
        pytest.param(EVICTED, False, 10, True, id="the other cluster says that it runs"),
        pytest.param(EVICTED, True, 10, False, id="the other cluster says that its pods are gone"),
        pytest.param(EVICTED, False, 149, True, id="within its grace periods and a minute"),
        pytest.param(EVICTED, False, 150, False, id="the other cluster is lost"),
        pytest.param(BASE, False, 1000, True, id="it is not evicted"),
    ],
)
def test_silence_is_waited_for_as_long_as_an_end_may_take(
    workload: Workload, suspended: bool, since: float, expected: bool
) -> None:
    spec = make_spec(
        elasticPolicy={"gracefulShutdownTimeoutSeconds": 20},
        template={"spec": {"containers": [{"name": "worker"}], "terminationGracePeriodSeconds": 70}},
    )
    conditions = [api.Condition(type="Suspended", status="True")] if suspended else []
    status = api.Status(start_time=format_time(NOW), ready_replicas=2, conditions=conditions)
    said = tuple({**c, "lastTransitionTime": format_time(NOW)} for c in workload.conditions)
    elsewhere, until = look_elsewhere(make_job(spec, status), replace(workload, conditions=said), NOW + since)
    assert (elsewhere.has_pods, elsewhere.ready) == (expected, 2)
    assert until in (None, NOW + 150), "when there is another look"


@pytest.mark.parametrize("written", [None, "soon", -5, 1e300, 10**30, [30]])
def test_a_grace_period_that_is_none_is_that_of_kubernetes(written: object) -> None:
    """Nobody looks at it when the job is written; a Workload without one is taken."""
    template = {"spec": {"containers": [{"name": "worker"}], "terminationGracePeriodSeconds": written}}
    spec = make_spec(elasticPolicy={"gracefulShutdownTimeoutSeconds": 20}, template=template)
    said = tuple({**c, "lastTransitionTime": format_time(NOW)} for c in EVICTED.conditions)
    job = make_job(spec, api.Status(start_time=format_time(NOW), ready_replicas=2))
    assert look_elsewhere(job, replace(EVICTED, conditions=said), NOW)[1] == NOW + 110


def reserve(*more: Any, **status: Any) -> Workload:
    assignment = {"name": names.POD_SET, "flavors": {}, "count": 2}
    admission = {"clusterQueue": "team", "podSetAssignments": [assignment]}
    return see(write(conditions=[condition("QuotaReserved"), *more], admission=admission, **status))


@pytest.mark.parametrize(
    ("workloads", "expected"),
    [
        pytest.param([], ("Pending", "LocalQueue gpus: the queue has not decided yet"), id="not asked yet"),
        pytest.param(
            [see(write(conditions=[condition("QuotaReserved", "False", "Pending", "no room")]))],
            ("Pending", "LocalQueue gpus: no room"),
            id="no quota here",
        ),
        pytest.param([reserve()], ("Pending", "ClusterQueue team waits for a cluster that admits it"), id="none there"),
        pytest.param(
            [admit()],
            (
                "NotDispatched",
                "its queue sends no jobs to other clusters: give ClusterQueue team an admission check of MultiKueue, "
                "or leave spec.managedBy out",
            ),
            id="a queue without MultiKueue",
        ),
    ],
)
def test_what_a_job_that_is_not_sent_yet_is_told(workloads: list[Workload], expected: tuple[str, str]) -> None:
    assert read_dispatch(workloads, "gpus") == Quota(False, *expected, is_sent_on=True)


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(reserve(condition("Admitted"), clusterName="there"), id="it runs"),
        pytest.param(reserve(condition("Evicted", reason="AdmissionCheck")), id="it ends: Kueue forgets where"),
    ],
)
def test_a_job_elsewhere_has_no_pods_here_and_a_status_of_the_other_cluster(workload: Workload) -> None:
    quota = read_dispatch([workload], "gpus")
    assert (quota.is_admitted, quota.pods) == (True, 0)
    status = api.Status(phase=api.Phase.RUNNING, start_time=format_time(NOW), ready_replicas=2)
    made = plan(Seen(job=make_job(SENT_ON, status), quota=quota, now=NOW))
    assert (made.status, made.create) == (status, ())


@pytest.mark.parametrize(
    ("suspend", "reason"), [pytest.param(False, "Queued", id="it waits"), pytest.param(True, "Suspended", id="by user")]
)
def test_a_job_that_runs_nowhere_is_suspended(suspend: bool, reason: str) -> None:
    spec = make_spec(2, 4, managedBy="kueue.x-k8s.io/multikueue", runPolicy={"suspend": suspend})
    stale = api.Status(phase=api.Phase.RUNNING, start_time=format_time(NOW), ready_replicas=2, replicas=2)
    made = plan(Seen(job=make_job(spec, stale), quota=read_dispatch([], "gpus"), now=NOW))
    assert (made.status.phase, made.status.replicas, made.status.ready_replicas) == (api.Phase.SUSPENDED, 0, 0)
    suspended, admitted = made.status.condition("Suspended"), made.status.condition("Admitted")
    assert suspended is not None and suspended.reason == reason
    assert admitted is not None and (admitted.status, admitted.reason) == ("False", "Pending")
    assert (made.create, made.set_replicas) == ((), None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"managedBy": "kueue.x-k8s.io/multikueue"}, True, id="as MultiKueue reads it"),
        pytest.param({"managedBy": "kueue.x-k8s.io/other"}, False, id="another controller"),
        pytest.param({"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}, False, id="where MultiKueue looks not"),
        pytest.param({}, False, id="ours"),
    ],
)
def test_which_jobs_are_sent_on(fields: dict[str, Any], expected: bool) -> None:
    assert manifests.is_sent_on(make_spec(**fields)) is expected


# --- in the cluster that the job is sent to


def receive(label: str = "", annotation: str = "", origin: str = "here") -> Any:
    labels = {names.LABEL_QUEUE: "gpus", **({ORIGIN: origin} if origin else {})}
    raw = {
        "metadata": {
            "name": "digits",
            "namespace": "default",
            "uid": "job-uid",
            "labels": labels | ({names.PREBUILT: label} if label else {}),
            "annotations": {names.PREBUILT: annotation} if annotation else {},
        },
        "spec": {"template": SPEC.template},
    }
    return observe_job(raw)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        pytest.param(receive("digits-0123abcd-0"), "digits-0123abcd-0", id="a label"),
        pytest.param(receive(annotation="d" * 70), "d" * 70, id="an annotation, where the name is too long"),
        pytest.param(receive("digits-0123abcd-0", origin=""), "", id="MultiKueue has not sent it"),
        pytest.param(JOB, "", id="a job of this cluster"),
    ],
)
def test_the_workload_that_was_made_for_a_job(job: Any, expected: str) -> None:
    assert manifests.find_prebuilt(job) == expected


def test_a_job_that_was_sent_takes_its_workload_and_asks_for_growth_itself() -> None:
    wish = Wish(make_spec(2, 6), "gpus", 3, prebuilt="digits-0123abcd-0")
    assert say(decide(wish, [], ())) == ["adopt digits-0123abcd-0"]
    assert say(decide(wish, [BASE], run(0, 1))) == ["create 2+1"]


def copy_of(**metadata: Any) -> dict[str, Any]:
    """The Workload as MultiKueue makes it here."""
    raw = write()
    described = {k: v for k, v in raw["metadata"].items() if k not in ("ownerReferences", "finalizers")}
    described |= {"name": "digits-0123abcd-0", "labels": {**described["labels"], ORIGIN: "here"}, **metadata}
    return {**raw, "metadata": described}


OTHER = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "b", "controller": True}


@pytest.mark.parametrize(
    ("metadata", "is_taken"),
    [
        pytest.param({}, True, id="as MultiKueue makes it"),
        pytest.param({"ownerReferences": [{**OTHER, "controller": False}]}, True, id="somebody else owns it too"),
        pytest.param({"ownerReferences": [OTHER]}, False, id="somebody else controls it"),
        pytest.param({"labels": {}}, False, id="a user has made it"),
        pytest.param({"labels": {ORIGIN: "another"}}, False, id="of another origin than the job"),
    ],
)
def test_only_a_workload_of_multikueue_is_taken(metadata: dict[str, Any], is_taken: bool) -> None:
    job, raw = receive("digits-0123abcd-0"), copy_of(**metadata)
    patch = manifests.build_adoption(raw, job)
    assert (patch is not None) is is_taken
    if patch is None:
        return
    taken = see({**raw, "metadata": {**raw["metadata"], **patch["metadata"]}})
    assert (taken.job_uid, taken.is_held) == ("job-uid", True)
    assert manifests.is_genuine(taken, job, manifests.find_needed(job))
    assert not manifests.is_genuine(taken, JOB, manifests.find_needed(JOB)), "no other job has its name"


def test_pods_say_that_multikueue_has_sent_them() -> None:
    quota = read_quota([replace(admit(), is_sent=True)], FLAVORS, SPEC.template_hash, "gpus")
    placement = quota.placement(0)
    assert placement is not None and placement.labels["kueue.x-k8s.io/multikueue-worker-workload-pod"] == "true"


@pytest.mark.parametrize(
    ("labels", "expired"),
    [pytest.param({}, True, id="of this cluster"), pytest.param({ORIGIN: "here"}, False, id="sent")],
)
def test_a_job_that_was_sent_stays_until_its_end_is_copied(labels: dict[str, str], expired: bool) -> None:
    done = api.Condition(type="Complete", status="True", last_transition_time=format_time(NOW - 60))
    status = api.Status(phase=api.Phase.COMPLETE, conditions=[done], completion_time=format_time(NOW - 60))
    spec = make_spec(2, 4, runPolicy={"ttlSecondsAfterFinished": 5})
    assert plan(Seen(job=make_job(spec, status, labels=labels), now=NOW)).delete_job is expired
