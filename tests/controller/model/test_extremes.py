"""Every field that a tenant or a pod can write, with each of its extremes: a status comes of it, and no exception."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from chaos import extremes
from controller.builders import NOW, TEMPLATE, make_agent, make_job, make_pod, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.api.crd import build_crd, structural_schema
from elasticjob_operator.apply import manifests
from elasticjob_operator.apply.manifests import affinity
from elasticjob_operator.apply.manifests.gangs import build_group
from elasticjob_operator.hub import frames
from elasticjob_operator.model.observe import observe_job, observe_node, observe_pod
from elasticjob_operator.model.quota import Placement
from elasticjob_operator.plan.plan import Seen, plan
from elasticjob_operator.pool.capacity import Pool, add_rates, find_pool, parse_rate

SPEC = {"replicas": 1, "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}, "template": TEMPLATE}
FIELDS = [*extremes.list_fields(structural_schema(api.Spec)), *extremes.TEMPLATE]
POOLS = (Pool("gpus", "nvidia.com/gpu"), Pool("cpus", "cpu"))
PRICED = add_rates(POOLS, [parse_rate("gpus=2,zone=a"), parse_rate("cpus=1,zone=a"), parse_rate("cpus=2,zone=b")])
HUB = "wss://hub:1"
# As operators are set up, by the schedulers of gangs: a template is extended in each of these ways.
SETTINGS = {
    "kubernetes": manifests.Settings(HUB, tls=True, runtime_image="runtime:1", is_traced=True, pools=PRICED),
    "volcano": manifests.Settings(HUB, runtime_image="runtime:1", is_runtime_volume=True),
    "kai": manifests.Settings(HUB),
    "scheduler-plugins": manifests.Settings(HUB, tls=True),
}
PLACED = Placement({"a": "b"}, {"c": "d"}, {"zone": "a"}, ({"key": "spot"},), ("gate",))


def check(spec: Any, told: str, **metadata: Any) -> None:
    """One pass over a job with this spec: what would be written can be written."""
    identity = {"name": "j", "namespace": "evil", "uid": "u", "generation": 1}
    job = observe_job({"metadata": {**identity, **metadata}, "spec": spec})
    made = plan(Seen(job=job, now=NOW))
    assert find_refused(made.status.dump()) == [], told
    if job.spec is not None:
        find_pool(POOLS, job.spec.template)
        for new in made.create[:1]:
            affinity.avoid({**job.spec.template["spec"]}, ("node-1",), is_required=True)
            for flavour, settings in SETTINGS.items():
                build_group(job.spec, flavour)
                extended = replace(new, avoid=("node-1",), placement=PLACED, gang=flavour)
                pod = manifests.build_pod(job, job.spec, extended, settings)
                assert find_unwritable(pod["metadata"]) == [], told


STATUS = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]


def find_refused(value: Any, schema: Mapping[str, Any] = STATUS, path: str = "status") -> list[str]:
    """What the API server refuses of a status, by its schema."""
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        found = [find_refused(one, inner[name], f"{path}.{name}") for name, one in value.items() if name in inner]
        return [text for texts in found for text in texts]
    if isinstance(value, list):
        found = [find_refused(one, schema["items"], f"{path}[]") for one in value]
        long = [f"{path}: {len(value)} items"] if len(value) > schema["maxItems"] else []
        return [*long, *(text for texts in found for text in texts)]
    if isinstance(value, str):
        most = schema.get("maxLength", len(value))
        return [f"{path}: {len(value)} characters"] if len(value) > most else []
    if isinstance(value, bool) or value is None:
        return []
    if schema["type"] == "number":
        return [] if math.isfinite(value) else [f"{path}: {value}"]
    is_inside = isinstance(value, int) and schema["minimum"] <= value <= schema["maximum"]
    return [] if is_inside else [f"{path}: {value}"]


def find_unwritable(value: Any, path: str = "") -> list[str]:
    """Numbers that the API server cannot store, and long texts."""
    if isinstance(value, dict):
        return [found for name, inner in value.items() for found in find_unwritable(inner, f"{path}.{name}")]
    if isinstance(value, list):
        return [found for inner in value for found in find_unwritable(inner, f"{path}[]")]
    if isinstance(value, int):
        return [] if -(2**63) <= value < 2**63 else [f"{path}: a number of {value.bit_length()} bits"]
    if isinstance(value, float):
        return [] if math.isfinite(value) else [f"{path}: {value}"]
    return [] if len(value or "") <= 300_000 else [f"{path}: {len(value)} characters"]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: extremes.spell(field.path))
def test_a_field_of_a_spec(field: extremes.Field) -> None:
    for told, spec in extremes.each(SPEC, [field]):
        check(spec, told)


def test_two_fields_of_a_spec() -> None:
    dice = random.Random(5)
    for _ in range(500):
        told, spec = extremes.draw(dice, SPEC, FIELDS, 2)
        check(spec, told)


@pytest.mark.parametrize("name", extremes.METADATA)
def test_an_annotation_or_a_label_of_a_job(name: str) -> None:
    for text in extremes.TEXTS:
        pooled = {**SPEC, "scaling": {"mode": "Goodput"}}
        check(pooled, name, annotations={name: text}, labels={name: text})


@pytest.mark.parametrize("name", extremes.METADATA)
def test_an_annotation_or_a_label_of_a_pod(name: str) -> None:
    labels = {names.LABEL_JOB: "j", names.LABEL_JOB_UID: "u", names.LABEL_INDEX: "0"}
    job = make_job(make_spec(1, 1), status=api.Status(rendezvous=make_world(1), start_time="2026-01-01T00:00:00Z"))
    for text in extremes.TEXTS:
        metadata = {"name": "p", "uid": "u0", "labels": {**labels, name: text}, "annotations": {name: text}}
        pod = observe_pod({"metadata": metadata, "spec": {}, "status": {}})
        assert pod is None or 0 <= pod.index < 10**9
        made = plan(Seen(job=job, pods=(pod,) if pod is not None else (), now=NOW))
        assert find_refused(made.status.dump()) == [], text[:40]


@pytest.mark.parametrize("name", extremes.METADATA)
def test_an_annotation_or_a_label_of_a_node(name: str) -> None:
    for text in extremes.TEXTS:
        node = observe_node({"metadata": {"name": "n", "labels": {name: text}, "annotations": {name: text}}})
        assert node.name == "n"


def encode(message: Any) -> str:
    return json.dumps(message)  # with NaN and Infinity, as an agent in Python would


@pytest.mark.parametrize(
    ("fields", "message"), [m[1:] for m in extremes.MESSAGES], ids=[m[0] for m in extremes.MESSAGES]
)
def test_a_field_of_an_agents_message(fields: list[extremes.Field], message: Any) -> None:
    job = make_job(make_spec(1, 1), status=api.Status(rendezvous=make_world(1), start_time="2026-01-01T00:00:00Z"))
    agent = make_agent(0, "running", 1)
    assert len(fields) > 4
    taken = 0
    for told, text in extremes.each(message, fields):
        found = frames.decode(encode(text))
        if isinstance(found, frames.Problem):
            assert len(found.message) <= 1024, told
            continue
        taken += 1
        said = replace(agent, progress=found) if isinstance(found, wire.Progress) else agent
        if isinstance(found, (wire.State, wire.Hello)):
            said = replace(agent, state=found.state)
        made = plan(Seen(job=job, pods=(make_pod(0),), agents={"u0": said}, now=NOW))
        assert find_refused(made.status.dump()) == [], told
    assert taken > len(fields), "most fields have extremes that are allowed"
