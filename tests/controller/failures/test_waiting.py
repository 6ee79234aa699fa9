"""Pods that wait without a reason in their status."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, make_pod
from elasticjob_operator.failures import waiting

MOUNT = {"type": "Warning", "reason": "FailedMount", "message": "no such map", "lastTimestamp": "2026-01-01T00:00:01Z"}
PULL = {"type": "Normal", "reason": "Pulling", "message": "pulling a", "lastTimestamp": "2026-01-01T00:00:09Z"}

BEFORE = {**PULL, "lastTimestamp": "2026-01-01T00:00:00Z"}
UNPLACED = {**MOUNT, "reason": "FailedScheduling", "message": "no node", "lastTimestamp": "2026-01-01T00:00:08Z"}


def creating(age: float, **fields: Any) -> Any:
    when = {"created": NOW - age, "scheduled": NOW - age, "waiting": "ContainerCreating"}
    return make_pod(0, "Pending", **{**when, **fields})


TEMPLATE = {
    "schedulerName": "mine",
    "initContainers": [{"name": "get"}, {"name": "log", "restartPolicy": "Always"}],
    "containers": [{"name": "trainer"}],
}
OTHER = make_pod(0, "Pending", created=NOW - 99, scheduled=NOW - 99, waiting="ImagePullBackOff")
CLAIMLESS = make_pod(
    0, "Pending", created=NOW - 20, node="", scheduled=None, unschedulable=NOW - 20,
    unschedulable_message='waiting for ephemeral volume controller to create the persistentvolumeclaim "digits-0-data"',
)  # fmt: skip
NOWHERE = make_pod(0, "Pending", created=NOW - 61, node="", scheduled=None)


@pytest.mark.parametrize(
    ("items", "told"),
    [
        pytest.param([], (False, ""), id="nothing"),
        pytest.param([PULL], (False, "Pulling: pulling a"), id="any event"),
        pytest.param([MOUNT, BEFORE], (True, "FailedMount: no such map"), id="a warning comes first"),
        pytest.param([MOUNT, {**PULL, "lastTimestamp": MOUNT["lastTimestamp"]}], (True, "FailedMount: no such map"),
                     id="also of the same second"),
        pytest.param([MOUNT, PULL], (False, "Pulling: pulling a"), id="images are pulled when all is mounted"),
        pytest.param([UNPLACED, PULL], (False, "Pulling: pulling a"), id="it was placed"),
        pytest.param([UNPLACED], (False, ""), id="the scheduler's words are in the pod's status"),
        pytest.param([UNPLACED, {**MOUNT, "reason": "FailedBinding", "message": "exceeded quota"}],
                     (True, "FailedBinding: exceeded quota"), id="why the scheduler waits"),
        pytest.param([MOUNT, {**MOUNT, "lastTimestamp": "2026-01-02T00:00:00Z", "message": "newer"}],
                     (True, "FailedMount: newer"), id="the newest"),
        pytest.param([{**PULL, "lastTimestamp": None, "eventTime": "2026-01-01T00:00:00.5Z"}],
                     (False, "Pulling: pulling a"), id="of the newer API"),
    ],
)  # fmt: skip
def test_what_events_tell(items: list[dict[str, Any]], told: tuple[bool, str]) -> None:
    assert waiting.read_events(items) == told


@pytest.mark.parametrize(
    ("pod", "said", "told"),
    [
        pytest.param(creating(10), (True, "FailedMount: x"), "", id="not yet"),
        pytest.param(creating(20), (True, "FailedMount: x"), "FailedMount: x", id="a warning is told soon"),
        pytest.param(creating(20), (False, "Pulling: y"), "", id="a pull may take a while"),
        pytest.param(creating(61), (False, "Pulling: y"), "Pulling: y", id="what it does after a minute"),
        pytest.param(creating(61), (False, ""), "not created on node0: `kubectl describe pod digits-worker-0`", id="-"),
        pytest.param(creating(61, waiting="PodInitializing"), (False, ""), "init containers have not ended", id="init"),
        pytest.param(creating(61, waiting="PodInitializing"), (False, "Scheduled: assigned to node0"),
                     "init containers have not ended", id="an event that is no reason to wait"),
        pytest.param(OTHER, (False, ""), "", id="other reason"),
        pytest.param(creating(61, waiting="PodInitializing"), (False, ""),
                     "(spec.template.spec.initContainers: get, log; restartPolicy: Always of log makes a sidecar",
                     id="older clusters know no sidecars"),
        pytest.param(NOWHERE, (False, ""), "is mine running", id="no node"),
        pytest.param(CLAIMLESS, (True, "FailedBinding: exceeded quota"), "FailedBinding: exceeded quota",
                     id="a claim that cannot be made"),
        pytest.param(replace(CLAIMLESS, created=NOW - 99), (False, ""), "", id="the scheduler says what it waits for"),
        pytest.param(replace(CLAIMLESS, unschedulable_message="Insufficient cpu"), (True, "FailedBinding: x"), "",
                     id="the scheduler says why"),
        pytest.param(creating(20, node="gone"), (False, ""), "there is no node gone (spec.template.spec.nodeName)",
                     id="no such node: the cluster deletes it before a minute is over"),
        pytest.param(creating(6, node="gone"), (False, ""), "there is no node gone", id="others may remove it soon"),
        pytest.param(creating(4, node="gone"), (False, ""), "", id="a node that is not known yet"),
        pytest.param(make_pod(0, created=NOW - 100), (True, "x"), "", id="runs"),
    ],
)  # fmt: skip
def test_what_is_told_of_a_quiet_pod(pod: Any, said: tuple[bool, str], told: str) -> None:
    found = waiting.find_problem([pod], {pod.uid: said}, TEMPLATE, NOW, nodes={"node0"})
    assert (found is not None) == bool(told)
    assert found is None or (found[0] == "PodNotStarting" and told in found[1])


YOUNG = creating(2)


@pytest.mark.parametrize(
    ("told", "pods", "lived", "is_kept"),
    [
        pytest.param("PodNotStarting", [YOUNG], 0, True, id="a new pod in its place is too young to say it again"),
        pytest.param("PodNotStarting", [YOUNG], 9, True, id="also where others have run"),
        pytest.param("PodNotStarting", [], 0, True, id="there is none yet"),
        pytest.param("PodNotStarting", [], 9, False, id="there is none yet, and those before had run"),
        pytest.param("PodNotStarting", [creating(20)], 0, False, id="the new one has had time to say it"),
        pytest.param("PodNotStarting", [make_pod(0), make_pod(1)], 0, False, id="all have started"),
        pytest.param("PodNotStarting", [make_pod(1), YOUNG], 0, True, id="another one has"),
        pytest.param("BackOff", [YOUNG], 0, False, id="something else was told"),
        pytest.param("", [YOUNG], 0, False, id="nothing was told"),
    ],
)  # fmt: skip
def test_what_was_told_of_a_pod_stays_until_the_next_one_may_tell(
    told: str, pods: list[Any], lived: float, is_kept: bool
) -> None:
    assert waiting.is_still_told(told, pods, 2, lived, NOW) is is_kept


def test_a_pod_that_waits_for_its_claims_names_them() -> None:
    """The scheduler does not take such a pod, and says so nowhere."""
    template = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu-claim"}]}
    found = waiting.find_problem([NOWHERE], {}, template, NOW, nodes=())
    assert found is not None and "gpu-claim (spec.template.spec.resourceClaims)" in found[1]


def test_a_pod_that_waits_for_its_volume_names_it() -> None:
    """The scheduler has chosen a node, and says nothing until the volume is there."""
    template = {"volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "saves"}}]}
    found = waiting.find_problem([NOWHERE], {}, template, NOW, nodes=())
    assert found is not None and found[1].endswith("(spec.template.spec.volumes: PersistentVolumeClaim saves)?")


VOLUMES = [
    {"name": "data", "persistentVolumeClaim": {"claimName": "datasets"}},
    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}},
    {"name": "more", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
    {"name": "tmp", "emptyDir": {}},
]
STATIC = {"name": "old", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": ""}}}}
UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."


@pytest.mark.parametrize(
    ("message", "volumes", "added"),
    [
        pytest.param(UNBOUND, VOLUMES[:1], " PersistentVolumeClaim datasets", id="a claim"),
        pytest.param(
            UNBOUND,
            VOLUMES,
            " PersistentVolumeClaim datasets; volume scratch, of StorageClass fast; volume more, of the default "
            "StorageClass",
            id="templates of claims",
        ),
        pytest.param(UNBOUND, [STATIC], " volume old, of no StorageClass", id="bound by hand"),
        pytest.param('persistentvolumeclaim "datasets" not found', VOLUMES[:1], "", id="it is named"),
        pytest.param("0/3 nodes are available: Insufficient cpu", VOLUMES, "", id="something else"),
        pytest.param(UNBOUND, VOLUMES[3:], "", id="no claims: another has added them"),
        pytest.param(UNBOUND, "x", "", id="no list"),
        pytest.param(UNBOUND, ["x", {"ephemeral": []}, {"persistentVolumeClaim": "x"}], "", id="no volumes"),
    ],
)
def test_the_claims_of_a_pod_that_no_node_takes_are_named(message: str, volumes: Any, added: str) -> None:
    named = waiting.name_fields(message, {"volumes": volumes})
    assert named == (f"{message} (spec.template.spec.volumes:{added})" if added else message)


TERM = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {}}]}
ASKING: list[Any] = [
    {"name": "a", "resources": {"requests": {"memory": "900Ti"}, "limits": {"memory": "901Ti"}}},
    {"name": "b", "resources": {"limits": {"memory": "1Gi", "nvidia.com/gpu": 64}}},
]
SELECTOR = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."


@pytest.mark.parametrize(
    ("message", "template", "added"),
    [
        pytest.param(SELECTOR, {"nodeSelector": {"gpu": "h100", "zone": "a"}}, ["nodeSelector: gpu=h100, zone=a"],
                     id="a selector"),
        pytest.param(SELECTOR, {"nodeSelector": {"gpu": None}}, ["nodeSelector: gpu="], id="of no value"),
        pytest.param("0/3 nodes are available: 3 node(s) didn't match node selector.", {"nodeSelector": {"a": "b"}},
                     ["nodeSelector: a=b"], id="a selector, said by an old scheduler"),
        pytest.param(SELECTOR, {"affinity": {"nodeAffinity": TERM}}, ["affinity.nodeAffinity"], id="node affinity"),
        pytest.param(SELECTOR, {"runtimeClassName": "kata"}, ["runtimeClassName: kata, which may choose nodes"],
                     id="a class"),
        pytest.param('running PreBind plugin "VolumeBinding": the object has been modified', {"volumes": VOLUMES[:1]},
                     ["volumes: PersistentVolumeClaim datasets"], id="a claim that changes"),
        pytest.param("3 node(s) had untolerated taint(s)", {}, ["tolerations: none"], id="taints"),
        pytest.param("3 node(s) had taint {a: b}, that the pod didn't tolerate",
                     {"tolerations": [{"key": "spot"}, {"operator": "Exists"}]}, ["tolerations: spot, all taints"],
                     id="other taints"),
        pytest.param("3 node(s) didn't match pod topology spread constraints (missing required label)",
                     {"topologySpreadConstraints": [{"topologyKey": "rack"}]}, ["topologySpreadConstraints: rack"],
                     id="spread"),
        pytest.param("3 node(s) didn't match pod anti-affinity rules", {"affinity": {"podAntiAffinity": TERM}},
                     ["affinity.podAntiAffinity: zone"], id="apart"),
        pytest.param("3 node(s) didn't match pod affinity/anti-affinity", {"affinity": {"podAffinity": TERM}},
                     ["affinity.podAffinity: zone"], id="together"),
        pytest.param("3 node(s) didn't have free ports for the requested pod ports",
                     {"containers": [{"name": "a", "ports": [{"containerPort": 1}, {"hostPort": 2}]}]},
                     ["containers: hostPort 2 of a"], id="a port"),
        pytest.param("3 node(s) didn't have free ports for the requested pod ports",
                     {"hostNetwork": True, "containers": [{"name": "a", "ports": [{"containerPort": 1}]}]},
                     ["containers: containerPort 1 of a (hostNetwork)"], id="a port of the node's network"),
        pytest.param("0/3 nodes are available: 3 cannot allocate all claims.",
                     {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}, ["resourceClaims: one"],
                     id="devices"),
        pytest.param("1 node(s) had untolerated taint(s), 2 node(s) had volume node affinity conflict",
                     {"tolerations": [{"key": "spot"}], "volumes": VOLUMES[:1], "nodeSelector": {"a": "b"}},
                     ["tolerations: spot", "volumes: PersistentVolumeClaim datasets"], id="two"),
        pytest.param("3 node(s) didn't match PersistentVolume's node affinity", {"volumes": VOLUMES[:1]},
                     ["volumes: PersistentVolumeClaim datasets"], id="a disk elsewhere"),
        pytest.param("1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
                     {"volumes": VOLUMES[:1]}, ["volumes: PersistentVolumeClaim datasets"], id="a disk that is gone"),
        pytest.param("2 node(s) had no available volume zone", {"volumes": VOLUMES[:1]},
                     ["volumes: PersistentVolumeClaim datasets"], id="a disk of another zone"),
        pytest.param("7 node(s) didn't satisfy plugin(s) [NodeAffinity]", {"affinity": {"nodeAffinity": TERM}},
                     ["affinity.nodeAffinity"], id="a node by its name"),
        pytest.param("request gpu/big: device class h200 does not exist",
                     {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}, ["resourceClaims: one"],
                     id="a class of devices"),
        pytest.param("0/3 nodes are available: 3 Insufficient cpu.", {"nodeSelector": {"a": "b"}}, [], id="room"),
        pytest.param("3 Insufficient memory, 3 Insufficient nvidia.com/gpu.", {"containers": ASKING},
                     ["containers: a asks for memory 900Ti, b asks for memory 1Gi, b asks for nvidia.com/gpu 64"],
                     id="more than there is"),
        pytest.param("3 Insufficient cpu.", {"containers": ASKING},
                     ["containers: none asks for cpu, so a LimitRange of the namespace, a webhook or a policy does"],
                     id="nobody asks: a range of limits does"),
        pytest.param("1 Insufficient memory, 2 Insufficient cpu.", {"containers": ASKING[:1]},
                     ["containers: a asks for memory 900Ti",
                      "containers: none asks for cpu, so a LimitRange of the namespace, a webhook or a policy does"],
                     id="one asks for one of them"),
        pytest.param("3 Insufficient memory.", {"resources": {"limits": {"memory": "900Ti"}}},
                     ["resources: memory 900Ti"], id="of the whole pod"),
        pytest.param("3 Insufficient memory.", {"runtimeClassName": "heavy"},
                     ["runtimeClassName: heavy, whose overhead counts"], id="of a class"),
        pytest.param("3 Insufficient nvidia.com/gpu.", {"initContainers": ASKING[1:], "runtimeClassName": "heavy"},
                     ["containers: b asks for nvidia.com/gpu 64"], id="an init container; no class has devices"),
        pytest.param("3 Insufficient memory.", {"containers": [{"name": "a", "resources": {"limits": []}}, 1],
                                                "resources": "x"},
                     ["containers: none asks for memory, so a LimitRange of the namespace, a webhook or a policy does"],
                     id="amounts that are none"),
        pytest.param(f"{SELECTOR} topology spread, pod affinity, free ports, allocate all claims",
                     {"nodeSelector": 1, "affinity": {"nodeAffinity": [], "podAffinity": 2}, "containers": ["x", {}],
                      "topologySpreadConstraints": "x", "resourceClaims": {}}, [], id="nothing as it should be"),
    ],
)  # fmt: skip
def test_the_fields_that_keep_a_pod_off_all_nodes_are_named(message: str, template: Any, added: list[str]) -> None:
    fields = "; ".join(f"spec.template.spec.{one}" for one in added)
    assert waiting.name_fields(message, template) == (f"{message} ({fields})" if added else message)


GATED = "Scheduling is blocked due to non-empty scheduling gates"


@pytest.mark.parametrize(
    ("gates", "told"),
    [
        pytest.param(["example.com/licence"], "schedulingGates: example.com/licence): the controller of example.com",
                     id="somebody's"),
        pytest.param(["kueue.x-k8s.io/topology"], "kueue.x-k8s.io/topology): Kueue takes it away", id="of Kueue"),
        pytest.param(["a/b", "plain"], "schedulingGates: a/b, plain): the controllers of a, plain", id="several"),
        pytest.param([], "the template has no spec.schedulingGates", id="a webhook's"),
    ],
)  # fmt: skip
def test_gates_are_named(gates: list[str], told: str) -> None:
    named = waiting.name_gates(GATED, {"schedulingGates": [{"name": one} for one in gates]})
    assert named.startswith(GATED) and told in named


@pytest.mark.parametrize("gates", [None, "x", ["x"], [{"name": 1}]])
def test_gates_that_are_none(gates: Any) -> None:
    assert "the template has no" in waiting.name_gates(GATED, {"schedulingGates": gates})


def test_many_claims_are_not_all_named() -> None:
    claims = [{"persistentVolumeClaim": {"claimName": f"c{i}"}} for i in range(900)]
    assert waiting.name_fields(UNBOUND, {"volumes": claims}).endswith("PersistentVolumeClaim c4; …)")


def test_of_many_ports_only_those_that_are_named_are_written_out() -> None:
    """Pods wait for a port, and then their author gives a container a long name."""
    ports = [{"hostPort": number} for number in range(1, 2_000)]
    message = "0/3 nodes are available: 3 node(s) didn't have free ports"
    tracemalloc.start()
    named = waiting.name_fields(message, {"containers": [{"name": "n" * 10_000, "ports": ports}]})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert named.endswith(f"hostPort 5 of {'n' * 10_000}, …)")
    assert peak < 2**20


@pytest.mark.parametrize(
    ("secrets", "more"),
    [
        pytest.param(None, "", id="none"),
        pytest.param("regcred", "", id="no list"),
        pytest.param(["regcred", {"name": 1}, {}], "", id="no objects"),
        pytest.param([{"name": "regcred"}], " (spec.template.spec.imagePullSecrets: regcred, which has to be "
                     "in the job's namespace)", id="one"),
        pytest.param([{"name": "a"}, {"name": "b"}], " (spec.template.spec.imagePullSecrets: a, b, which have "
                     "to be in the job's namespace)", id="two"),
    ],
)  # fmt: skip
def test_pull_secrets_are_named(secrets: Any, more: str) -> None:
    assert waiting.name_pull_secrets("denied", {"imagePullSecrets": secrets}) == f"denied{more}"


CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}
FROM_FILE = {"name": "K", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "lost.env", "key": "K"}}}


@pytest.mark.parametrize(
    ("message", "template", "added"),
    [
        pytest.param("FailedPrepareDynamicResources: prepare dynamic resources: DRA driver a.b is not registered",
                     CLAIMS, "resourceClaims: one", id="devices"),
        pytest.param("couldn't parse env file", {"containers": [{"name": "a", "env": [FROM_FILE]}]},
                     "containers: env K from lost.env in volume v", id="a file with variables"),
        pytest.param("missing value for RANK",
                     {"containers": [{"volumeMounts": [{"mountPath": "/run", "subPathExpr": "$(RANK)"}]}]},
                     "containers: subPathExpr $(RANK), which takes what env of that container sets", id="a path"),
        pytest.param('FailedCreatePodSandBox: no runtime for "here" is configured', {"runtimeClassName": "kata"},
                     "runtimeClassName: kata", id="a runtime"),
        pytest.param('RuntimeHandler "here" not supported', {"runtimeClassName": "kata"},
                     "runtimeClassName: kata", id="a runtime, as other kubelets say it"),
        pytest.param("couldn't parse env file", {"containers": [{"env": [{"valueFrom": {"fileKeyRef": 1}}]}, 2]}, "",
                     id="nothing as it should be"),
        pytest.param('FailedMount: configmap "here" not found', {**CLAIMS, "runtimeClassName": "kata"}, "", id="other"),
    ],
)  # fmt: skip
def test_the_fields_that_a_node_cannot_serve_are_named(message: str, template: Any, added: str) -> None:
    more = f" (spec.template.spec.{added})" if added else ""
    assert waiting.name_unserved(message, template) == f"{message}{more}"


def test_a_pod_that_becomes_due_later_does_not_hide_what_another_has_told() -> None:
    """The events of one pod are read, about twice a minute: of the first that was due, whatever its number is."""
    first, told = (
        creating(16),
        make_pod(1, "Pending", created=NOW - 20, scheduled=NOW - 20, waiting="ContainerCreating"),
    )
    said = {told.uid: (True, "FailedMount: x")}
    assert waiting.find_problem([first, told], said, {}, NOW, nodes=["node0", "node1"]) == (
        "PodNotStarting",
        f"{told.name}: FailedMount: x",
    )
    slow = [creating(61), replace(told, created=NOW - 70, scheduled=NOW - 70)]
    pulls = waiting.find_problem(slow, {told.uid: (False, "Pulling: y")}, {}, NOW, nodes=["node0", "node1"])
    assert pulls == ("PodNotStarting", f"{told.name}: Pulling: y")


def test_what_an_event_tells_has_the_field() -> None:
    pod = creating(20)
    said = {pod.uid: (True, "FailedPrepareDynamicResources: DRA driver a.b is not registered")}
    told = waiting.find_problem([pod], said, CLAIMS, NOW, nodes=[pod.node])
    assert told is not None
    assert told[1].endswith("DRA driver a.b is not registered (spec.template.spec.resourceClaims: one)")


TEXT = "grpc: error while marshaling: string field contains invalid UTF-8"


@pytest.mark.parametrize(
    ("container", "more"),
    [
        pytest.param({}, "", id="none"),
        pytest.param({"env": "KEY", "envFrom": [{"secretRef": "a"}, {"secretRef": {}}, 1]}, "", id="no objects"),
        pytest.param({"env": [{"name": "A", "value": "b"}]}, "", id="values"),
        pytest.param({"envFrom": [{"secretRef": {"name": "a"}}, {"configMapRef": {"name": "b"}}]},
                     " (variables are from Secret a, ConfigMap b; a variable takes text only", id="whole ones"),
        pytest.param({"env": [{"name": k, "valueFrom": {"secretKeyRef": {"name": "a", "key": k}}} for k in "xy"]},
                     " (variables are from Secret a; a variable takes text only", id="keys"),
    ],
)  # fmt: skip
def test_where_variables_are_from_is_named(container: Any, more: str) -> None:
    for template in ({"containers": [container]}, {"initContainers": [container], "containers": [container, {}]}):
        said = waiting.name_sources(TEXT, template)
        assert said.startswith(TEXT + more) and bool(more) is (said != TEXT)
        assert waiting.name_sources("another error", template) == "another error"
