"""What a job does until it has its template, and what it keeps of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.builders import NOW, TEMPLATE, make_job
from elasticjob_operator import api
from elasticjob_operator.api import bounds
from elasticjob_operator.client import Job, build_manifest
from elasticjob_operator.client import rules as client_rules
from elasticjob_operator.model.observe import observe_job
from elasticjob_operator.plan.plan import Plan, Seen, plan
from elasticjob_operator.templates import taking
from elasticjob_operator.times import parse_time

REF = {"kind": "ElasticJobTemplate", "name": "gpu-8"}
OF_TEMPLATE = {"elasticPolicy": {"maxReplicas": 4}, "health": {"preflight": "Node"}, "template": TEMPLATE}


def found(spec: Any = OF_TEMPLATE, **fields: Any) -> taking.Found | taking.Refusal:
    metadata = {"namespace": "shared", "name": "gpu-8", "uid": "t", "generation": 3, **fields}
    return taking.read_template({"metadata": metadata, "spec": spec})


def raw_job(status: api.Status | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": "digits", "uid": "u", "generation": 1}
    dumped = {"status": status.dump()} if status is not None else {}
    return {"metadata": metadata, "spec": {"templateRef": REF, **spec}, **dumped}


def act(raw: dict[str, Any], template: taking.Found | taking.Refusal | None, now: float = NOW) -> Plan:
    return plan(Seen(job=observe_job(raw), template=template, now=now))


def test_a_job_takes_its_template_and_nothing_else_happens_before() -> None:
    raw = raw_job(elasticPolicy={"maxReplicas": 2})
    made = act(raw, found())
    assert made.is_idle
    assert [e.reason for e in made.events] == ["TemplateTaken"]
    taken = made.status.template
    assert taken is not None
    assert (taken.namespace, taken.name, taken.uid, taken.generation) == ("shared", "gpu-8", "t", 3)
    assert taken.fields == ["health", "template"]
    assert made.status.start_time is None

    # From now on the copy counts, whatever becomes of the template.
    job = observe_job(raw_job(made.status, elasticPolicy={"maxReplicas": 2}))
    assert job.awaited is None
    assert job.spec is not None
    assert (job.spec.max_replicas, job.spec.health.preflight) == (2, api.Preflight.NODE)
    assert job.spec.template == TEMPLATE
    after = plan(Seen(job=job, template=found({"health": {"preflight": "Off"}}), now=NOW))
    assert len(after.create) == 2
    assert after.status.template == taken
    assert after.set_replicas == 2

    # The client sees the same spec, and a field of the job can change still.
    changed = raw_job(made.status, elasticPolicy={"maxReplicas": 3})
    assert (spec := Job.parse(changed).spec) is not None
    assert (spec.max_replicas, spec.health.preflight) == (3, api.Preflight.NODE)


@pytest.mark.parametrize(
    ("spec", "template", "reason", "told"),
    [
        pytest.param(
            {},
            taking.describe_missing("gpu-8", ["team", "shared"]),
            "TemplateNotFound",
            "spec.templateRef: no ElasticJobTemplate gpu-8 in namespace team or shared: create it",
            id="missing",
        ),
        pytest.param(
            {},
            taking.describe_missing("gpu-8", ["team", "shared"], ["shared"]),
            "TemplateNotFound",
            "It may not read them in shared: its role needs get elasticjobtemplates.elasticjob.dev",
            id="forbidden",
        ),
        pytest.param(
            {"elasticPolicy": {"minReplicas": 5}},
            found(),
            "InvalidSpec",
            "together with ElasticJobTemplate gpu-8 of namespace shared: spec.elasticPolicy: minReplicas must not be "
            "greater than maxReplicas",
            id="invalid-together",
        ),
        pytest.param({}, found({}), "InvalidSpec", "spec.template: is required", id="no-pod-template"),
        pytest.param({}, found("x"), "InvalidSpec", "spec.template: is required", id="no-object"),
        pytest.param(
            {},
            found({"template": {**TEMPLATE, "metadata": {"annotations": {"a": "x" * bounds.MOST_TEMPLATE_BYTES}}}}),
            "InvalidSpec",
            "ElasticJobTemplate gpu-8 of namespace shared: spec has 16",
            id="too-large",
        ),
    ],
)
def test_a_job_waits_for_what_it_cannot_take(
    spec: dict[str, Any], template: taking.Found | taking.Refusal, reason: str, told: str
) -> None:
    made = act(raw_job(**spec), template)
    assert made.is_idle
    condition = made.status.condition("Degraded")
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", reason)
    assert told in condition.message
    assert made.status.phase is api.Phase.PENDING
    assert [(e.reason, e.warning) for e in made.events] == [(reason, True)]
    assert made.wake_at == NOW + taking.SHORTEST_PAUSE

    # Nothing changes: nothing is written, and it looks less and less often.
    again = act(raw_job(made.status, **spec), template, NOW + 300)
    assert again.status == observe_job(raw_job(made.status, **spec)).status
    assert again.events == ()
    assert again.wake_at == NOW + 300 + 30

    # Once it can, it does, and the condition is over.
    taken = act(raw_job(made.status), found(), NOW + 400)
    assert taken.status.template is not None
    assert not taken.status.is_true("Degraded")
    assert parse_time((taken.status.condition("Degraded") or condition).last_transition_time) == NOW + 400


@pytest.mark.parametrize("where", [{"managedBy": "x/y"}, {"runPolicy": {"managedBy": "x/y"}}])
def test_the_job_of_another_manager_is_left_alone(where: dict[str, Any]) -> None:
    raw = raw_job(**where)
    made = act(raw, found())
    assert (made.reason, made.status) == ("managed by x/y", observe_job(raw).status)


def test_without_a_look_nothing_happens() -> None:
    made = act(raw_job(), None)
    assert (made.status, made.events, made.is_idle) == (api.Status(), (), True)


def test_a_copy_that_cannot_be_read_leaves_the_job_alone() -> None:
    taken = act(raw_job(), found()).status
    raw = raw_job(taken)
    for text in ("[]", "{", "[" * 100_000):
        raw["status"]["template"]["spec"] = text
        job = observe_job(raw)
        assert job.unread == ("template",)
        assert plan(Seen(job=job, template=found(), now=NOW)).is_idle
        assert Job.parse(raw).spec is None


def test_a_job_without_a_template_asks_for_none() -> None:
    assert make_job().awaited is None
    assert observe_job({**raw_job(), "spec": {"template": TEMPLATE}}).awaited is None
    started = {**raw_job(api.Status(start_time="2026-01-01T00:00:00Z"))}
    assert observe_job({**started, "spec": {"templateRef": REF, "template": TEMPLATE}}).spec is not None, "named later"
    done = api.Status(conditions=[api.Condition(type="Complete", status="True")])
    assert observe_job(raw_job(done)).awaited is None


def test_the_fields_in_the_status_are_bounded() -> None:
    labels = {f"l{i}": "x" for i in range(100)}
    spec = {"template": {**TEMPLATE, "metadata": {"labels": labels}}}
    taken = act(raw_job(template={"metadata": {"labels": {"mine": "x"}}}), found(spec)).status.template
    assert taken is not None
    assert len(taken.fields) == taking.MOST_FIELDS
    assert json.loads(taken.spec) == spec


def test_a_spec_is_checked_as_far_as_it_can_be_without_its_template() -> None:
    manifest = build_manifest("n", None, ["torchrun", "train.py"], template="gpu-8")
    assert manifest["spec"] == {
        "templateRef": REF,
        "template": {"spec": {"containers": [{"name": "worker", "command": ["torchrun", "train.py"]}]}},
    }
    client_rules.check_manifest(manifest)
    manifest["spec"] = {"templateRef": REF, "scaling": {"mode": "Goodput"}}
    client_rules.check_manifest(manifest)
    for spec, told in (
        ({"templateRef": {**REF, "kind": "Other"}}, "spec.templateRef.kind"),
        ({"templateRef": {"name": "Not A Name"}}, "spec.templateRef.name"),
        ({"templateRef": REF, "elasticPolicy": {"minReplica": 1}}, "did you mean spec.elasticPolicy.minReplicas?"),
        ({"templateRef": REF, "template": {"spec": {"restartPolicy": "Always"}}}, "spec.restartPolicy must be Never"),
    ):
        with pytest.raises(api.InvalidJobError, match=told.replace("?", r"\?")):
            client_rules.check_manifest({**manifest, "spec": spec})
