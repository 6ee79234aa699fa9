"""What one step of the operator computes without a pause, for the largest objects that a tenant may write.

The steps between two awaits are the pieces of the event loop's time. They are counted in function calls, which depend
on nothing but the code: a hundred thousand of them take about a hundredth of a second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from controller.builders import NOW
from controller.counted_work import count_calls, count_work
from costly_rules import costly_rules
from elasticjob_operator.api import names, podtemplate
from elasticjob_operator.apply import manifests, refusals
from elasticjob_operator.history import faulty_nodes
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.model import own_size
from elasticjob_operator.model.observe import Job, Node, PoolShare, observe_job, observe_pod
from elasticjob_operator.model.quota import Placement
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.plan import NewPod, Plan, Seen, plan
from elasticjob_operator.pool import capacity
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.json_stream import has_too_many_values
from elasticjob_operator.sizing import retreat
from elasticjob_operator.sizing.legal import Sizes

T = TypeVar("T")
MOST_CALLS = 250_000
MOST_AGAIN = 2_000  # to read a job again of which the spec is the same
SETTINGS = manifests.Settings(hub_url="wss://hub:1")
POOLS = (capacity.Pool("gpus", "nvidia.com/gpu"), capacity.Pool("cpus", "cpu"), capacity.Pool("rest", "pods"))
SMALL = {"replicas": 1, "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}}


def with_pod(pod: Mapping[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    containers = [{"name": "w", "image": "x", **container}]
    return {**SMALL, "template": {"spec": {"containers": containers, **(pod or {})}}}


def with_metadata(**metadata: Any) -> dict[str, Any]:
    return {**SMALL, "template": {"metadata": metadata, "spec": {"containers": [{"name": "w", "image": "x"}]}}}


def with_containers(count: int, **more: Any) -> dict[str, Any]:
    return {**SMALL, "template": {"spec": {"containers": [{"name": f"c{n}", **more} for n in range(count)]}}}


def many(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"name": f"n{number}", **more} for number in range(count)]


TERMS = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a"}]}] * podtemplate.MOST_TERMS}
WISHES = [{"weight": 1, "preference": {"matchExpressions": [{"key": "a"}]}}] * 3_000
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": TERMS,
        "preferredDuringSchedulingIgnoredDuringExecution": WISHES,
    }
}
SPECS: Mapping[str, dict[str, Any]] = {
    "variables": with_pod(env=many(9_500)),
    "a long argument": with_pod(args=["x" * 250_000]),
    "arguments": with_pod(args=["a"] * 19_000),
    "arguments like launchers": with_pod(args=["torchrun"] * 19_000),
    "words of a shell": with_pod(command=["sh", "-c", "torchrun $(X) && " * 14_000]),
    "an open quotation": with_pod(command=["sh", "-c", "' " * 100_000]),
    "containers": with_containers(9_000),
    "containers with amounts": with_containers(4_900, resources={"limits": {"cpu": "1"}}),
    "amounts": with_pod(resources={"limits": {f"r{number}": "1.5e3" for number in range(15_000)}}),
    "devices": with_pod(resources={"limits": {f"nvidia.com/mig-{number}": "1" for number in range(9_000)}}),
    "claims": with_pod(resources={"claims": many(9_000)}),
    "labels": with_metadata(labels={f"l{number}": "1" for number in range(19_000)}),
    "annotations": with_metadata(annotations={f"l{number}": "1" for number in range(19_000)}),
    "mounts": with_pod(volumeMounts=many(9_000, mountPath="/x")),
    "volumes": with_pod({"volumes": many(9_000)}),
    "tolerations": with_pod({"tolerations": many(9_000)}),
    "spread": with_pod({"topologySpreadConstraints": many(9_000)}),
    "terms": with_pod({"affinity": AFFINITY}),
    "sizes": with_pod() | {"elasticPolicy": {"maxReplicas": 5_000, "replicaDiscreteValues": list(range(1, 5_001))}},
    "unknown fields": with_pod() | {f"maxReplica{number}": 1 for number in range(4_000)},
    "unknown fields inside": with_pod() | {"elasticPolicy": {f"maxReplica{number}": 1 for number in range(4_000)}},
    "unknown fields of a container": with_containers(1, **{f"{number:05}Pullicy": 1 for number in range(6_000)}),
    "unknown fields of a pod": with_pod({f"{number:05}Names": 1 for number in range(6_000)}),
    "wrong fields": with_pod() | {"network": {"ports": [{}] * 9_000}, "failurePolicy": {"rules": [{}] * 9_000}},
    "settings": with_pod() | {"rendezvous": {"backend": "c10d", "conf": {f"k{n}": "v" for n in range(5_000)}}},
    "requirements": with_pod() | {"requirements": ["x"] * 15_000},
    "rules": with_pod() | {"health": {"rules": costly_rules()}},
    "empty lists": with_pod({"x": [[] for _ in range(19_000)]}),
}
# Numbers count for four characters where a spec is measured.
APPLIED = json.dumps({"spec": {f"replicas{number}": 10_000 for number in range(8_500)}})
METADATA: Mapping[str, dict[str, Any]] = {
    "what was applied": {"annotations": {own_size.LAST_APPLIED: APPLIED}},
    "lists that were applied": {"annotations": {own_size.LAST_APPLIED: json.dumps({"spec": {"x": [[]] * 60_000}})}},
    "own annotations": {"annotations": {f"{names.GROUP}/{number}": "x" for number in range(9_000)}},
    "own labels": {"labels": {f"l{number}": "x" for number in range(25_000)}},
    "managers": {"managedFields": [{"manager": f"m{number}", "operation": "Update"} for number in range(9_000)]},
}


def make_raw(spec: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> str:
    identity = {"name": "j", "namespace": "evil", "uid": "u", "generation": 1, "resourceVersion": "5"}
    return json.dumps({"metadata": {**identity, **(metadata or {})}, "spec": spec})


def list_steps(text: str) -> dict[str, int]:
    """The calls that each step makes with this job."""
    steps: dict[str, int] = {}

    def step(name: str, work: Callable[[], T]) -> T:
        found: list[T] = []
        steps[name] = count_calls(lambda: found.append(work()))
        return found[0]

    job: Job = step("observe_job", lambda: observe_job(json.loads(text)))
    first: Plan = step("the first plan", lambda: plan(Seen(job=job, now=NOW)))
    step("the status", lambda: manifests.status_patch(job, first.status, first.keep))
    spec = job.spec
    if spec is None:
        return steps
    step("find_pool", lambda: capacity.find_pool(POOLS, spec.template))
    step("count_devices", lambda: [capacity.count_devices(spec.template["spec"], pool.resource) for pool in POOLS])
    step("the children", lambda: [manifests.build_child(job, child, Served()) for child in first.ensure])
    new, later = first.create[0], replace(job, status=first.status)
    body = step("build_pod", lambda: manifests.build_pod(job, spec, new, SETTINGS))
    body["metadata"] |= {"uid": "p", "name": "j-worker-0", "resourceVersion": "1"}
    pod = step("observe_pod", lambda: observe_pod(body))
    assert pod is not None
    step("the next plan", lambda: plan(Seen(job=later, pods=(pod,), now=NOW + 5)))
    return steps


@pytest.fixture(scope="module", autouse=True)
def _models_are_built() -> None:
    list_steps(make_raw(with_pod()))
    list_steps(make_raw(with_pod() | {"replicas": "x"}))
    list_steps(make_raw(SPECS["settings"]))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_large_spec_costs_no_long_step(spec: Mapping[str, Any]) -> None:
    steps = list_steps(make_raw(spec))
    assert max(steps.values()) <= MOST_CALLS, steps


def test_a_pod_of_many_containers_costs_no_long_step() -> None:
    """Whoever may create pods makes one that looks like the job's."""
    amounts = {"cpu": "1m", "memory": "1"}
    containers = [{"name": f"c{number}", "resources": {"limits": amounts}} for number in range(15_000)]
    labels = {names.LABEL_JOB: "j", names.LABEL_JOB_UID: "u", names.LABEL_INDEX: "0"}
    raw = {"metadata": {"name": "j-worker-0", "uid": "p", "labels": labels}, "spec": {"containers": containers}}
    assert count_calls(lambda: observe_pod(raw)) <= MOST_CALLS


