"""What is read of an object of too many values: enough to know what it holds, and that it is not what it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticjob_operator.api import names
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.reduced_jobs import reduce_line
from elasticjob_operator.pool import capacity
from elasticjob_operator.rest.json_stream import LARGE_BYTES, MOST_VALUES, TOO_MANY, WHY, Lines, outline, outline_event

GPU = "nvidia.com/gpu"
POOLS = (capacity.Pool("default", GPU),)
LABELS = {f"l{number:05}": "" for number in range(MOST_VALUES)}
IDENTITY = {"name": "p", "generateName": "p-", "namespace": "t", "uid": "u", "resourceVersion": "7"}
SPEC = {
    "containers": [{"name": "c", "resources": {"limits": {GPU: "8"}}}],
    "nodeName": "n",
    "nodeSelector": {"status": "x", "metadata": '},"spec":{'},
}
STATUS = {"phase": "Running"}


def write(value: Any) -> str:
    """As the API server does."""
    return json.dumps(value, separators=(",", ":"))


def make_pod(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {**IDENTITY, **metadata}, "spec": SPEC, "status": STATUS}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"labels": LABELS}, id="labels"),
        pytest.param({"deletionTimestamp": "2026-01-01T00:00:00Z", "labels": LABELS}, id="labels while it is deleted"),
        pytest.param({"finalizers": [f"x/{n}" for n in range(MOST_VALUES)]}, id="finalizers"),
        pytest.param(
            {"annotations": {"a": '},"spec":{"nodeName":"other"}'}, "ownerReferences": [{}]}, id="an annotation"
        ),
    ],
)
@pytest.mark.parametrize("left_out", [(), ("status",), ("spec", "status")])
def test_an_outline_has_all_but_what_may_have_any_size(more: dict[str, Any], left_out: tuple[str, ...]) -> None:
    raw = {name: value for name, value in make_pod(**more).items() if name not in left_out}
    small = {
        k: v for k, v in raw["metadata"].items() if k not in ("labels", "finalizers", "annotations", "ownerReferences")
    }
    expected = {**raw, "metadata": small}
    assert outline(write(raw)) == expected
    for kind in ("ADDED", "MODIFIED", "DELETED"):
        line = outline_event(write({"type": kind, "object": raw}))
        assert line is not None and json.loads(line) == {"type": kind, "object": expected, WHY: TOO_MANY}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        write({"metadata": {}}),
        write({"metadata": {"labels": {}, "name": "p"}}),
        write({"metadata": {"annotations": {}, "labels": {}, **IDENTITY}}),
        write({"metadata": {"name": "p", "labels": {}}}),
        '{"metadata":{"name":"p","uid":"u","resourceVersion":"1","labels":{}},"spec":{"a":',
    ],
)
def test_of_anything_else_there_is_none(text: str) -> None:
    assert outline(text) is None
    assert outline_event('{"type":"BOOKMARK","object":' + text + "}") is None


def test_of_a_spec_of_too_many_values_nothing_is_read() -> None:
    raw = {**make_pod(labels={"a": "b"}), "spec": {"containers": [{}] * MOST_VALUES}}
    assert outline(write(raw)) == {"metadata": IDENTITY, "status": STATUS}


async def test_a_pod_that_became_unreadable_holds_its_devices_until_it_has_ended() -> None:
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "j", "uid": "ju", "controller": True}
    ours = {
        names.LABEL_JOB: "j",
        names.LABEL_JOB_UID: "ju",
        names.LABEL_INDEX: "0",
        names.LABEL_APP: names.LABEL_APP_VALUE,
    }
    cache = Cache(lambda key: None, find_devices=lambda spec: capacity.find_devices(POOLS, spec))
    told: list[tuple[int, int]] = []
    for version, (labels, status) in enumerate(
        ((ours, STATUS), (ours | LABELS, STATUS), (ours, STATUS), (ours | LABELS, {"phase": "Failed"})), 10
    ):
        raw = make_pod(
            name=names.pod_name("j", 0), resourceVersion=str(version), labels=labels, ownerReferences=[owner]
        )
        line = write({"type": "MODIFIED", "object": raw | {"status": status}}).encode() + b"\n"
        (event,) = [event async for event in Lines(2**24, outline_event).feed(line)]
        assert isinstance(event, dict)
        cache.apply_pod(event["type"], event["object"])
        assert all(capacity.count_held(pod, GPU) == 8 for pod in cache.pods(("t", "j")))
        assert all(capacity.count_held(stranger, GPU) == 8 for stranger in cache.strangers())
        told.append((len(cache.pods(("t", "j"))), len(cache.strangers())))
    assert told == [(1, 0), (0, 1), (1, 0), (0, 0)]


def test_the_outline_of_a_job_is_another_one() -> None:
    """The members of its metadata are sorted, so that its name comes last."""
    raw = {"apiVersion": "x", "metadata": dict(sorted({**IDENTITY, "labels": {"a": "b"}}.items())), "spec": {}}
    assert outline(write(raw)) is None
    assert len(write(LABELS)) > LARGE_BYTES and reduce_line(write({"type": "ADDED", "object": raw})) is not None
