"""Objects of others that are slow, late, lost or refuse: what the job says, that it recovers, and who does not notice.

The nodes run nothing: they say what kubelets would say.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chaos import light_nodes, webhooks
from chaos.manifest_judge import read_told as read_told_of
from elasticjob_devcluster import Cluster, KubeError, NodeSpec, Tuning
from elasticjob_devcluster.flags import parse_version
from elasticjob_operator.api import names
from elasticjob_operator.cli.root import run
from operator_fixture import MERGE, Jobs, OperatorProcess, install_crd, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

NODES = (
    *(NodeSpec(f"good-{i}", cpu=100, pods=400) for i in range(3)),
    NodeSpec("refuses", cpu=100, pods=400, labels={light_nodes.REFUSES: "TopologyAffinityError"}),
)
STRATEGIC = "application/strategic-merge-patch+json"
NO_HOOK = {"metadata": {"labels": {webhooks.LABEL: None}}}


def build_spec(replicas: int, pod: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    trainer = {"name": "trainer", "image": f"{light_nodes.HERE}torch:1", "command": ["torchrun", "train.py"]}
    return {
        "replicas": replicas,
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 200},
        "runtimeInjection": "Never",
        "template": {"spec": {"containers": [trainer], "nodeSelector": {"kubernetes.io/os": "linux"}, **(pod or {})}},
        **changes,
    }


@dataclass(frozen=True)
class Lab:
    """Makes namespaces with such labels in a cluster of these nodes, with webhooks."""

    cluster: Cluster
    asked: list[tuple[str, str]]  # what the webhooks were asked: the kind of webhook, and the pod's name

    def __call__(self, name: str, **labels: str) -> Jobs:
        if self.cluster.kube.get(f"/api/v1/namespaces/{name}") is not None:  # this test is tried once more
            name = f"{name}-again"
        self.cluster.make_namespace(name)
        body = {"metadata": {"labels": {key.replace("_", "-"): value for key, value in labels.items()}}}
        self.cluster.kube.request("PATCH", f"/api/v1/namespaces/{name}", body, content_type=MERGE)
        return Jobs(self.cluster, name)


@pytest.fixture(scope="module")
def lab(cluster_factory: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("neighbours")
    never = ("--node-monitor-grace-period=24h",)  # these nodes renew no Lease
    cluster = cluster_factory(nodes=(), tuning=Tuning(controller_manager_flags=never))
    install_crd(cluster)
    operator = OperatorProcess(cluster, directory, "--stable-seconds", "1", "--runtime-image", "here/runtime:1")
    (directory / "pki").mkdir()

    hooks, kubelets = webhooks.serving(cluster, directory / "pki"), light_nodes.LightNodes(cluster, NODES)
    with hooks as asked, kubelets.running() as nodes:
        cluster.wait_nodes_ready([node.name for node in NODES])
        operator.start()
        try:
            yield Lab(cluster, asked)
        finally:
            operator.stop()
    print(f"the operator said:\n{operator.log[-8000:]}")  # pytest shows it where a test failed
    assert nodes.wrong == []


def read_told(jobs: Jobs, reason: str) -> str:
    found = jobs.condition("job", "Degraded")
    return str(found["message"]) if (found.get("status"), found.get("reason")) == ("True", reason) else ""


def await_healthy(jobs: Jobs, size: int) -> dict[str, Any]:
    """The status of the job, which trains with so many pods and was charged nothing."""
    status = jobs.await_world("job", size, timeout=90)
    wait_for(lambda: jobs.condition("job", "Degraded")["status"] == "False", "nothing is told any more")
    assert not status["restarts"].get("user")
    return status


def test_a_node_that_refuses_all_pods_is_named_and_left_alone(lab: Lab) -> None:
    jobs = lab("refused")
    there = {"matchExpressions": [{"key": light_nodes.REFUSES, "operator": "Exists"}]}
    preferred = [{"weight": 100, "preference": there}] * 2  # at first: no wish is worth a node that refuses
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    jobs.create("job", build_spec(8, {"affinity": affinity}))
    status = await_healthy(jobs, 8)
    assert [fault["node"] for fault in status["nodeFaults"]] == ["refuses"]
    assert {member["node"] for member in status["rendezvous"]["members"]} <= {"good-0", "good-1", "good-2"}
    assert status["nodeFaults"][0]["count"] <= 8, "the pods in their place went elsewhere"


@together
def test_a_slow_webhook_of_one_namespace_delays_no_other(lab: Lab) -> None:
    """It answers, after three seconds: of 100 pods half the slots of the operator are made at a time."""
    slow, good = lab("slow", chaos_hook="late"), lab("good")
    slow.create("job", build_spec(100))
    wait_for(lambda: slow.status("job").get("phase"), "it begins")
    good.create("job", build_spec(2))
    good.await_world("job", 2)
    assert len(slow.pods("job")) < 100, "the other job still waits for its webhook"
    status = slow.await_world("job", 100, timeout=120)
    assert not status["restarts"].get("total")
    assert "WriteFailed" not in [reason for reason, _ in slow.events("job")]


@together
def test_twenty_jobs_behind_a_webhook_that_times_out_are_told_and_delay_no_other(lab: Lab) -> None:
    """Each is tried a few times a minute, however many there are, and all are there once it answers."""
    slow, good = lab("dead", chaos_hook="slow"), lab("alive")
    dead = [f"job-{i}" for i in range(20)]
    began = time.monotonic()
    for name in dead:
        slow.create(name, build_spec(2))

    def is_told(name: str) -> bool:
        conditions = slow.status(name).get("conditions", ())
        return any("failed calling webhook" in one["message"] for one in conditions if one["type"] == "Degraded")

    good.create("job", build_spec(10))
    good.await_world("job", 10, timeout=60)
    wait_for(lambda: all(map(is_told, dead)), "all are told why", timeout=120)
    minutes = (time.monotonic() - began) / 60
    asked = [name for kind, name in list(lab.asked) if kind == "slow" and name.startswith("job-")]
    print(f"{len(asked)} requests in {minutes:.2f} minutes")
    assert len(asked) <= len(dead) * (6 + 20 * minutes)
    slow.kube.request("PATCH", "/api/v1/namespaces/dead", NO_HOOK, content_type=MERGE)
    for name in dead:
        assert not slow.await_world(name, 2, timeout=120)["restarts"].get("total")


REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "quota": ("resourcequotas", {"hard": {"pods": "0"}}, "exceeded quota: others"),
    "limits": ("limitranges", {"limits": [{"type": "Container", "max": {"cpu": "1m"}}]}, "maximum cpu"),
    "denies": ("", {}, "only pods with a cost centre"),
}


def count_refused(cluster: Cluster) -> int:
    """Pods that the API server has refused to make since it began."""
    text = cluster.kube.raw("GET", "/metrics").decode()
    lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total{")]
    wanted = ('code="403"', 'resource="pods"', 'verb="POST"')
    return sum(round(float(line.rpartition(" ")[2])) for line in lines if all(word in line for word in wanted))


def refuses_pods(jobs: Jobs) -> bool:
    container = {"name": "probe", "image": "probe:1", "resources": {"limits": {"cpu": "1"}}}
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [container]}}
    try:
        jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/pods?dryRun=All", pod)
    except KubeError as error:
        return bool(error.status == 403)
    return False


@pytest.mark.parametrize("kind", REFUSALS)
def test_twenty_jobs_whose_pods_are_refused_delay_no_other(lab: Lab, kind: str) -> None:
    """By itself: what the API server refuses is counted in all namespaces."""
    plural, spec, words = REFUSALS[kind]
    hook = {"chaos_hook": kind} if not plural else {}
    refused, good = lab(f"all-refused-{kind}", **hook), lab(f"beside-refused-{kind}")
    if plural:
        path = f"/api/v1/namespaces/{refused.namespace}/{plural}"
        refused.kube.request("POST", path, {"metadata": {"name": "others"}, "spec": spec})
        wait_for(lambda: refuses_pods(refused), "it counts")  # the API server hears of it a moment later

    def time_start(name: str) -> float:
        began = time.monotonic()
        good.create(name, build_spec(10))
        good.await_world(name, 10)
        return time.monotonic() - began

    def is_told(name: str) -> bool:
        conditions = refused.status(name).get("conditions", ())
        return any(words in one.get("message", "") for one in conditions if one["type"] == "Degraded")

    alone = time_start("alone")
    before, began, names_of_all = count_refused(lab.cluster), time.monotonic(), [f"job-{i}" for i in range(20)]
    asking = build_spec(10)  # for more than a range of limits allows, which sets its own where nobody asks
    asking["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    for name in names_of_all:
        refused.create(name, asking)
    beside = time_start("beside")
    wait_for(lambda: all(map(is_told, names_of_all)), "all are told why")
    minutes = (time.monotonic() - began) / 60
    count = count_refused(lab.cluster) - before
    print(
        f"a good job of ten trains after {alone:.1f} s alone and {beside:.1f} s beside; {count} were refused meanwhile"
    )
    assert count <= len(names_of_all) * 10 * (1 + minutes)


@together
def test_a_webhook_that_is_too_busy_for_one_namespace_is_told(lab: Lab) -> None:
    """It asks for another try after a second, each time: it gets fewer."""
    jobs = lab("hook-busy", chaos_hook="busy")
    began = time.monotonic()
    jobs.create("job", build_spec(8))
    told = wait_for(lambda: read_told(jobs, "WriteFailed"), "it is told")
    assert "429 TooManyRequests" in told
    assert "the vault is sealed" in told
    jobs.scale("job", 7)
    time.sleep(5)  # in which more may be tried
    minutes = (time.monotonic() - began) / 60
    asked = [name for kind, name in list(lab.asked) if kind == "busy"]
    print(f"{len(asked)} requests in {minutes:.2f} minutes")
    assert len(asked) <= 6 + 20 * minutes
    jobs.kube.request("PATCH", f"/api/v1/namespaces/{jobs.namespace}", NO_HOOK, content_type=MERGE)
    assert not await_healthy(jobs, 7)["restarts"].get("total")


@pytest.mark.parametrize("kind", ["mutates", "shm"])
@together
def test_a_webhook_that_changes_pods_does_no_harm(lab: Lab, kind: str) -> None:
    """A container in front of the trainer, tolerations, labels; a mount where the operator has one."""
    jobs = lab(f"hook-{kind}", chaos_hook=kind)
    jobs.create("job", build_spec(2))
    assert not await_healthy(jobs, 2)["restarts"].get("total")
    uids = {pod["metadata"]["uid"] for pod in jobs.pods("job")}
    jobs.scale("job", 3)
    await_healthy(jobs, 3)
    assert uids <= {pod["metadata"]["uid"] for pod in jobs.pods("job")}, "nobody takes them for others' pods"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        pytest.param("image", "here/train image:", "train image", id="no such image"),
        pytest.param("command", ["false"], "exit code 1", id="a script that fails"),
    ],
)
@together
def test_a_container_that_a_webhook_puts_in_front_is_not_taken_for_the_trainer(
    lab: Lab, field: str, value: object, words: str
) -> None:
    """Its pods run on with that one, whatever becomes of the trainer."""
    jobs = lab(f"in-front-{field}", chaos_hook="mutates")
    spec = build_spec(1)
    spec["template"]["spec"]["containers"][0][field] = value
    jobs.create("job", spec)
    wait_for(lambda: words in str(read_told_of(jobs.status("job"))), "it is told what holds the trainer", timeout=40)


@pytest.mark.parametrize(
    ("kind", "reason", "words"),
    [
        pytest.param("denies", "CreateForbidden", ("denies.hook.example", "only pods with a cost centre"), id="denies"),
        pytest.param("spoils", "PodAltered", ("spec.nodeSelector", "webhook"), id="makes them invalid"),
        pytest.param(
            "blinds", "PodAltered", ("env[ELASTICJOB_HUB_URL]", "became nothing", "webhook"), id="takes a variable"
        ),
        pytest.param(
            "unmounts", "PodAltered", ("volumeMounts[/var/run/secrets/elasticjob.dev]", "nothing"), id="takes a mount"
        ),
        pytest.param("empties", "PodAltered", ("volumes[data]: hostPath became emptyDir",), id="takes a volume"),
        pytest.param(
            "remounts", "PodAltered", ("volumeMounts[/data]: volume data became volume scratch",), id="mounts another"
        ),
        pytest.param("replaces", "PodAltered", ("command: torchrun train.py became sleep",), id="takes the command"),
    ],
)
@together
def test_a_webhook_that_refuses_pods_is_told(lab: Lab, kind: str, reason: str, words: tuple[str, ...]) -> None:
    jobs = lab(f"hook-{kind}", chaos_hook=kind)
    spec = build_spec(2, {"volumes": [{"name": "data", "hostPath": {"path": "/tmp"}}]})
    spec["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    jobs.create("job", spec)
    told = wait_for(lambda: read_told(jobs, reason), "it is told")
    assert [word for word in words if word not in told] == []
    jobs.kube.request("PATCH", f"/api/v1/namespaces/{jobs.namespace}", NO_HOOK, content_type=MERGE)
    assert not await_healthy(jobs, 2)["restarts"].get("total")


@together
def test_a_program_before_the_command_is_told_when_the_job_fails(lab: Lab) -> None:
    """It may be meant: one that fetches secrets, for example. This image has none."""
    jobs = lab("hook-wraps", chaos_hook="wraps")
    jobs.create("job", build_spec(2))
    told = jobs.await_condition("job", "Failed")["message"]
    assert "vault-env" in told
    assert "command: torchrun train.py became vault-env …" in told


@together
def test_a_node_that_refuses_all_pods_gets_few_however_often_the_size_changes(lab: Lab) -> None:
    """A size mends nothing: an autoscaler, or two writers, would make a pod with each of their changes."""
    jobs = lab("rescaled")
    tolerated = {"nodeSelector": {light_nodes.REFUSES: "TopologyAffinityError"}}
    jobs.create("job", build_spec(2, tolerated))
    made: set[str] = set()
    changes = itertools.cycle((3, 2))
    began = changed = time.monotonic()
    while time.monotonic() - began < 30:
        made |= {pod["metadata"]["uid"] for pod in jobs.pods("job")}
        if time.monotonic() - changed > 2:
            jobs.scale("job", next(changes))
            changed = time.monotonic()
        time.sleep(0.05)
    assert len(made) <= 13, "the first ones, and ten in a minute"
    told = wait_for(lambda: read_told(jobs, "BackOff"), "it is told")
    assert "TopologyAffinityError" in told


@together
def test_a_container_beside_the_trainer_that_needs_more_memory_is_told(lab: Lab) -> None:
    jobs = lab("beside")
    spec = build_spec(1)
    proxy = {"name": "proxy", "image": f"{light_nodes.HERE}proxy:1", "command": ["sleep", "1000"]}
    spec["template"]["spec"]["containers"].insert(0, proxy)
    spec["template"]["metadata"] = {"annotations": {"elasticjob.dev/trainer-container": "trainer"}}
    jobs.create("job", spec)
    await_healthy(jobs, 1)
    (pod,) = jobs.pods("job")
    states = pod["status"]["containerStatuses"]
    beside: dict[str, Any] = next(one for one in states if one["name"] == "proxy")
    beside |= {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "ready": False}
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}/status"
    jobs.kube.request("PATCH", path, {"status": {"containerStatuses": states}}, content_type=MERGE)
    told = wait_for(lambda: read_told(jobs, "SidecarFailed"), "it is told")
    assert "container 'proxy' ended with exit code 137 [OOMKilled]" in told
    assert "resources.limits.memory" in told
    assert jobs.condition("job", "Running")["status"] == "True", "the trainer goes on"


@pytest.mark.parametrize(
    ("field", "change", "words"),
    [
        pytest.param("containers", {"image": "registry.example.com/logs:gone"}, "logs:gone", id="no image"),
        pytest.param(
            "containers", {"envFrom": [{"secretRef": {"name": "no-such-key"}}]}, "no-such-key", id="no secret"
        ),
        pytest.param("initContainers", {"command": ["false"]}, "again and again", id="ends again and again"),
    ],
)
@together
def test_a_container_beside_the_trainer_that_does_not_run_is_told(
    lab: Lab, field: str, change: dict[str, Any], words: str
) -> None:
    """The trainer goes on, and nobody would look."""
    if field == "initContainers" and parse_version(lab.cluster.version) < (1, 29):
        pytest.skip("init containers that go on are sidecars from Kubernetes 1.29 on")
    jobs = lab(f"not-beside-{words.replace(':', '-').replace(' ', '-')}")
    spec = build_spec(1)
    beside = {"name": "beside", "image": f"{light_nodes.HERE}beside:1", "command": ["sleep", "1000"], **change}
    spec["template"]["spec"].setdefault(field, []).append(
        {**beside, **({"restartPolicy": "Always"} if field == "initContainers" else {})}
    )
    jobs.create("job", spec)
    jobs.await_world("job", 1)
    told = wait_for(lambda: read_told(jobs, "SidecarFailed"), "it is told", timeout=30)
    assert "'beside'" in told
    assert words in told
    assert jobs.condition("job", "Running")["status"] == "True"


@together
def test_a_pull_secret_that_comes_later(lab: Lab) -> None:
    jobs = lab("pulls")
    spec = build_spec(2, {"imagePullSecrets": [{"name": "regcred"}]})
    spec["template"]["spec"]["containers"][0]["image"] = f"{light_nodes.PRIVATE}train:1"
    jobs.create("job", spec)
    told = wait_for(lambda: read_told(jobs, "ImagePullFailed"), "it is told")
    assert "private/train:1" in told
    assert "regcred" in told, "where else to look"
    secret = {"metadata": {"name": "regcred"}, "type": "kubernetes.io/dockerconfigjson",
              "stringData": {".dockerconfigjson": '{"auths": {}}'}}  # fmt: skip
    jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/secrets", secret)
    assert not await_healthy(jobs, 2)["restarts"].get("total")


@together
def test_a_volume_that_is_lost_while_the_job_trains_is_told_when_it_grows(lab: Lab) -> None:
    jobs = lab("volumes")
    path = f"/api/v1/namespaces/{jobs.namespace}/configmaps"
    settings = {"metadata": {"name": "settings"}, "data": {"lr": "1"}}
    jobs.kube.request("POST", path, settings)
    jobs.create("job", build_spec(2, {"volumes": [{"name": "s", "configMap": {"name": "settings"}}]}))
    jobs.await_world("job", 2)
    jobs.kube.request("DELETE", f"{path}/settings")
    jobs.scale("job", 3)
    assert 'configmap "settings" not found' in wait_for(lambda: read_told(jobs, "PodNotStarting"), "it is told")
    assert jobs.condition("job", "Running")["status"] == "True", "the others train on"
    jobs.kube.request("POST", path, settings)
    await_healthy(jobs, 3)


@pytest.mark.parametrize(
    "type", ["MaintenancePlanned", "MaintenanceInProgress", "DrainInProgress", "GracefulNodeShutdownInProgress"]
)
def test_new_pods_avoid_a_node_whose_condition_announces_its_end(lab: Lab, type: str) -> None:
    jobs = lab(f"life-{type.lower()}")
    if parse_version(jobs.cluster.version) < (1, 23):
        pytest.skip("the scheduler spreads pods rather than to prefer nodes before Kubernetes 1.23")
    jobs.create("job", build_spec(2))
    before = await_healthy(jobs, 2)
    node = before["rendezvous"]["members"][0]["node"]
    path = f"/api/v1/nodes/{node}/status"
    condition = {"type": type, "status": "True", "reason": "Planned", "message": "a new kernel"}
    jobs.kube.request("PATCH", path, {"status": {"conditions": [condition]}}, content_type=STRATEGIC)
    numbers = itertools.count()

    def is_known() -> bool:
        """Whether the operator has seen the condition: the pods of another job ask to avoid the node.

        Where they are tells nothing: a pod may be elsewhere by chance.
        """
        name = f"probe-{next(numbers)}"
        jobs.create(name, build_spec(1))
        jobs.await_world(name, 1)
        (pod,) = jobs.pods(name)
        jobs.delete(name)
        return node in json.dumps(pod["spec"].get("affinity"))

    try:
        wait_for(is_known, "new pods go elsewhere")
        jobs.scale("job", 6)
        after = await_healthy(jobs, 6)
        old = {member["uid"] for member in before["rendezvous"]["members"]}
        members = after["rendezvous"]["members"]
        assert old <= {member["uid"] for member in members}, "nobody leaves it"
        assert node not in {member["node"] for member in members if member["uid"] not in old}
    finally:
        ended = {"status": {"conditions": [{**condition, "status": "False"}]}}
        jobs.kube.request("PATCH", path, ended, content_type=STRATEGIC)


@together
def test_the_runtime_fits_wherever_the_trainer_fits(lab: Lab) -> None:
    """A LimitRange is about each container, and its message names none: nobody would look for one of the operator's."""
    jobs = lab("ranges")
    limit = {"type": "Container", "min": {"cpu": "1", "memory": "1Gi"}, "maxLimitRequestRatio": {"cpu": "2"}}
    body = {"metadata": {"name": "range"}, "spec": {"limits": [limit]}}
    jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/limitranges", body)
    amounts = {"cpu": "2", "memory": "2Gi"}
    spec = build_spec(2, runtimeInjection="Always")
    spec["template"]["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    jobs.create("job", spec)
    for pod in wait_for(lambda: p if len(p := jobs.pods("job")) == 2 else None, "both pods are admitted"):
        assert [c["name"] for c in pod["spec"]["initContainers"]] == ["elasticjob-runtime"]
        assert pod["status"]["qosClass"] == "Guaranteed", "as without the runtime: whoever pins CPUs asks for it"


def test_the_runtime_and_requirements_come_into_a_restricted_namespace(lab: Lab, tmp_path: Path) -> None:
    jobs = lab("restricted")
    if parse_version(jobs.cluster.version) < (1, 25):
        pytest.skip("the API server enforces Pod Security from Kubernetes 1.25 on")
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    jobs.kube.request("PATCH", "/api/v1/namespaces/restricted", label, content_type=MERGE)
    pod = {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}}
    spec = build_spec(2, pod, runtimeInjection="Always")
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec["template"]["spec"]["containers"][0]["securityContext"] = own
    jobs.create("job", spec)
    (first, _) = wait_for(lambda: p if len(p := jobs.pods("job")) == 2 else None, "both pods are admitted")
    assert [c["name"] for c in first["spec"]["initContainers"]] == ["elasticjob-runtime"]

    (code := tmp_path / "code").mkdir()
    for name, text in (("train.py", ""), ("needs.txt", "numpy\n")):
        (code / name).write_text(text)
    manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "sent"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(json.dumps(manifest))
    sent = ["-f", str(tmp_path / "job.yaml"), "--code", str(code), "--requirements", str(code / "needs.txt")]
    assert run(["submit", *sent, "-n", jobs.namespace, "--kubeconfig", str(jobs.cluster.kubeconfig)]) == 0
    (first, _) = wait_for(lambda: p if len(p := jobs.pods("sent")) == 2 else None, "both pods are admitted")
    assert {c["name"] for c in first["spec"]["initContainers"]} == {"elasticjob-packages", "elasticjob-runtime"}
