"""Any content of one object becomes a condition of that object, and nothing raises."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.builders import NOW, TEMPLATE, make_pod
from elasticjob_operator import api
from elasticjob_operator.api import bounds, names
from elasticjob_operator.apply import manifests
from elasticjob_operator.model import observe
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan.plan import NewPod, Seen, plan

METADATA: dict[str, Any] = {"name": "digits", "namespace": "default", "uid": "j1", "generation": 4}
STARTED = {"startTime": "2026-01-01T00:00:00Z", "observedGeneration": 4}
WORLD = {
    "generation": 7,
    "worldSize": 1,
    "processes": 1,
    "members": [{"pod": "digits-worker-0", "uid": "u0", "node": "node0", "rank": 0}],
    "store": {"address": "10.0.0.1", "port": 4321},
}


def read(spec: Any = None, status: Any = None, limits: bounds.Limits = bounds.Limits(), **metadata: Any) -> Job:
    raw = {"metadata": METADATA | metadata, "spec": {"template": TEMPLATE} if spec is None else spec}
    return observe.observe_job(raw | ({} if status is None else {"status": status}), limits)


def make_spec(**fields: Any) -> dict[str, Any]:
    return {"template": copy.deepcopy(TEMPLATE), **fields}


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def condition(job: Job, type: str, **seen: Any) -> tuple[str, str, str] | None:
    made = plan(Seen(job=job, now=NOW, **seen))
    found = made.status.condition(type)
    return (found.status, found.reason, found.message) if found else None


# --- size ------------------------------------------------------------------------------------------------


def put_in_template(value: Any) -> dict[str, Any]:
    spec = make_spec()
    spec["template"]["spec"]["x"] = value
    return spec


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param(
            put_in_template(nested(600)),
            "spec.template: is nested 602 levels deep; the limit is 64: flatten it",
            id="deep-template",
        ),
        pytest.param(
            put_in_template(nested(9000)),
            "spec.template: is nested 9002 levels deep; the limit is 64: flatten it",
            id="as-deep-as-the-server-takes",
        ),
        pytest.param(
            make_spec(x=nested(600)), "spec: is nested 601 levels deep; the limit is 64: flatten it", id="deep-spec"
        ),
        pytest.param(
            put_in_template([0] * 700_000),
            "spec.template: has more than 20000 values: remove what is not needed",
            id="many-values",
        ),
        pytest.param(
            put_in_template("x" * 1_300_000),
            "spec.template: has 1300096 bytes; the limit is 262144: move large texts into a ConfigMap, or ask "
            "the administrator to raise the limit (--max-template-bytes)",
            id="big-template",
        ),
        pytest.param(
            make_spec(rendezvous={"conf": {"a": "x" * 70_000}}),
            "spec: has 70035 bytes; the limit is 65536: shorten its texts and lists",
            id="big-spec",
        ),
        pytest.param(
            make_spec(replicas=6000),
            "spec.replicas: asks for 6000 pods; one job may have at most 5000: lower it, or ask the "
            "administrator to raise the limit (--max-replicas-per-job)",
            id="many-replicas",
        ),
        pytest.param(
            make_spec(elasticPolicy={"maxReplicas": 5000, "spares": 1}),
            "spec.elasticPolicy.maxReplicas: asks for 5000 pods and 1 spares; one job may have at most 5000: lower it, "
            "or ask the administrator to raise the limit (--max-replicas-per-job)",
            id="many-by-default",
        ),
        pytest.param(
            make_spec(replicas=1, scaling={"mode": "Goodput"}, elasticPolicy={"maxReplicas": 6000}),
            "spec.elasticPolicy.maxReplicas: asks for 6000 pods; one job may have at most 5000: lower it, "
            "or ask the administrator to raise the limit (--max-replicas-per-job)",
            id="as-many-as-the-pool-gives",
        ),
    ],
)
def test_what_is_too_much_is_that_jobs_condition(spec: dict[str, Any], told: str) -> None:
    assert condition(read(spec), "Failed") == ("True", "InvalidSpec", told)


def test_limits_are_settings() -> None:
    assert read(make_spec(replicas=6000), limits=bounds.Limits(replicas=6000)).spec is not None
    big = put_in_template("x" * 1_300_000)
    assert read(big, limits=bounds.Limits(template_bytes=2_000_000)).spec is not None


@pytest.mark.parametrize("replicas", [0, 1000], ids=["below the bounds", "above the bounds"])
def test_no_size_carries_a_weight_past_the_cap(replicas: int) -> None:
    """A job whose size somebody has written out of its bounds goes on with the nearest one."""
    spec = make_spec(scaling={"mode": "Goodput", "weight": 1000}, elasticPolicy={"maxReplicas": 4}, replicas=replicas)
    job = read(spec)
    assert job.spec is not None and job.problems
    assert job.spec.scaling.weight == 1


def test_no_number_of_pods_carries_a_weight_past_the_cap() -> None:
    """A job that runs goes on with as many pods as a limit allows that came later."""
    spec = make_spec(scaling={"mode": "Goodput", "weight": 1000}, elasticPolicy={"maxReplicas": 4})
    job = read(spec, STARTED, bounds.Limits(replicas=3))
    assert job.spec is not None and job.problems
    assert job.spec.scaling.weight == 1


def test_the_administrator_caps_weights() -> None:
    """Otherwise whoever writes the largest has the pool."""
    spec = make_spec(scaling={"mode": "Goodput", "weight": 1000}, elasticPolicy={"maxReplicas": 4})
    capped, allowed = read(spec), read(spec, limits=bounds.Limits(weight=1000))
    assert capped.spec is not None and allowed.spec is not None
    assert (capped.spec.scaling.weight, allowed.spec.scaling.weight) == (1, 1000)
    assert [(notice.reason, notice.message) for notice in capped.notices] == [
        (
            "WeightCapped",
            "spec.scaling.weight is 1000, and counts as 1: the administrator allows no more (--max-pool-weight)",
        )
    ]
    assert not allowed.notices


@pytest.mark.parametrize("wrap", [lambda value: [1, value], lambda value: {"a": "b", "c": value}], ids=["list", "map"])
def test_how_deep_a_field_may_be(wrap: Callable[[Any], Any]) -> None:
    value: Any = "x"
    for depth in range(1, 4 * bounds.MOST_DEPTH):
        value = wrap(value)
        assert bounds.is_too_deep(value) == (depth > bounds.MOST_DEPTH) == (bounds.measure(value).depth > 64)


def test_a_job_that_trains_goes_on_with_as_many_pods_as_it_may_have() -> None:
    job = read(make_spec(replicas=6000, elasticPolicy={"maxReplicas": 9000, "spares": 10}), STARTED)
    assert job.spec is not None
    assert job.spec.wanted == 4990
    assert job.problems_text.startswith(
        "spec.replicas: asks for 6000 pods and 10 spares; one job may have at most 5000"
    )


def test_no_limit_on_a_bound_that_nobody_asks_for() -> None:
    assert read(make_spec(replicas=4, elasticPolicy={"maxReplicas": 100_000})).problems == ()


def test_the_template_is_hashed_once_and_never_copied() -> None:
    template = copy.deepcopy(TEMPLATE)
    job = read({"template": template})
    assert job.spec is not None
    assert job.spec.template["spec"]["containers"][0]["command"] is template["spec"]["containers"][0]["command"]
    assert job.spec.template_hash is job.spec.template_hash
    before = json.dumps(template)
    manifests.build_pod(job, job.spec, NewPod(0), manifests.Settings(hub_url="ws://hub"))
    assert json.dumps(template) == before


# --- fields that are not known ---------------------------------------------------------------------------


def test_unknown_fields_are_told_and_ignored() -> None:
    job = read(make_spec(foo=1, elasticPolicy={"minReplica": 2}, failurePolicy={"rules": [RULE | {"why": "x"}]}))
    assert job.spec is not None
    assert condition(job, "Warning") == (
        "True",
        "UnknownField",
        "spec.foo is unknown to this version and ignored: check the spelling, or remove it; "
        "spec.elasticPolicy.minReplica is unknown to this version and ignored: did you mean "
        "spec.elasticPolicy.minReplicas?; spec.failurePolicy.rules[0].why is unknown to this version and ignored: "
        "check the spelling, or remove it",
    )


RULE = {"action": "Restart", "onExitCodes": {"operator": "In", "values": [3]}}


def test_a_warning_is_told_once_and_taken_back() -> None:
    made = plan(Seen(job=read(make_spec(foo=1)), now=NOW))
    assert [e.reason for e in made.events if e.warning] == ["UnknownField"]
    again = plan(Seen(job=read(make_spec(foo=1), made.status.dump()), now=NOW + 1))
    assert [e for e in again.events if e.warning] == []
    mended = plan(Seen(job=read(make_spec(), made.status.dump()), now=NOW + 2)).status.condition("Warning")
    assert mended is not None
    assert (mended.status, mended.reason) == ("False", "NothingToTell")


def test_what_the_api_server_dropped_is_told_from_what_kubectl_applied() -> None:
    applied = {"spec": make_spec(replica=3)}
    job = read(annotations={"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)})
    message = "the API server dropped unknown fields: spec.replica: did you mean spec.replicas?"
    assert condition(job, "Warning") == ("True", "FieldDropped", message)
    stored = read(
        make_spec(replica=3), annotations={"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)}
    )
    assert [n.reason for n in stored.notices] == ["UnknownField"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"spec": 1}', "[" * 200_000, 5, None])
def test_an_annotation_that_is_not_kubectls(text: Any) -> None:
    assert read(annotations={"kubectl.kubernetes.io/last-applied-configuration": text}).notices == ()


@pytest.mark.parametrize("inside", ["[]", "{}"])
def test_what_kubectl_applied_is_not_read_if_it_has_very_many_values(
    inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """250 kB of empty lists take 50 ms, at each version of a job."""
    text = json.dumps({"spec": make_spec(replica=3)})[:-2] + f', "x": [{",".join([inside] * 80_000)}]}}}}'
    assert json.loads(text)["spec"]["replica"] == 3
    decoded: list[str] = []
    monkeypatch.setattr(json, "loads", decoded.append)
    assert read(annotations={"kubectl.kubernetes.io/last-applied-configuration": text}).notices == ()
    assert decoded == []


def test_gpu_without_gpus_is_told() -> None:
    found = condition(read(make_spec(nprocPerNode="gpu")), "Warning")
    assert found is not None
    assert found[1] == "NoDevices"
    with_gpus = copy.deepcopy(TEMPLATE)
    with_gpus["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 2}}
    assert read({"template": with_gpus, "nprocPerNode": "gpu"}).notices == ()


def test_a_launcher_that_starts_no_agent_is_told_before_anything_waits() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0] |= {"command": ["accelerate", "launch"], "args": ["train.py"]}
    found = condition(read(make_spec(template=template)), "Warning")
    assert found is not None
    assert found[1] == "ForeignLauncher"
    native = make_spec(template=template, rendezvous={"backend": "c10d", "endpoint": "a:1"})
    assert read(native).notices == ()


# --- status ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [("phase", "Dreaming"), ("progress", {"step": "x"}), ("nodeFaults", [1]), ("goodput", 5), ("replicas", [])],
)
def test_what_only_describes_falls_back_and_is_told(field: str, value: Any) -> None:
    job = read(status={**STARTED, "rendezvous": WORLD, field: value})
    assert job.unread == ()
    assert job.status.rendezvous.generation == 7
    assert [n.reason for n in job.notices] == ["StatusNotUnderstood"]
    assert f"status.{field}: " in job.notices[0].message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rendezvous", {**WORLD, "generation": "seven"}),
        ("rendezvous", {**WORLD, "members": [{"pod": "digits-worker-0"}]}),
        ("restarts", 5),
        ("startTime", 5),
        ("inForce", {"nprocPerNode": "x"}),
        ("rendezvous", nested(100)),
    ],
)
def test_a_world_is_left_alone_where_what_decides_cannot_be_understood(field: str, value: Any) -> None:
    status = {**STARTED, "rendezvous": WORLD, field: value}
    job = read(status=status)
    made = plan(Seen(job=job, pods=(make_pod(0),), now=NOW))
    assert (made.create, made.delete, made.ensure, made.directives) == ((), (), (), {})
    found = made.status.condition("Degraded")
    assert found is not None
    assert found.reason == "StatusNotUnderstood"
    assert f"status.{field} cannot be parsed" in found.message
    assert field not in manifests.status_patch(job, made.status, made.keep), "what another version wrote stays"


def test_suspending_is_the_way_out() -> None:
    status = {**STARTED, "rendezvous": {**WORLD, "generation": "seven"}}
    asked = make_spec(runPolicy={"suspend": True})
    job = read(asked, status)
    made = plan(Seen(job=job, pods=(make_pod(0),), now=NOW))
    assert [d.name for d in made.delete] == ["digits-worker-0"]
    assert "rendezvous" not in manifests.status_patch(job, made.status, made.keep), "somebody may train yet"
    made = plan(Seen(job=job, now=NOW))
    patch = manifests.status_patch(job, made.status, made.keep)
    assert patch["rendezvous"]["generation"] == 0
    assert made.status.is_true("Suspended")


def test_a_finished_job_stays_finished_whatever_else_its_status_says() -> None:
    status = {"conditions": [{"type": "Complete", "status": "True"}], "restarts": 5}
    assert plan(Seen(job=read(status=status), now=NOW)).reason == "finished"


def test_what_a_newer_operator_wrote_survives_a_roll_back() -> None:
    status = {
        **STARTED,
        "chronicle": [{"what": "formed"}],
        "rendezvous": {**WORLD, "topology": "ring", "members": [{**WORLD["members"][0], "zone": "a"}]},  # type: ignore[index]
        "conditions": [{"type": "Running", "status": "True", "observedGeneration": 3}],
    }
    job = read(status=status)
    assert job.notices == ()
    made = plan(Seen(job=job, pods=(make_pod(0),), now=NOW))
    patch = manifests.status_patch(job, made.status, made.keep)
    assert patch, "something was written"
    assert "chronicle" not in patch
    assert "topology" not in patch["rendezvous"], "it speaks of the same world"
    assert [m["zone"] for m in patch["rendezvous"].get("members", [{"zone": "a"}])] == ["a"]


# --- what cannot change while the job runs ----------------------------------------------------------------


def started_with(**fields: Any) -> dict[str, Any]:
    """The status after the first pass over such a spec."""
    return plan(Seen(job=read(make_spec(**fields)), now=NOW)).status.dump()


def with_cpus(amount: str) -> dict[str, Any]:
    """A template whose trainer has so many."""
    return {"spec": {"containers": [{"name": "worker", "image": "a", "resources": {"limits": {"cpu": amount}}}]}}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param({}, {"nprocPerNode": 4}, "nprocPerNode (now 1)", id="nproc"),
        pytest.param({}, {"rendezvous": {"backend": "c10d"}}, "rendezvous.backend (now operator)", id="backend"),
        pytest.param(
            {"rendezvous": {"backend": "c10d"}},
            {"rendezvous": {"backend": "c10d", "endpoint": "a:1", "conf": {"x": "1"}}},
            "rendezvous.endpoint, rendezvous.conf",
            id="endpoint-and-conf",
        ),
    ],
)
def test_the_running_world_goes_on_with_what_it_started_with(
    before: dict[str, Any], after: dict[str, Any], told: str
) -> None:
    status, unchanged = started_with(**before), read(make_spec(**before))
    job = read(make_spec(**after), status)
    assert job.spec is not None
    assert unchanged.spec is not None
    assert job.spec.rendezvous.model_dump() == unchanged.spec.rendezvous.model_dump()
    made = plan(Seen(job=job, now=NOW))
    assert (made.status.nproc_per_node, made.status.in_force) == (1, job.status.in_force)
    message = f"spec: the change of {told} waits: suspend the job (runPolicy.suspend) and resume it"
    assert condition(job, "Warning") == ("True", "ChangeWaits", message)
    environment = manifests.environment(job, job.spec, 0, manifests.Settings(hub_url="ws://hub"))
    assert {"name": "PET_NPROC_PER_NODE", "value": "1"} in environment


def test_cpus_that_only_the_pods_know_are_no_number_that_is_held() -> None:
    job = read(make_spec(nprocPerNode="cpu"), started_with(nprocPerNode="cpu"))
    assert job.spec is not None
    assert job.spec.nproc_per_node == "cpu", "the next pods, too, take those that they are given"
    assert not condition(job, "Warning")


@pytest.mark.parametrize(
    ("before", "processes"),
    [
        pytest.param({"nprocPerNode": "cpu"}, 4, id="that only the pods knew"),
        pytest.param({"nprocPerNode": "cpu", "template": with_cpus("1")}, 1, id="of the template"),
        pytest.param({"nprocPerNode": 1}, 1, id="a number"),
    ],
)
def test_cpus_that_are_added_to_the_template_wait_and_the_world_keeps_its_processes(
    before: dict[str, Any], processes: int
) -> None:
    status = started_with(**before) | {"nprocPerNode": processes}
    job = read(make_spec(nprocPerNode="cpu", template=with_cpus("8")), status)
    assert job.spec is not None
    assert job.spec.nproc_per_node == processes
    assert f"nprocPerNode (now {processes}) waits" in (condition(job, "Warning") or ("", "", ""))[2]
    assert plan(Seen(job=job, now=NOW)).status.nproc_per_node == processes


def test_a_change_takes_effect_when_the_job_is_resumed() -> None:
    status = started_with()
    paused = plan(Seen(job=read(make_spec(nprocPerNode=4, runPolicy={"suspend": True}), status), now=NOW)).status.dump()
    job = read(make_spec(nprocPerNode=4), paused)
    made = plan(Seen(job=job, now=NOW))
    assert made.status.nproc_per_node == 4
    assert made.status.in_force is not None
    assert made.status.in_force.nproc_per_node == 4
    assert not made.status.is_true("Warning")


def test_a_job_of_an_older_operator_goes_on_with_its_spec() -> None:
    status = started_with(nprocPerNode=2)
    del status["inForce"]
    made = plan(Seen(job=read(make_spec(nprocPerNode=2), status), now=NOW))
    assert made.status.in_force is not None
    assert made.status.in_force.nproc_per_node == 2


# --- anything at all -------------------------------------------------------------------------------------

texts = st.one_of(
    st.text(max_size=8), st.sampled_from(["9" * 5000, "2026-13-45T00:00:00Z", "0001-01-01T00:00:00+23:59"])
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), texts)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


def like(model: Any) -> st.SearchStrategy[Any]:
    """Objects with the fields of a model and anything in them, or nearly what belongs there."""
    inner = {name: like(deeper) if deeper else anything for name, deeper in model.items()}
    inner = {name: st.one_of(anything, value, st.lists(value, max_size=2)) for name, value in inner.items()}
    return st.fixed_dictionaries({}, optional={**inner, "unknown": anything})


STATUS_FIELDS = api.list_fields(api.Status)
QUIET = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@QUIET
@given(
    st.one_of(anything, like(api.FIELDS)),
    st.one_of(anything, like(STATUS_FIELDS)),
    st.dictionaries(st.sampled_from(["annotations", "labels", "creationTimestamp", "deletionTimestamp"]), anything),
    st.booleans(),
)
def test_any_object_is_read_and_planned_for(
    spec: Any, status: Any, metadata: dict[str, Any], has_template: bool
) -> None:
    if has_template and isinstance(spec, dict):
        spec["template"] = TEMPLATE
    job = observe.observe_job({"metadata": METADATA | metadata, "spec": spec, "status": status})
    assert job.spec is not None or job.problems or job.awaited is not None, "it is read, or says what it lacks"
    made = plan(Seen(job=job, now=NOW))
    json.dumps(manifests.status_patch(job, made.status, made.keep))


words = st.one_of(texts, st.sampled_from(["Ready", "False", "True", "Unknown", "NoExecute", "Pending", "w"]))
conditions = st.lists(
    st.fixed_dictionaries({"type": words}, optional=dict.fromkeys(("status", "reason", "lastTransitionTime"), words)),
    max_size=3,
)
ends = st.fixed_dictionaries(
    {"exitCode": st.integers(-(2**31), 2**31)}, optional={"signal": st.integers(0, 99), "reason": words}
)
states = st.fixed_dictionaries(
    {},
    optional={
        "running": st.one_of(st.none(), st.fixed_dictionaries({}, optional={"startedAt": words})),
        "terminated": ends,
        "waiting": st.fixed_dictionaries({}, optional={"reason": words}),
    },
)
statuses = st.fixed_dictionaries(
    {},
    optional={
        "phase": words,
        "podIP": words,
        "conditions": conditions,
        "containerStatuses": st.lists(st.fixed_dictionaries({"name": words}, optional={"state": states}), max_size=2),
        "initContainerStatuses": st.lists(
            st.fixed_dictionaries({"name": words}, optional={"state": states}), max_size=2
        ),
    },
)


@QUIET
@given(
    statuses, st.sampled_from(["9" * 5000, "9" * 63, "1", "٣"]), words, st.lists(st.fixed_dictionaries({"key": words}))
)
def test_no_pod_or_node_raises(status: Any, index: str, time: str, taints: Any) -> None:
    """Types are the API server's: it has a schema for those; values are anybody's."""
    labels = {names.LABEL_JOB: "a", names.LABEL_INDEX: index}
    metadata = {**METADATA, "labels": labels, "creationTimestamp": time, "deletionTimestamp": time}
    spec = {"containers": [{"name": "w"}], "taints": taints}
    pod = observe.observe_pod({"metadata": metadata, "spec": spec, "status": status})
    assert pod is None or pod.index < 10**9
    observe.observe_node({"metadata": metadata, "spec": spec, "status": status})


def test_a_pod_in_a_phase_that_nobody_knows() -> None:
    metadata = {**METADATA, "labels": {names.LABEL_JOB: "a", names.LABEL_INDEX: "1"}}
    pod = observe.observe_pod(
        {"metadata": metadata, "spec": {"containers": [{"name": "w"}]}, "status": {"phase": "New"}}
    )
    assert pod is not None
    assert pod.phase == "Unknown"


@pytest.mark.parametrize(
    ("backend", "store", "unread"),
    [
        pytest.param("operator", None, ("rendezvous",), id="no store"),
        pytest.param("operator", {"address": "10.0.0.1", "port": 1234}, (), id="a store"),
        pytest.param("c10d", None, (), id="torch's own rendezvous"),
    ],
)
def test_a_world_without_a_store_is_not_understood(backend: str, store: Any, unread: tuple[str, ...]) -> None:
    world = {key: value for key, value in WORLD.items() if key != "store"} | ({"store": store} if store else {})
    job = read(make_spec(rendezvous={"backend": backend}), {**STARTED, "rendezvous": world})
    assert job.unread == unread
    assert [n.message for n in job.notices if "no store" in n.message] == [
        "status.rendezvous: has members, but no store for them to connect to; it may have been written by "
        "another version"
    ] * len(unread)


# --- a spec that is read once ------------------------------------------------------------------------------


OWN = make_spec(replicas=2, elasticPolicy={"minReplicas": 1, "maxReplicas": 4})
MARKED: dict[str, Any] = {"annotations": {names.ANNOTATION_DEFAULT: "2"}}
APPLIED: dict[str, Any] = {
    "annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"spec": OWN | {"y": 1}})}
}
WRITTEN: dict[str, Any] = {"managedFields": [{"manager": "someone", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]}
SMALL = bounds.Limits(replicas=2)
VERSIONS: dict[str, Callable[[], Job]] = {
    "as it is": lambda: read(OWN),
    "another spec": lambda: read({**OWN, "nprocPerNode": 4}, generation=5),
    "another default": lambda: read({**OWN, "nprocPerNode": 4}),
    "an equal value": lambda: read({**OWN, "nprocPerNode": True}, generation=5),
    "its equal value": lambda: read({**OWN, "nprocPerNode": 1}, generation=6),
    "its limits": lambda: read({**OWN, "replicas": 4}, limits=SMALL),
    "its limits, started": lambda: read({**OWN, "replicas": 4}, STARTED, SMALL),
    "started": lambda: read(OWN, STARTED),
    "in force": lambda: read({**OWN, "nprocPerNode": 4}, started_with(), generation=5),
    "in force with others": lambda: read({**OWN, "nprocPerNode": 4}, started_with(nprocPerNode=2), generation=5),
    "the operator's number": lambda: read(OWN, **MARKED),
    "somebody else's number": lambda: read(OWN, **MARKED, **WRITTEN),
    "what was applied": lambda: read(OWN, **APPLIED),
    "awaited": lambda: read({**OWN, "templateRef": {"name": "t"}}, generation=6),
    "taken": lambda: read(
        {**OWN, "templateRef": {"name": "t"}},
        {"template": {"namespace": "a", "name": "t", "uid": "u", "spec": '{"nprocPerNode": 3}'}},
        generation=6,
    ),
    "too deep": lambda: read(put_in_template(nested(90)), generation=7),
}


@pytest.mark.parametrize("before", VERSIONS)
def test_what_was_read_before_makes_no_difference(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {name: make() for name, make in VERSIONS.items()}
    plain = observe.observe_job
    monkeypatch.setattr(observe, "observe_job", lambda raw, limits: plain(raw, limits, alone[before]))
    for name, make in VERSIONS.items():
        assert make() == alone[name], name


def test_a_spec_that_stays_is_the_same_object() -> None:
    first = read(OWN)
    raw = {"metadata": METADATA | {"labels": {"x": "y"}}, "spec": copy.deepcopy(OWN), "status": {"replicas": 1}}
    again = observe.observe_job(raw, before=first)
    assert again.spec is first.spec
    assert again.status.replicas == 1


def test_what_is_only_equal_is_read_again() -> None:
    """`1` is `True` for Python; for the API server, this is a change of the spec."""
    first, corrected = read(put_in_template(1)), put_in_template(True)
    again = observe.observe_job({"metadata": METADATA | {"generation": 5}, "spec": corrected}, before=first)
    assert again.spec is not None
    assert again.spec.template["spec"]["x"] is True