@pytest.mark.parametrize("amount", ["1", "8E", "nonsense"])
def test_a_pod_of_others_with_many_devices_costs_no_long_step(amount: str) -> None:
    """Whoever may create pods puts one on a node by itself. It takes the node at most."""
    resources = {"limits": {"nvidia.com/gpu": amount, "cpu": amount}}
    resources |= {"requests": resources["limits"]}
    written = {"image": "x", "terminationMessagePath": "/t", "terminationMessagePolicy": "File", "imagePullPolicy": "A"}
    containers = [{"name": f"c{number}", "resources": resources, **written} for number in range(5_000)]
    spec = {"nodeName": "a", "containers": containers}
    assert has_too_many_values(json.dumps({"spec": {**spec, "containers": containers * 2}})), "of more, nothing is read"
    held: capacity.Held = {}
    assert count_calls(lambda: capacity.add_held(held, POOLS, spec)) <= MOST_CALLS
    assert count_calls(lambda: capacity.find_devices(POOLS, spec)) <= MOST_CALLS
    nodes = [Node(name, share=PoolShare("gpus", 8)) for name in ("a", "b")]
    assert capacity.count_capacity(POOLS[0], nodes, held.get("gpus", {})) == (16 if amount == "nonsense" else 8)


@pytest.mark.parametrize("kind", ["Pod", "ConfigMap"])
def test_an_object_of_many_owners_costs_no_long_step(kind: str) -> None:
    """Whoever may create objects names as many owners as fit into one, and each change of it is looked at."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "j", "uid": "u", "controller": True}
    owners = [*({"apiVersion": "v1", "kind": "A", "name": f"a{number}", "uid": "a"} for number in range(14_000)), owner]
    labels = {names.LABEL_JOB: "j", names.LABEL_JOB_UID: "u", names.LABEL_INDEX: "0"}
    name = "j-worker-0" if kind == "Pod" else "j-elasticjob-ca"
    metadata = {"name": name, "namespace": "evil", "uid": "p", "resourceVersion": "7", "labels": labels}
    raw = {"metadata": {**metadata, "ownerReferences": owners}, "spec": {"containers": [{"name": "w"}]}}
    assert not has_too_many_values(json.dumps(raw)), "of more, nothing is read"
    cache = Cache(lambda key: None)
    cache.put_job(json.loads(make_raw(with_pod())))
    assert count_calls(lambda: cache.put_pod(raw) if kind == "Pod" else cache.put_child(kind, raw)) <= MOST_AGAIN


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_pod_has_no_more_containers_than_a_node_runs(kind: str) -> None:
    spec = with_pod()
    spec["template"]["spec"][kind] = [
        {"name": f"c{number}", "image": "x"} for number in range(podtemplate.MOST_CONTAINERS)
    ]
    assert not observe_job(json.loads(make_raw(spec))).problems
    spec["template"]["spec"][kind].append({"name": "more", "image": "x"})
    (problem,) = observe_job(json.loads(make_raw(spec))).problems
    assert f"spec.{kind} has 257 entries; the limit is 256" in str(problem)


def test_a_pod_names_no_more_amounts_than_a_node_has() -> None:
    limits = {f"r{number}": "1" for number in range(256)}
    spec = with_containers(4, resources={"limits": limits})
    assert not observe_job(json.loads(make_raw(spec))).problems
    spec["template"]["spec"]["containers"].append({"name": "more", "resources": {"requests": {"cpu": "1"}}})
    (problem,) = observe_job(json.loads(make_raw(spec))).problems
    assert "its containers name 1025 amounts of resources; the limit is 1024" in str(problem)


def test_a_pod_that_avoids_nodes_is_hardly_larger_than_its_template() -> None:
    """Where they are excluded, each term of the job's own affinity names all of them, and a term has two bytes."""
    most = 512 * 1024  # bytes of JSON, which are written at a stretch, for several pods at a time
    nodes = tuple(f"ip-10-0-{number}-1.eu-central-1.compute.internal" for number in range(2 * faulty_nodes.MOST_NODES))
    rules: dict[str, Any] = {"nodeSelectorTerms": [{}] * 64}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rules}}
    spec = {**with_pod({"affinity": affinity}), "health": {"avoidNodes": "Required"}}
    job = observe_job(json.loads(make_raw(spec)))
    assert job.spec is not None
    assert len(json.dumps(manifests.build_pod(job, job.spec, NewPod(0, nodes), SETTINGS))) <= most
    rules["nodeSelectorTerms"] = [{}] * 65
    (problem,) = observe_job(json.loads(make_raw(spec))).problems
    assert "nodeSelectorTerms has 65 entries; the limit is 64" in str(problem)


