"""The CEL rules of the CRD, evaluated by a CEL engine: they reject what the validators reject, with the
same messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import celpy
import pytest
import yaml
from celpy.adapter import json_to_cel
from hypothesis import given
from hypothesis import strategies as st

from controller.api.test_api import BAD_ACROSS_FIELDS, BAD_CHANGES, BAD_HANDOVERS, BAD_TEMPLATES, GOOD_CHANGES
from controller.builders import TEMPLATE
from elasticjob_operator import api
from elasticjob_operator.api import crd
from examples import tries
from operator_fixture import ROOT

CRD = yaml.safe_load((ROOT / "crds/elasticjob.dev_elasticjobs.yaml").read_text())
OF_JOB = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SCHEMA = OF_JOB["properties"]["spec"]
OF_TEMPLATE = crd.build_template_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
EXAMPLES = sorted((ROOT / "manifests/examples").glob("*.yaml"))


@pytest.fixture(autouse=True, scope="module")
def recursion_limit() -> None:
    """The engine raises it when it is first used: not between two examples, of which Hypothesis would complain."""
    celpy.Environment()


@cache
def compile_rule(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


def find_violations(schema: dict[str, Any], value: Any, old: Any = None) -> Iterator[str]:
    """The messages of the rules that this value, or this change of the whole, breaks."""
    rules = schema.get("x-kubernetes-validations", ())
    known = {"self": json_to_cel(value)} if rules else {}
    known |= {"oldSelf": json_to_cel(old)} if rules and old is not None else {}
    for validation in rules:
        if old is None and "oldSelf" in validation["rule"]:
            continue  # as the API server does where an object is made
        if not compile_rule(validation["rule"]).evaluate(known):
            yield validation["message"]
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from find_violations(inner, value[name])
    if isinstance(value, list):
        for item in value:
            yield from find_violations(schema.get("items", {}), item)


def count_rules(schema: Any) -> int:
    if isinstance(schema, dict):
        return len(schema.get("x-kubernetes-validations", ())) + sum(count_rules(v) for v in schema.values())
    return sum(count_rules(v) for v in schema) if isinstance(schema, list) else 0


@pytest.mark.parametrize(("spec", "field", "message"), BAD_ACROSS_FIELDS)
def test_the_rules_refuse_what_the_validators_refuse(spec: dict[str, Any], field: str, message: str) -> None:
    assert list(find_violations(OF_JOB, {"spec": spec})) == [message]


@pytest.mark.parametrize("bounds", [{"maxReplicas": 2}, {"minReplicas": 6, "maxReplicas": 8}])
def test_a_number_that_the_operator_wrote_is_no_reason_to_refuse_other_bounds(bounds: dict[str, int]) -> None:
    job = {"spec": {"replicas": 4, "elasticPolicy": bounds, "template": TEMPLATE}}
    assert list(find_violations(OF_JOB, {**job, "status": {"writtenReplicas": 4}})) == []
    assert len(list(find_violations(OF_JOB, {**job, "status": {"writtenReplicas": 3}}))) == 1
    assert len(list(find_violations(OF_JOB, {**job, "status": {}}))) == 1


def test_every_rule_has_a_bad_example() -> None:
    seen = {message for case in BAD_ACROSS_FIELDS for message in find_violations(OF_JOB, {"spec": case.values[0]})}
    seen |= {
        message
        for case in (*BAD_CHANGES, *BAD_HANDOVERS, *BAD_TEMPLATES)
        for message in find_violations(SCHEMA, case.values[1], case.values[0])
    }
    seen |= set(find_violations(SCHEMA, {}))  # the validators say it by the name of the field
    assert len(seen) == count_rules(OF_JOB)


@pytest.mark.parametrize(("before", "after", "field"), BAD_CHANGES)
def test_what_cannot_change_while_the_job_runs(before: dict[str, Any], after: dict[str, Any], field: str) -> None:
    refused = f"{field} cannot change while the job runs: suspend it (runPolicy.suspend), change the field, resume it"
    assert list(find_violations(SCHEMA, after, before)) == [refused]
    paused = {"runPolicy": {"suspend": True}}
    assert list(find_violations(SCHEMA, {**after, **paused}, before)) == []
    assert list(find_violations(SCHEMA, after, {**before, **paused})) == []
    assert list(find_violations(SCHEMA, after, {**before, "runPolicy": {"suspend": False}})) == [refused]


@pytest.mark.parametrize(("before", "after"), BAD_HANDOVERS)
def test_a_job_keeps_its_manager(before: dict[str, Any], after: dict[str, Any]) -> None:
    refused = "managedBy cannot change: delete the job, and create it with the other value"
    assert list(find_violations(SCHEMA, after, before)) == [refused]


@pytest.mark.parametrize(("before", "after"), BAD_TEMPLATES)
def test_a_job_keeps_its_template(before: dict[str, Any], after: dict[str, Any]) -> None:
    refused = "templateRef cannot change: delete the job, and create it with the other template"
    assert list(find_violations(SCHEMA, after, before)) == [refused]


def test_a_template_is_required_or_named() -> None:
    required = (
        "template is required: set a pod template, or name an ElasticJobTemplate in templateRef; "
        "`kubectl elasticjob convert` makes it from a job of another operator"
    )
    assert list(find_violations(SCHEMA, {})) == [required]
    of_another = {"pytorchReplicaSpecs": {"Worker": {"template": TEMPLATE}}}
    assert list(find_violations(SCHEMA, of_another)) == [required]
    goodput = {"templateRef": {"name": "t"}, "scaling": {"mode": "Goodput"}}
    assert list(find_violations(SCHEMA, goodput)) == [], "the template may have maxReplicas"


@pytest.mark.parametrize("spec", [{"elasticPolicy": {"minReplicas": 3, "maxReplicas": 2}}])
def test_the_rules_of_the_parts_hold_for_templates_too(spec: dict[str, Any]) -> None:
    assert list(find_violations(OF_TEMPLATE, spec)) == list(find_violations(SCHEMA, {"template": TEMPLATE, **spec}))
    assert len(list(find_violations(OF_TEMPLATE, spec))) == 1
    assert list(find_violations(OF_TEMPLATE, {"scaling": {"mode": "Goodput"}})) == []


@pytest.mark.parametrize(("before", "after"), GOOD_CHANGES)
def test_what_may_change_while_the_job_runs(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert list(find_violations(SCHEMA, after, before)) == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_break_no_rule(file: Any) -> None:
    jobs = [doc for doc in yaml.safe_load_all(file.read_text()) if doc and doc["kind"] == "ElasticJob"]
    assert [list(find_violations(SCHEMA, job["spec"])) for job in jobs] == [[]] * len(jobs)


counts = st.integers(min_value=1, max_value=6)
policies = st.fixed_dictionaries(
    {},
    optional={
        "minReplicas": counts,
        "maxReplicas": counts,
        "replicaIncrementStep": counts,
        "replicaDiscreteValues": st.lists(counts, min_size=1, max_size=3, unique=True),
        "mesh": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from(["dp", "tp", "pp"])}, optional={"size": counts}),
            min_size=1,
            max_size=3,
        ),
    },
)
specs = st.fixed_dictionaries(
    {"template": st.just(TEMPLATE)},
    optional={
        "replicas": counts,
        "elasticPolicy": policies,
        "rendezvous": st.fixed_dictionaries(
            {"backend": st.sampled_from(["operator", "c10d", "etcd-v2"])},
            optional={"endpoint": st.just("host:2379")},
        ),
    },
)


@tries(few=100, many=300)
@given(specs)
def test_rules_and_validators_agree(spec: dict[str, Any]) -> None:
    """What the rules refuse the validators refuse for the same reasons."""
    broken = set(find_violations(OF_JOB, {"spec": spec}))
    try:
        api.parse_spec(spec)
        problems: set[str] = set()
    except api.InvalidJobError as error:
        problems = {problem.message for problem in error.problems}
    assert bool(problems) == bool(broken)
    assert problems <= broken, "the validators of an object do not run while something in it is wrong"
