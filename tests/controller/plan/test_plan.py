"""Exact plans for each rule; whole scenarios are in tests/controller/simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, TEMPLATE, make_agent, make_job, make_node, make_pod, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.model.observe import Job, NoRoom, Pod
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan import ending, reporting, summary
from elasticjob_operator.plan.plan import Child, Config, Deletion, Kind, NewPod, Plan, Seen, plan
from elasticjob_operator.times import format_time


def see(job: Job, pods: tuple[Pod, ...] = (), **fields: Any) -> Seen:
    fields.setdefault("nodes", {p.node: make_node(p.node) for p in pods if p.node})
    return Seen(job=job, pods=pods, now=NOW, hub_started=NOW - 1000, **fields)


def started(**status: Any) -> api.Status:
    spec = make_spec()
    return api.Status(
        start_time=format_time(NOW - 500), observed_generation=1, template_hash=spec.template_hash, **status
    )


def condition(made: Plan, type: str) -> tuple[str, str, str]:
    found = made.status.condition(type)
    return (found.status, found.reason, found.message) if found else ("", "", "")


def test_a_fresh_job_gets_its_pods_and_objects() -> None:
    made = plan(see(make_job(has_replicas=False)))
    assert made.create == (NewPod(0), NewPod(1), NewPod(2), NewPod(3))
    assert [c.kind for c in made.ensure] == [Kind.NETWORK_POLICY]
    assert made.set_replicas == 4
    assert made.status.phase == "Pending"
    assert made.status.start_time == format_time(NOW)
    assert condition(made, "Running") == ("False", "WaitingForPods", "0 of at least 2 pods are ready")
    assert not made.directives


@pytest.mark.parametrize(
    ("template_hash", "seconds", "charged", "words"),
    [
        pytest.param("", 60, 1, "spec.template.spec.activeDeadlineSeconds has passed", id="the template's"),
        pytest.param("", 30, 0, "sets 60: an admission webhook or a policy does", id="others'"),
        pytest.param("before", 60, 1, "spec.template.spec.activeDeadlineSeconds", id="the same as before"),
        pytest.param(
            "before", 30, 0, "sets 60: an earlier template, an admission webhook or a policy", id="of another template"
        ),
    ],
)
def test_whose_deadline_is_charged(template_hash: str, seconds: int, charged: int, words: str) -> None:
    """What an earlier template has set is mended, and nobody can tell it from what a policy has."""
    spec = make_spec(template={"spec": {**TEMPLATE["spec"], "activeDeadlineSeconds": 60}})
    ended = make_pod(
        0, "Failed", reason="DeadlineExceeded", deadline_seconds=seconds,
        template_hash=template_hash or spec.template_hash,
    )  # fmt: skip
    made = plan(see(make_job(spec, started()), (ended, make_pod(1))))
    assert made.status.restarts.user == charged
    assert made.status.last_failure is not None
    assert words in (made.status.last_failure.message or "")


def test_a_budget_is_made_when_the_first_world_is_written() -> None:
    """Until then nothing would be lost, and a drain must not wait for a job that does not start."""
    pods = (make_pod(0), make_pod(1))
    agents = {f"u{i}": make_agent(i, "ready") for i in range(2)}
    job = make_job(make_spec(2, 2))
    first = plan(see(job, pods, agents=agents))
    assert first.status.rendezvous.generation == 1
    assert Kind.DISRUPTION_BUDGET not in {c.kind for c in first.ensure}, "it does not delay the world"
    second = plan(see(replace(job, status=first.status), pods, agents=agents))
    assert [c.values for c in second.ensure if c.kind is Kind.DISRUPTION_BUDGET] == [(("minAvailable", 2),)]


def test_a_name_that_a_pod_cannot_have_is_named_though_no_world_starts() -> None:
    """The world with that save is missed again and again."""
    spec = make_spec(2, 2, checkpoints={"path": "/checkpoints"})
    said = {"checkpoint": wire.Checkpoint(unfit="'a.pt' (300 bytes): File name too long")}
    agents = {"u0": make_agent(0, "ready", 1), "u1": make_agent(1, "ready", 1, said=said)}
    job = make_job(spec, started(rendezvous=make_world()))
    status, reason, message = condition(plan(see(job, (make_pod(0), make_pod(1)), agents=agents)), "CheckpointCopied")
    assert (status, reason) == ("False", "UnfitName")
    assert "digits-worker-1 cannot have 'a.pt'" in message


def test_the_job_is_looked_at_before_pods_are_replaced() -> None:
    assert not plan(see(make_job())).confirm, "the first pods are not held up"
    made = plan(see(make_job(status=started(replicas=4)), (make_pod(0), make_pod(1))))
    assert made.create == (NewPod(2), NewPod(3))
    assert made.confirm, "they may be gone because the job is"


@pytest.mark.parametrize("contested_until", [0.0, NOW + 60])
def test_a_job_whose_size_is_fought_about_does_not_grow(contested_until: float) -> None:
    pods = tuple(make_pod(i) for i in range(3))
    agents = {f"u{i}": make_agent(i, "running", 1) for i in (0, 1)} | {"u2": make_agent(2, "ready")}
    job = make_job(make_spec(2, 3), started(rendezvous=make_world()))
    made = plan(see(job, pods, agents=agents, contested_until=contested_until))
    assert made.directives["u0"].action == ("world" if contested_until else "regroup")
    if contested_until:
        assert made.wake_at is not None
        assert made.wake_at <= contested_until


def test_a_job_that_has_no_legal_size_says_so() -> None:
    spec = api.parse_spec({"replicas": 2, "elasticPolicy": {"replicaDiscreteValues": [1, 3]}, "template": TEMPLATE})
    made = plan(see(make_job(spec, started()), tuple(make_pod(i) for i in range(2))))
    assert condition(made, "Degraded")[:2] == ("True", "NoLegalSize")
    assert "elasticPolicy.replicaDiscreteValues" in condition(made, "Degraded")[2]


def test_a_job_that_has_never_trained_says_what_became_of_its_pods() -> None:
    """While it tries again, too: else it would be silent for most of the time."""
    failed = make_pod(0, "Failed", node="rack-9", exit=None, reason="", disruption="DeletionByPodGC")
    new = make_pod(1, "Pending", created=NOW - 2, scheduled=NOW - 2)
    first = plan(see(make_job(make_spec(1, 2), started()), (failed, new), nodes={}))
    assert "its node rack-9 is gone" in str(first.status.last_failure)
    again = plan(see(make_job(make_spec(1, 2), first.status), (new,)))
    for made in (first, again):
        for kind in ("Running", "Degraded"):
            _, reason, message = condition(made, kind)
            assert reason == "BackOff"
            assert "its node rack-9 is gone" in message


def test_the_authority_is_given_where_there_is_one() -> None:
    made = plan(see(make_job()), Config(ca_pem="PEM"))
    assert [c.values for c in made.ensure if c.kind is Kind.CONFIG_MAP] == [(("ca.crt", "PEM"),)]


def test_pods_that_are_not_made_are_not_counted() -> None:
    """Of a job whose template is not kept, none are: the pods that it has begin without them."""
    job = replace(make_job(make_spec(1, 3), started()), lacks_template=True)
    made = plan(see(job, (make_pod(0),), agents={"u0": make_agent(0, "ready")}))
    assert (made.create, made.confirm) == ((), False)
    assert made.status.replicas == 1
    assert made.status.rendezvous.world_size == 1


def test_objects_that_are_as_wanted_are_left_alone() -> None:
    first = plan(see(make_job()))
    children = frozenset((c.kind.value, c.name, c.digest) for c in first.ensure)
    assert plan(see(make_job(), children=children)).ensure == ()
    outdated = frozenset((kind, name, "old") for kind, name, _ in children)
    assert plan(see(make_job(), children=outdated)).ensure == first.ensure


def test_a_gang_is_written_until_it_is_as_wanted() -> None:
    """Also when the pods are there: the first write may have failed, and minReplicas may change."""
    template = {"spec": {**TEMPLATE["spec"], "schedulerName": "volcano"}}
    pods = (make_pod(0), make_pod(1))

    def groups(low: int, written: tuple[Child, ...] = ()) -> list[Child]:
        children = frozenset((c.kind.value, c.name, c.digest) for c in written)
        made = plan(see(make_job(make_spec(low, 4, template=template), started()), pods, children=children))
        return [c for c in made.ensure if c.kind is Kind.POD_GROUP]

    (group,) = groups(2)
    assert groups(2, (group,)) == []
    assert [dict(c.values)["minMember"] for c in groups(3, (group,))] == [3]


def test_a_group_stays_as_it_is_while_its_template_is_not_kept() -> None:
    """Its queue is an annotation of the template, and may be one of the parts that are not there."""
    template = {"spec": {**TEMPLATE["spec"], "schedulerName": "volcano"}}
    job = replace(make_job(make_spec(template=template), started()), lacks_template=True)
    made = plan(see(job, (make_pod(0), make_pod(1))))
    assert Kind.POD_GROUP not in {child.kind for child in made.ensure}
    assert made.remove == ()


@pytest.mark.parametrize(
    ("on", "off", "child"),
    [
        pytest.param({}, {"network": {"policy": False}}, Child(Kind.NETWORK_POLICY, "digits-workers"), id="policy"),
        pytest.param({"network": {"service": True}}, {}, Child(Kind.SERVICE, "digits-workers"), id="service"),
        pytest.param(
            {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 4, "metrics": [{"type": "Resource"}]}},
            {},
            Child(Kind.AUTOSCALER, "digits"),
            id="autoscaler",
        ),
    ],
)
def test_objects_that_the_spec_has_turned_off_go(on: dict[str, Any], off: dict[str, Any], child: Child) -> None:
    first = plan(see(make_job(make_spec(**on))))
    children = frozenset((c.kind.value, c.name, c.digest) for c in first.ensure)
    assert plan(see(make_job(make_spec(**on)), children=children)).remove == ()
    assert plan(see(make_job(make_spec(**off)), children=children)).remove == (child,)
    strange = frozenset((kind, f"{name}-2", digest) for kind, name, digest in children)
    assert plan(see(make_job(make_spec(**off)), children=strange)).remove == ()


@pytest.mark.parametrize("pods", [pytest.param(True, id="pods wait"), pytest.param(False, id="pods do not wait")])
def test_what_was_rejected_is_held_back(pods: bool) -> None:
    made = plan(see(make_job(make_spec(network={"service": True}))))
    guards = tuple(child for child in made.ensure if child.kind is not Kind.SERVICE)
    assert guards and guards != made.ensure
    held = made.held_back(NOW + 5, pods=pods)
    assert (held.create, held.ensure) == (((), ()) if pods else (made.create, guards)), "pods need what guards them"
    assert held.wake_at is not None and held.wake_at <= NOW + 5


def test_a_finished_job_needs_no_budget_and_no_autoscaler() -> None:
    policy = {"minReplicas": 2, "maxReplicas": 4, "metrics": [{"type": "Resource"}]}
    first = plan(see(make_job(make_spec(elasticPolicy=policy), started(rendezvous=make_world()))))
    children = frozenset((c.kind.value, c.name, c.digest) for c in first.ensure)
    ended = ending.end(see(make_job()), started(), api.Phase.COMPLETE, "Completed", "").status
    made = plan(see(make_job(make_spec(elasticPolicy=policy), ended), children=children))
    assert [(c.kind, c.name) for c in made.remove] == [
        (Kind.AUTOSCALER, "digits"),
        (Kind.DISRUPTION_BUDGET, "digits-workers"),
    ]


ENDED = make_job(status=ending.end(see(make_job()), started(), api.Phase.COMPLETE, "Completed", "").status)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        pytest.param(make_job(deleting=True), "being deleted", id="deleted before it began"),
        pytest.param(replace(ENDED, deleting=True), "being deleted", id="deleted after its end"),
        pytest.param(
            make_job(make_spec(managedBy="example.com/other"), started(), deleting=True),
            "being deleted",
            id="another's, deleted",
        ),
        pytest.param(
            make_job(make_spec(managedBy="kueue.x-k8s.io/multikueue")),
            "managed by kueue.x-k8s.io/multikueue",
            id="managed-by-another",
        ),
        pytest.param(
            make_job(make_spec(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})),
            "managed by kueue.x-k8s.io/multikueue",
            id="managed-by-another-in-the-old-place",
        ),
    ],
)
def test_what_is_none_of_our_business(job: Job, reason: str) -> None:
    assert plan(see(job, (make_pod(0),))) == Plan(job.status, reason)


TRAINS = [api.Condition(type="Running", status="True", reason="WorldRunning")]
TRAINED = {"phase": "Running", "conditions": TRAINS, "ready_replicas": 2, "rendezvous": make_world()}
SUSPENDED = [
    api.Condition(type="Running", status="False", reason="Suspended"),
    api.Condition(type="Suspended", status="True", reason="Suspended"),
]


@pytest.mark.parametrize(
    ("before", "pods", "held_by", "expected", "told"),
    [
        pytest.param(
            TRAINED,
            (),
            ("a.example/one",),
            ("False", "Pending", 0, 0),
            "the finalizer a.example/one keeps it",
            id="its pods are gone",
        ),
        pytest.param(
            TRAINED,
            (make_pod(0), make_pod(1, deleting=NOW + 5)),
            ("foregroundDeletion", "a.example/one", "b.example/two"),
            ("False", "Pending", 0, 0),
            "the finalizers a.example/one, b.example/two keep it",
            id="a pod goes",
        ),
        pytest.param(
            TRAINED,
            (make_pod(0), make_pod(1)),
            ("a.example/one",),
            ("True", "Running", 2, 2),
            "the finalizer a.example/one keeps it",
            id="its pods stay",
        ),
        pytest.param(
            {"phase": "Running", "conditions": TRAINS, "ready_replicas": 2},
            (make_pod(0),),
            (),
            ("False", "Pending", 0, 0),
            "is being deleted",
            id="a pod is gone, of which the status has no member",
        ),
        pytest.param(
            TRAINED,
            (),
            ("foregroundDeletion",),
            ("False", "Pending", 0, 0),
            "is being deleted once its pods are gone",
            id="after its pods",
        ),
        pytest.param(
            {"phase": "Pending"},
            (make_pod(0, "Pending"),),
            ("a.example/one",),
            ("False", "Pending", 0, 0),
            "the finalizer a.example/one keeps it",
            id="it did not train yet",
        ),
        pytest.param(
            {"phase": "Suspended", "conditions": SUSPENDED},
            (),
            ("a.example/one",),
            ("False", "Suspended", 0, 0),
            "the finalizer a.example/one keeps it",
            id="suspended",
        ),
    ],
)
def test_what_a_deleted_job_says_is_true(
    before: dict[str, Any],
    pods: tuple[Pod, ...],
    held_by: tuple[str, ...],
    expected: tuple[str, str, int, int],
    told: str,
) -> None:
    job = make_job(status=started(**before), deleting=True, held_by=held_by)
    made = plan(see(job, pods))
    status = made.status
    running = condition(made, "Running")
    found = (running[0], status.phase, status.ready_replicas, status.rendezvous.world_size)
    assert (found, running[1]) == (expected, "Terminating")
    assert told in running[2]
    assert status.replicas == sum(1 for pod in pods if pod.deleting is None)
    assert made.is_idle
    again = plan(replace(see(replace(job, status=status), pods), now=NOW + 60))
    assert again.status == status, "it is written once"


@pytest.mark.parametrize("place", [{}, {"runPolicy": {"managedBy": "elasticjob.dev/operator"}}])
def test_managed_by_us_is_ours(place: dict[str, Any]) -> None:
    assert plan(see(make_job(make_spec(managedBy="elasticjob.dev/operator", **place)))).create


def test_an_invalid_job_fails_with_the_field_and_the_remedy() -> None:
    problem = api.Problem(field="spec.template", message="is required")
    made = plan(see(replace(make_job(), spec=None, problems=(problem,))))
    assert condition(made, "Failed") == ("True", "InvalidSpec", "spec.template: is required")
    assert [e.reason for e in made.events] == ["Failed"]
    assert not made.create


def test_a_typo_does_not_end_a_running_job() -> None:
    problem = api.Problem(field="spec.elasticPolicy", message="is wrong")
    made = plan(see(replace(make_job(status=started()), spec=None, problems=(problem,)), (make_pod(0),)))
    assert condition(made, "Degraded") == ("True", "InvalidSpec", "spec.elasticPolicy: is wrong")
    assert made.is_idle
    assert not made.status.finished


PROBLEM = api.Problem(field="spec", message="is wrong")


def refused(reason: str = "InvalidSpec", *, generation: int = 0, begun: bool = False) -> api.Status:
    """Of a job that ended for the first generation of its spec."""
    before = started() if begun else api.Status()
    if generation:
        before = revise(before, rendezvous=make_world(generation))
    ended = ending.end(see(make_job()), before, api.Phase.FAILED, reason, "x").status
    return revise(reporting.observe(ended, 1), conditions=summary.summarize(ended, NOW))


@pytest.mark.parametrize(
    ("status", "job", "seen", "begins", "waits"),
    [
        pytest.param(refused(), {}, {}, True, False, id="corrected"),
        pytest.param(refused("InvalidTemplate", begun=True), {}, {}, True, False, id="no pod was ever made"),
        pytest.param(refused(), {"generation": 1}, {}, False, False, id="as it was: a limit may have been raised"),
        pytest.param(refused(), {"spec": None, "problems": (PROBLEM,)}, {}, False, False, id="still wrong"),
        pytest.param(refused(), {"problems": (PROBLEM,)}, {}, False, False, id="wrong, in force within its bounds"),
        pytest.param(refused(), {"unread": ("rendezvous",)}, {}, False, False, id="an odd status"),
        pytest.param(refused(), {"deleting": True}, {}, False, False, id="being deleted"),
        pytest.param(refused("CrashLoop", begun=True), {}, {}, False, False, id="another reason"),
        pytest.param(refused("InvalidTemplate", begun=True, generation=1), {}, {}, False, False, id="it had a world"),
        pytest.param(refused(), {"spec": None, "no_room": NoRoom(9)}, {}, False, True, id="no room for its spec"),
        pytest.param(refused(), {}, {"pods": (make_pod(0),)}, False, True, id="a pod is left"),
        pytest.param(
            refused("InvalidTemplate", begun=True),
            {},
            {"problem": ("InvalidTemplate", "x")},
            False,
            True,
            id="the refusal of the manifest before is the last that is known",
        ),
    ],
)
def test_a_job_whose_manifest_is_corrected_before_it_began_begins_anew(
    status: api.Status, job: dict[str, Any], seen: dict[str, Any], begins: bool, waits: bool
) -> None:
    changed = replace(make_job(status=status), **{"generation": 2, **job})
    made = plan(see(changed, **seen))
    assert made.status.finished is not begins
    if not begins:
        assert (made.status.observed_generation == 1) is (waits or changed.generation == 1 or changed.deleting)
        return
    truths = {c.type: c.status for c in made.status.conditions}
    assert (truths["Failed"], truths["Stalled"], truths["Reconciling"]) == ("False", "False", "True")
    assert (made.status.completion_time, made.status.start_time, made.status.observed_generation) == (None, None, 2)
    assert [event.reason for event in made.events] == ["Corrected"]
    after = plan(see(replace(changed, status=made.status)))
    assert after.create == plan(see(make_job(generation=2))).create
    assert after.status.start_time is not None


@pytest.mark.parametrize(
    ("spec", "problem", "expected"),
    [
        pytest.param({}, None, ("True", "InvalidSpec", "spec: too many"), id="alone"),
        pytest.param(
            {},
            ("CreateForbidden", "quota"),
            ("True", "CreateForbidden", "quota; spec: too many"),
            id="not the only one",
        ),
        pytest.param({"runPolicy": {"suspend": True}}, None, ("True", "InvalidSpec", "spec: too many"), id="suspended"),
    ],
)
def test_a_spec_that_was_mended_is_always_told(spec: dict[str, Any], problem: Any, expected: tuple[str, ...]) -> None:
    job = make_job(make_spec(**spec), started())
    mended = api.Problem(field="spec", message="too many")
    made = plan(see(replace(job, problems=(mended,)), problem=problem))
    assert condition(made, "Degraded") == expected


@pytest.mark.parametrize(
    ("generation", "kind", "outcome"),
    [
        pytest.param(0, "InvalidTemplate", "Failed", id="template-that-never-ran"),
        pytest.param(3, "InvalidTemplate", "Degraded", id="template-of-a-job-that-ran"),
        pytest.param(0, "CreateForbidden", "Degraded", id="quota"),
    ],
)
def test_what_the_api_server_says_of_our_writes(generation: int, kind: str, outcome: str) -> None:
    status = started(rendezvous=make_world(generation)) if generation else started()
    made = plan(see(make_job(status=status), problem=(kind, "the reason")))
    assert condition(made, outcome) == ("True", kind, "the reason")


def test_a_new_generation_is_persisted_before_it_is_announced() -> None:
    pods = (make_pod(0), make_pod(1))
    agents = {"u0": make_agent(0), "u1": make_agent(1)}
    made = plan(see(make_job(make_spec(2, 2), started()), pods, agents=agents))
    assert made.announces
    assert made.status.rendezvous.generation == 1
    assert {type(d) for d in made.directives.values()} == {wire.World}
    assert [e.message for e in made.events] == ["generation 1 with 2 pods: the job starts"]


def test_a_failed_pod_is_deleted_only_after_it_is_counted() -> None:
    failed = make_pod(0, "Failed")
    made = plan(see(make_job(status=started()), (failed,)))
    assert made.status.restarts.counted == ["u0"], "in the same patch that comes before the deletion"
    assert made.delete == (Deletion("digits-worker-0", "u0", "it has terminated"),)


def test_the_record_of_a_pod_that_is_gone_goes_with_the_next_write() -> None:
    """It takes no write of its own: that of each pod that ends would be one more."""
    failed = make_pod(0, "Failed")
    job = make_job(status=started())
    job = replace(job, status=plan(see(job, (failed,))).status)
    settled = plan(see(job, (make_pod(1),))).status
    job = replace(job, status=revise(settled, restarts=revise(settled.restarts, counted=["u0"])))
    made = plan(see(job, (make_pod(1),)))
    assert made.status == job.status
    made = plan(see(job, (make_pod(1), make_pod(2))))
    assert made.status != job.status
    assert made.status.restarts.counted == []


def test_a_member_is_not_deleted_before_the_world_goes_on_without_it() -> None:
    pods = tuple(make_pod(i) for i in range(3))
    agents = {f"u{i}": make_agent(i, "running", 1) for i in range(3)}
    status = started(rendezvous=make_world(members=(0, 1, 2)), goodput=api.GoodputStatus(training=True))
    first = plan(see(make_job(make_spec(2, 4, replicas=2), status), pods, agents=agents))
    assert first.delete == ()
    assert first.status.rendezvous.members[2].leaving == "scale-down"
    stopped = {f"u{i}": make_agent(i, "ready", 1) for i in range(3)}
    second = plan(see(make_job(make_spec(2, 4, replicas=2), first.status), pods, agents=stopped))
    assert second.status.rendezvous.generation == 2
    assert second.delete == (), "it is still in the world that the API server knows of"
    third = plan(see(make_job(make_spec(2, 4, replicas=2), second.status), pods, agents=stopped))
    assert third.delete == (Deletion("digits-worker-2", "u2", "scale-down"),)
    assert third.directives["u2"] == wire.Stop(reason="not-wanted")


def test_members_that_go_save_first() -> None:
    pods = (make_pod(0), make_pod(1), make_pod(2, deleting=NOW + 30))
    agents = {f"u{i}": make_agent(i, "running", 1) for i in range(2)} | {"u2": make_agent(2, "leaving", 1)}
    made = plan(see(make_job(status=started(rendezvous=make_world(members=(0, 1, 2)))), pods, agents=agents))
    told = [d for d in made.directives.values() if isinstance(d, wire.Regroup)]
    assert len(told) == 3
    assert all(d.checkpoint and d.grace_seconds == 30 for d in told)


def test_torchs_own_rendezvous_forms_a_world_of_running_pods() -> None:
    spec = make_spec(2, 2, rendezvous={"backend": "c10d"})
    made = plan(see(make_job(spec, started()), (make_pod(0), make_pod(1))))
    assert [m.pod for m in made.status.rendezvous.members] == ["digits-worker-0", "digits-worker-1"]
    assert condition(made, "Running")[0] == "True"
    assert not made.directives


def test_nobody_has_left_a_world_of_torchs_own_rendezvous_that_grows() -> None:
    """Its members have no agents that would say what they do: as long as their pods run, they are in it."""
    status = started()
    for size in range(2, 12):
        pods = tuple(make_pod(i) for i in range(size))
        spec = make_spec(2, 16, replicas=size, rendezvous={"backend": "c10d"})
        status = plan(see(make_job(spec, status), pods)).status
        status = plan(see(make_job(spec, status), pods)).status
        assert len(status.rendezvous.members) == size
    assert (status.restarts, status.last_failure) == (api.RestartStatus(), None)


def test_a_pod_of_torchs_own_rendezvous_that_is_gone_is_a_loss() -> None:
    spec = make_spec(1, 2, rendezvous={"backend": "c10d"})
    pods, status = (make_pod(0), make_pod(1)), started()
    for _ in range(3):
        status = plan(see(make_job(spec, status), pods)).status
    after = plan(see(make_job(spec, status), pods[:1])).status
    assert after.last_failure is not None and after.last_failure.pod == "digits-worker-1"
    assert (after.restarts.infrastructure, after.restarts.user) == (1, 0)


def test_each_pod_may_have_cpus_that_the_template_does_not_name() -> None:
    """The status counts what a LimitRange has set in the pods, also in the next look at a job that runs."""
    spec = make_spec(2, 2, rendezvous={"backend": "c10d"}, nprocPerNode="cpu")
    sizes = [(("worker", "limits", "cpu", amount), ("proxy", "limits", "cpu", "9")) for amount in ("3.5", "2")]
    pods = tuple(make_pod(i, sizes=of_pod) for i, of_pod in enumerate(sizes))
    made = plan(see(make_job(spec, started()), pods))
    assert [m.nproc for m in made.status.rendezvous.members] == [4, 2]
    assert made.status.rendezvous.processes == 6
    again = plan(see(make_job(spec, made.status), pods))
    assert again.status.nproc_per_node == 4
    assert not again.status.is_true("Warning")


def test_a_pod_that_its_node_does_not_end_is_told() -> None:
    """A process that waits for a disk takes no signal: it may hold its devices when the API server forgets the pod."""
    nodes = {name: make_node(name) for name in "ab"}
    pods = (make_pod(0, node="a"), make_pod(1, node="b", deleting=NOW - 61))
    made = plan(see(make_job(make_spec(1, 2), started()), pods, nodes=nodes))
    assert [(gone.name, gone.force) for gone in made.delete] == [("digits-worker-1", True)]
    (event,) = [event for event in made.events if event.reason == "DeletedByForce"]
    assert event.warning
    assert "digits-worker-1 on node b" in event.message and "devices" in event.message


def test_torchs_own_rendezvous_takes_only_indices_below_wanted() -> None:
    spec = make_spec(2, 2, rendezvous={"backend": "static"})
    made = plan(see(make_job(spec, started()), (make_pod(0, deleting=NOW + 5), make_pod(1))))
    assert made.create == (), "the name and the rank are free when the old pod is gone"


def test_torchs_own_rendezvous_completes() -> None:
    spec = make_spec(2, 2, rendezvous={"backend": "c10d"})
    pods = (make_pod(0, "Succeeded"), make_pod(1, "Succeeded"))
    made = plan(see(make_job(spec, started(rendezvous=make_world())), pods))
    assert condition(made, "Complete") == ("True", "Completed", "all 2 members succeeded")


def test_a_quiet_plan_says_the_same_again() -> None:
    pods = (make_pod(0), make_pod(1))
    agents = {f"u{i}": make_agent(i, "running", 1) for i in range(2)}
    job = make_job(make_spec(2, 2), started(rendezvous=make_world()))
    first = plan(see(job, pods, agents=agents))
    children = frozenset((c.kind.value, c.name, c.digest) for c in first.ensure)
    second = plan(see(replace(job, status=first.status), pods, agents=agents, children=children))
    assert second.is_idle
    assert second.status == first.status
    assert second.directives == first.directives
    assert second.events == ()
    assert second.wake_at == NOW + 600, "when the world should have made its first step"


def test_waits_for_checkpoints_are_written_with_the_next_progress() -> None:
    pods = (make_pod(0), make_pod(1))
    job = make_job(make_spec(2, 2), started(rendezvous=make_world()))
    written = []
    for later, step, waited in ((0, 5, 3.0), (1, 6, 4.0), (20, 9, 4.0)):
        progress = wire.Progress(rank=0, generation=1, step=step, checkpoint_seconds=waited)
        agents = {f"u{i}": replace(make_agent(i, "running", 1), progress=progress) for i in range(2)}
        job = replace(job, status=plan(replace(see(job, pods, agents=agents), now=NOW + later)).status)
        written.append(job.status.goodput.checkpoint_seconds)
    assert written == [3.0, 3.0, 4.0], "a wait alone writes no status"


@pytest.mark.parametrize("ended", [pytest.param(True, id="they have ended"), pytest.param(False, id="they end yet")])
def test_members_that_were_sent_home_have_not_finished_the_job(ended: bool) -> None:
    """The job is resumed before its pods are gone: they end with code 0, as they were told to."""
    world = make_world(2)
    world = world.model_copy(
        update={"members": [m.model_copy(update={"leaving": names.Cause.SUSPENDED}) for m in world.members]}
    )
    job = make_job(make_spec(1, 2, replicas=2), started(replicas=2, rendezvous=world))
    pods = tuple(make_pod(i, "Succeeded" if ended else "Running") for i in (0, 1))
    agents = {f"u{i}": make_agent(i, "running", 2, lost_by="closed" if ended else "") for i in (0, 1)}
    made = plan(see(job, pods, agents=agents))
    assert not made.status.finished
    assert [m.leaving for m in made.status.rendezvous.members] == [names.Cause.SUSPENDED] * 2
    assert made.create, "others come in their place"


def test_agents_of_an_earlier_job_are_told_to_go_and_count_for_nothing() -> None:
    leaving, training = make_agent(0, "leaving", 3, attempt=1), make_agent(1, "running", 3, attempt=1)
    seen = Seen(make_job(), leftover={"old-0": leaving, "old-1": training}, now=NOW)
    made = plan(seen)
    assert {uid: type(directive).__name__ for uid, directive in made.directives.items()} == {"old-0": "Stop"}
    assert made.directives.keys().isdisjoint(plan(Seen(make_job(), now=NOW)).directives)
    assert made.create == plan(Seen(make_job(), now=NOW)).create


@pytest.mark.parametrize(("wish", "avoided"), [("Preferred", ("n1", "n2")), ("Required", ("n2",))])
def test_what_only_others_say_of_a_node_excludes_no_pod(wish: str, avoided: tuple[str, ...]) -> None:
    job = make_job(make_spec(1, 1, health={"avoidNodes": wish}))
    made = plan(Seen(job=job, faulty_nodes=("n2",), suspected_nodes=("n1",), now=NOW))
    assert [new.avoid for new in made.create] == [avoided]


@pytest.mark.parametrize(
    ("phase", "keeps_memory", "waits"),
    [
        pytest.param("running", False, True, id="it trains"),
        pytest.param("ready", False, False, id="its workers have ended"),
        pytest.param("ready", True, True, id="its sessions wait for a world, with their state in memory"),
        pytest.param("starting", True, False, id="its sessions have no state yet"),
    ],
)
def test_a_suspended_pod_that_may_save_is_not_deleted_yet(phase: str, keeps_memory: bool, waits: bool) -> None:
    job = make_job(make_spec(runPolicy={"suspend": True}), started(rendezvous=make_world(members=(0,))))
    agent = make_agent(0, phase, 1, said={"in_process": keeps_memory})
    made = plan(see(job, (make_pod(0),), agents={"u0": agent}))
    assert [gone.uid for gone in made.delete] == ([] if waits else ["u0"])
    assert made.wake_at is not None or not waits, "it is looked at again when its grace is over"


@pytest.mark.parametrize(("waited", "pause"), [(0, 5.0), (100, 10.0), (3600, 60.0)])
def test_a_change_that_waits_for_room_is_looked_at_later_and_later(waited: int, pause: float) -> None:
    """A namespace has as many such jobs as its owner likes: each would have a pass every five seconds, for ever."""
    told = api.Condition(
        type="Warning", status="True", reason="NoRoom", message="no", last_transition_time=format_time(NOW - waited)
    )
    status = api.Status(start_time=format_time(NOW - waited), conditions=[told] if waited else [])
    spec = make_spec(runPolicy={"suspend": True})
    made = plan(Seen(make_job(spec, status, late=NoRoom(9)), now=NOW), Config())
    assert made.wake_at is not None
    assert made.wake_at - NOW == pytest.approx(pause, abs=0.1)