def test_many_sizes_of_which_many_fail_cost_no_long_step() -> None:
    """Each pass looks for the largest that does not, several times."""
    sizes = Sizes(1, 5_000, None, tuple(range(1, 5_001)), tuple(range(301 - retreat.MOST_SIZES, 301)))
    assert sizes.legal(300) == 300 - retreat.MOST_SIZES
    assert count_work(lambda: sizes.legal(300)) <= MOST_CALLS
    steps = replace(sizes, values=(), step=1)
    assert steps.legal(300) == 300 - retreat.MOST_SIZES


def test_a_refused_pod_of_many_amounts_costs_no_long_step() -> None:
    """The API server names no field of a wrong quantity, so it is looked for; four pods may be refused at a time."""
    unknown = {"x": {"limits": {f"r{number}": "1.5e3" for number in range(9_000)}}, "y": [{"a": {}}] * 4_000}
    job = observe_job(json.loads(make_raw(with_pod(unknown | {"volumes": [{"emptyDir": {"sizeLimit": "z"}}]}))))
    assert job.spec is not None
    pod = manifests.build_pod(job, job.spec, NewPod(0), SETTINGS)
    refused, named = ApiError(400, "BadRequest", "quantities must match the regular expression"), list[ApiError]()
    assert count_calls(lambda: named.append(refusals.name_pod(refused, pod))) <= MOST_CALLS // 4
    assert "quantities must match" in named[0].message


def test_many_tolerations_of_a_queue_cost_no_long_step() -> None:
    """Whoever may write Workloads can write them there."""
    compared = 0

    class Toleration(dict[str, Any]):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = None

    given = tuple(Toleration(key=f"k{number}", operator="Exists") for number in range(500))
    theirs = [*map(dict, given[:100]), *({"key": f"t{number}", "operator": "Exists"} for number in range(6_000))]
    job = observe_job(json.loads(make_raw(with_pod({"tolerations": theirs}))))
    assert job.spec is not None
    spec, new, pods = job.spec, NewPod(0, (), Placement({}, {}, {}, given)), list[manifests.Object]()
    assert count_calls(lambda: pods.append(manifests.build_pod(job, spec, new, SETTINGS))) <= MOST_CALLS
    assert compared <= MOST_CALLS
    assert pods[0]["spec"]["tolerations"] == [*theirs, *given[100:]]


def test_what_has_been_checked_is_not_checked_at_each_change() -> None:
    """The operator reads a job again for each status that it writes."""
    first = json.loads(make_raw(with_pod() | {"health": {"rules": costly_rules("first")}}))
    assert not observe_job(json.loads(make_raw(SPECS["rules"]))).problems
    once = count_calls(lambda: observe_job(first))
    again = count_calls(lambda: observe_job(first))
    assert again * 5 < once


def list_valid() -> dict[str, dict[str, Any]]:
    return {name: spec for name, spec in SPECS.items() if observe_job(json.loads(make_raw(spec))).spec is not None}


@pytest.mark.parametrize("name", list_valid())
def test_a_spec_that_stays_is_read_once(name: str) -> None:
    """The operator writes a status in most passes, and a tenant changes the labels of sixty jobs at once."""
    cache, text = Cache(lambda key: None), make_raw(SPECS[name], METADATA["what was applied"])
    asyncio.run(cache.know_jobs())
    cache.put_job(json.loads(text))
    known = cache.jobs["evil", "j"][0].spec
    assert known is not None
    known.template_hash, known.shape  # noqa: B018 - what a pass asks for
    later = json.loads(text)
    later["metadata"] |= {"resourceVersion": "6", "labels": {names.LABEL_QUEUE: "y"}}
    later["status"] = {"replicas": 1, "observedGeneration": 1}
    assert count_calls(lambda: cache.put_job(later)) <= MOST_AGAIN
    job = cache.jobs["evil", "j"][0]
    assert job.labels and job.status.replicas == 1
    assert job.spec is not None
    assert count_calls(lambda: (job.spec.template_hash, job.spec.shape)) <= 10  # type: ignore[union-attr]


def test_what_was_applied_is_read() -> None:
    job = observe_job(json.loads(make_raw(with_pod(), METADATA["what was applied"])))
    assert [one.reason for one in job.notices] == ["FieldDropped"]
    assert "replicas0: did you mean spec.replicas?" in job.notices[0].message
    assert job.notices[0].message.endswith("; and 8495 more")


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA.keys())
def test_large_metadata_cost_no_long_step(metadata: Mapping[str, Any]) -> None:
    steps = list_steps(make_raw(SPECS["variables"], metadata))
    assert max(steps.values()) <= MOST_CALLS, steps
