"""What admission has changed in a new pod of what its trainer needs, and what is no change."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from controller.builders import make_job, make_spec
from controller.counted_work import count_work
from elasticjob_operator.api import names
from elasticjob_operator.apply import alterations, manifests
from elasticjob_operator.plan.values import NewPod

Pod = dict[str, Any]
Change = Callable[[Pod], object]


# Of each kind one, by name.
SOURCES: Pod = {
    "files": {"configMap": {"name": "files", "items": [{"key": "a", "path": "a"}, {"key": "b", "path": "b"}]}},
    "keys": {"secret": {"secretName": "keys", "optional": False}},
    "share": {"nfs": {"server": "nas", "path": "/data", "readOnly": False}},
    "disk": {"csi": {"driver": "d", "volumeAttributes": {"key": "hunter2"}}},
    "model": {"image": {"reference": "docker.io/team/model:v3", "pullPolicy": "IfNotPresent"}},
    "large": {"ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1024Gi"}}}}}},
    "mixed": {"projected": {"sources": [{"secret": {"name": "a"}}, {"configMap": {"name": "b"}}]}},
}


def build_pod() -> Pod:
    trainer = {
        "name": "trainer",
        "image": "docker.io/team/train:v3",
        "command": ["torchrun"],
        "args": ["train.py", "--lr", "0.1"],
        "env": [{"name": "LR", "value": "0.1"}, {"name": "EMPTY", "value": ""}],
        "volumeMounts": [{"name": "data", "mountPath": "/data/"}],
        "resources": {"limits": {"nvidia.com/gpu": 2}},
    }
    pod = {
        "containers": [trainer, {"name": "logs", "image": "logs:1"}],
        "initContainers": [{"name": "download", "image": "get:1"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "more", "persistentVolumeClaim": {"claimName": "more"}},
            {"name": "tmp"},
            *({"name": name, **source} for name, source in SOURCES.items()),
        ],
    }
    job = make_job(make_spec(template={"spec": pod}, checkpoints={"path": "/ckpt", "sizeLimit": "1024Mi"}))
    assert job.spec is not None
    settings = manifests.Settings(hub_url="wss://hub:1", tls=True, runtime_image="runtime:1")
    return manifests.build_pod(job, job.spec, NewPod(0), settings)


def trainer_of(pod: Pod) -> Pod:
    return next(one for one in pod["spec"]["containers"] if one["name"] == "trainer")


def set_variable(name: str, value: str | None) -> Change:
    def change(pod: Pod) -> None:
        trainer = trainer_of(pod)
        kept = [one for one in trainer["env"] if one["name"] != name]
        trainer["env"] = kept if value is None else [*kept, {"name": name, "value": value}]

    return change


def set_field(**fields: Any) -> Change:
    return lambda pod: trainer_of(pod).update(fields)


def unmount(path: str) -> Change:
    def change(pod: Pod) -> None:
        trainer = trainer_of(pod)
        trainer["volumeMounts"] = [one for one in trainer["volumeMounts"] if one["mountPath"] != path]

    return change


def set_volume(name: str, **source: Any) -> Change:
    def change(pod: Pod) -> None:
        volumes = pod["spec"]["volumes"]
        pod["spec"]["volumes"] = [{"name": name, **source} if one["name"] == name else one for one in volumes]

    return change


def change_source(name: str, *path: str | int, to: Any) -> Change:
    """Another value at this place of a volume."""

    def change(pod: Pod) -> None:
        inner = next(one for one in pod["spec"]["volumes"] if one["name"] == name)
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = to

    return change


def remount(path: str, volume: str, **source: Any) -> Change:
    """Another volume, or a new one, is mounted where that was."""

    def change(pod: Pod) -> None:
        next(one for one in trainer_of(pod)["volumeMounts"] if one["mountPath"] == path)["name"] = volume
        if source:
            pod["spec"]["volumes"].append({"name": volume, **source})

    return change


def feed(pod: Pod) -> None:
    """As JuiceFS and Fluid do where nodes take no drivers: a container brings what is in the claim."""
    set_volume("data", emptyDir={})(pod)
    mount = {"name": "data", "mountPath": "/data", "mountPropagation": "Bidirectional"}
    pod["spec"]["containers"].append({"name": "fuse", "image": "fuse:1", "volumeMounts": [mount]})


def default(pod: Pod) -> None:
    """What the API server, LimitRanges, meshes and clouds add to any pod."""
    spec, trainer = pod["spec"], trainer_of(pod)
    spec["containers"].insert(0, {"name": "istio-proxy", "image": "istio:1"})
    spec["initContainers"].insert(0, {"name": "istio-init", "image": "istio:1"})
    spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
    spec["volumes"].append({"name": "kube-api-access", "projected": {"sources": []}})
    spec["securityContext"], spec["priority"] = {"fsGroup": 1}, 5
    set_volume("tmp", emptyDir={})(pod)
    set_volume("data", persistentVolumeClaim={"claimName": "data", "readOnly": False})(pod)
    change_source("files", "configMap", "defaultMode", to=420)(pod)
    change_source("keys", "secret", "defaultMode", to=420)(pod)
    change_source("share", "nfs", "readOnly", to=None)(pod)
    change_source("large", *LARGE, to={"requests": {"storage": "1Ti"}})(pod)
    change_source("large", "ephemeral", "volumeClaimTemplate", "metadata", to={"creationTimestamp": None})(pod)
    change_source("model", "image", "pullPolicy", to="Always")(pod)
    change_source("mixed", "projected", "defaultMode", to=420)(pod)
    trainer["volumeMounts"].append({"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io"})
    trainer["resources"] = {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}, "requests": {"nvidia.com/gpu": "2"}}
    trainer["env"] += [{"name": "HTTP_PROXY", "value": "http://proxy:1"}]
    for variable in trainer["env"]:
        if variable.get("value") == "":
            del variable["value"]
        if field := variable.get("valueFrom", {}).get("fieldRef"):
            field["apiVersion"] = "v1"
    for volume in spec["volumes"]:
        if volume.get("emptyDir", {}).get("sizeLimit"):
            volume["emptyDir"]["sizeLimit"] = "1Gi"


def trace(pod: Pod) -> None:
    """As OpenTelemetry and Datadog instrument Python."""
    for one in trainer_of(pod)["env"]:
        if one["name"] == "PYTHONPATH":
            one["value"] = f"/otel:{one['value']}:/otel/more"


def add_source(pod: Pod) -> None:
    """As a mesh puts certificates of its own into a projected volume."""
    sources = next(one for one in pod["spec"]["volumes"] if one["name"] == "mixed")["projected"]["sources"]
    sources.insert(1, {"secret": {"name": "mesh"}})


def add_token(pod: Pod) -> None:
    """As a mesh puts a token of its own before the others."""
    sources = next(one for one in pod["spec"]["volumes"] if one["name"] == names.VOLUME_TOKEN)["projected"]["sources"]
    sources.insert(0, {"serviceAccountToken": {"audience": "mesh", "path": "mesh-token"}})


LARGE = ("ephemeral", "volumeClaimTemplate", "spec", "resources")
WRAPPED = ["vault-env", "torchrun", "train.py", "--lr", "0.1"]
SHELL = ["sh", "-c", "wait-for-mesh && exec torchrun train.py --lr 0.1"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(default, id="additions and defaults"),
        pytest.param(feed, id="a claim whose files a container brings is told, and kept"),
        pytest.param(trace, id="a path of others beside ours"),
        pytest.param(add_source, id="a source beside those of a projected volume"),
        pytest.param(add_token, id="a token before the operator's"),
        pytest.param(remount("/data/", "renamed", persistentVolumeClaim={"claimName": "data"}), id="a volume's name"),
        pytest.param(change_source("model", "image", "reference", to="mirror.test/model:v3"), id="a volume's mirror"),
        pytest.param(set_field(image="mirror.example/hub/team/train:v3"), id="a mirror"),
        pytest.param(set_field(image="mirror.example/hub/train@sha256:abc"), id="a mirror that pins the digest"),
        pytest.param(set_field(image="mirror.example/docker.io-team-train:v3"), id="a mirror with flat names"),
        pytest.param(set_field(command=["torchrun", "train.py"], args=["--lr", "0.1"]), id="the same words"),
        pytest.param(
            lambda pod: pod["spec"]["initContainers"].append(pod["spec"]["containers"].pop()), id="a native sidecar"
        ),
    ],
)
def test_what_is_no_alteration(change: Change) -> None:
    sent = build_pod()
    made = copy.deepcopy(sent)
    change(made)
    found = alterations.find_alterations(sent, made)
    assert [str(one) for one in found if one.is_vital] == []
    if change is not feed:
        assert alterations.tell(found) == ""


TOKEN = names.MOUNT_PATH
CERTIFICATE = {"configMap": {"name": "j-hub-ca", "items": []}}
ENV = "spec.containers[trainer].env"


def test_a_source_that_nobody_knows_is_dropped_by_the_api_server_and_changed_by_nobody() -> None:
    """The job's condition Warning says what it may have been meant to be."""
    sent, made = build_pod(), build_pod()
    set_volume("data", pvc={"claimName": "data"})(sent)
    set_volume("data", emptyDir={})(made)
    assert alterations.find_alterations(sent, made) == ()
    set_volume("data", hostPath={"path": "/d"})(made)
    assert alterations.describe(alterations.find_alterations(sent, made)) == "spec.volumes[data]: pvc became hostPath"


@pytest.mark.parametrize(
    ("change", "told", "is_vital"),
    [
        (set_variable(names.ENV_HUB_URL, None), f"{ENV}[ELASTICJOB_HUB_URL]: wss://hub:1 became nothing", True),
        (set_variable("PET_NNODES", "1"), "[PET_NNODES]: ", True),
        (set_variable(names.ENV_HANG_TIMEOUT, "0"), f"{ENV}[{names.ENV_HANG_TIMEOUT}]: its value became", False),
        (set_variable("LR", "0.2"), f"{ENV}[LR]: its value became another one", False),
        (set_variable("PYTHONPATH", "/otel"), "became /otel", True),
        (unmount(TOKEN), f"volumeMounts[{TOKEN}]: volume elasticjob-token became nothing", True),
        (unmount("/data/"), "volumeMounts[/data]: volume data became nothing", True),
        (unmount("/ckpt"), "volumeMounts[/ckpt]: volume elasticjob-checkpoints became nothing", True),
        (unmount("/dev/shm"), "volumeMounts[/dev/shm]: volume elasticjob-shm became nothing", False),
        (set_volume("data", emptyDir={}), "volumes[data]: persistentVolumeClaim became emptyDir", True),
        (set_volume("data", hostPath={"path": "/d"}), "persistentVolumeClaim became hostPath", False),
        (set_volume("data", persistentVolumeClaim={"claimName": "b"}), "Claim.claimName: data became b", False),
        (change_source("files", "configMap", "name", to="b"), "volumes[files].configMap.name: files became b", False),
        (
            change_source("files", "configMap", "items", to=[{"key": "b", "path": "b"}]),
            "volumes[files].configMap.items: its value became another one",
            False,
        ),
        (change_source("files", "configMap", "items", 1, "path", to="c"), "configMap.items[1].path: b became c", False),
        (change_source("keys", "secret", "secretName", to="b"), "secret.secretName: keys became b", False),
        (change_source("keys", "secret", "optional", to=True), "secret.optional: its value became another one", False),
        (change_source("share", "nfs", "path", to="/b"), "nfs.path: /data became /b", False),
        (change_source("share", "nfs", "readOnly", to=True), "nfs.readOnly: its value became another one", False),
        (
            change_source("disk", "csi", "volumeAttributes", "key", to="b"),
            "volumes[disk].csi.volumeAttributes.key: its value became another one",
            False,
        ),
        (change_source("model", "image", "reference", to="other:1"), "image.reference: docker.io/team/model:v3", False),
        (
            change_source("large", *LARGE, "requests", "storage", to="1Gi"),
            "resources.requests.storage: its value became another one",
            False,
        ),
        (change_source("mixed", "projected", "sources", 0, "secret", "name", to="c"), "secret.name: a became c", False),
        (remount("/data/", "tmp"), "volumeMounts[/data]: volume data became volume tmp", True),
        (remount("/data/", "more"), "volumeMounts[/data]: volume data became volume more", False),
        (remount("/ckpt", "tmp"), "volume elasticjob-checkpoints became volume tmp", False),
        (remount("/ckpt", "data"), "volume elasticjob-checkpoints became volume data", False),
        (remount(TOKEN, "mixed"), "volume elasticjob-token became volume mixed", True),
        (remount(names.RUNTIME_PATH, "tmp"), "volume elasticjob-runtime became volume tmp", True),
        (change_source("elasticjob-token", "projected", "sources", 1, to=CERTIFICATE), "volumes[elasticjob-tok", True),
        (change_source("elasticjob-token", "projected", "defaultMode", to=0o400), "projected.defaultMode: ", False),
        (
            change_source(
                *("elasticjob-token", "projected", "sources", 0, "serviceAccountToken", "expirationSeconds"), to=600
            ),
            "serviceAccountToken.expirationSeconds: its value became another one",
            False,
        ),
        (set_volume("elasticjob-token", projected={"sources": []}), "projected: elasticjob.dev token became", True),
        (set_volume("elasticjob-shm", emptyDir={}), "emptyDir.medium: Memory became nothing", False),
        (
            set_volume("elasticjob-shm", emptyDir={"medium": "Memory", "sizeLimit": "64Mi"}),
            "nothing became 64Mi",
            False,
        ),
        (set_field(command=["sleep"], args=["1"]), "command: torchrun train.py --lr 0.1 became sleep …", True),
        (set_field(command=WRAPPED, args=[]), "command: torchrun train.py --lr 0.1 became vault-env …", False),
        (set_field(command=SHELL, args=[]), "became sh …", False),
        (set_field(args=["train.py"]), "args: torchrun train.py --lr 0.1 became torchrun …", False),
        (set_field(image="docker.io/team/train:v2"), "image: docker.io/team/train:v3 became", False),
        (set_field(image="docker.io/team/other:v3"), "became docker.io/team/other:v3", False),
        (set_field(resources={}), "resources.limits[nvidia.com/gpu]: 2 became nothing", False),
        (lambda pod: pod["spec"]["initContainers"].clear(), "spec.initContainers[elasticjob-runtime]: ", True),
        (lambda pod: pod["spec"].update(restartPolicy="Always"), "spec.restartPolicy: Never became Always", True),
        (lambda pod: pod["spec"].update(subdomain=""), "spec.subdomain: ", False),
        (lambda pod: pod["spec"].update(terminationGracePeriodSeconds=5), "became 5", False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_trainer_needs_is_told(change: Change, told: str, is_vital: bool) -> None:
    sent = build_pod()
    made = copy.deepcopy(sent)
    change(made)
    found = alterations.find_alterations(sent, made)
    assert told in alterations.describe(found)
    assert any(one.is_vital for one in found) is is_vital
    assert told in alterations.tell(found)


def drop_label(pod: Pod) -> None:
    del pod["metadata"]["labels"][names.LABEL_JOB_UID]


def drop_owner(pod: Pod) -> None:
    del pod["metadata"]["ownerReferences"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(drop_label, f"metadata.labels[{names.LABEL_JOB_UID}]: ", id="a mark"),
        pytest.param(drop_owner, "metadata.ownerReferences: its job became nothing", id="its owner"),
    ],
)
@pytest.mark.parametrize("is_read", [pytest.param(True, id="whole"), pytest.param(False, id="metadata only")])
def test_what_makes_a_pod_a_worker_is_compared_also_where_its_spec_is_too_large(
    change: Change, told: str, is_read: bool
) -> None:
    sent = build_pod()
    made = copy.deepcopy(sent)
    change(made)
    if not is_read:
        del made["spec"]
    (found,) = alterations.find_alterations(sent, made)
    assert found.is_vital
    assert told in str(found)


LOGS = {"name": "logs", "image": "logs:1", "volumeMounts": [{"name": "spool", "mountPath": "/spool"}]}
SPOOL = {"name": "spool", "hostPath": {"path": "/spool"}}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda pod: pod["spec"]["containers"].pop(), id="it is removed"),
        pytest.param(lambda pod: pod["spec"]["containers"][-1].pop("volumeMounts"), id="it has lost a mount"),
        pytest.param(set_volume("spool", emptyDir={}), id="its volume does not last"),
    ],
)
def test_a_sidecar_is_nothing_that_the_trainer_needs(change: Change) -> None:
    sent = build_pod()
    sent["spec"]["containers"].append(copy.deepcopy(LOGS))
    sent["spec"]["volumes"].append(SPOOL)
    made = copy.deepcopy(sent)
    change(made)
    (found,) = alterations.find_alterations(sent, made)
    assert not found.is_vital


@pytest.mark.parametrize("title", ["it's fine", "print('x')", "a\nb", 'say "x"'])
def test_a_line_for_a_shell_may_quote_the_words_of_the_command(title: str) -> None:
    sent = build_pod()
    set_field(args=["train.py", "--title", title])(sent)
    made = copy.deepcopy(sent)
    line = shlex.join([*trainer_of(sent)["command"], *trainer_of(sent)["args"]])
    set_field(command=["/bin/sh", "-c", f". /vault/secrets/env && TOKEN=hunter2 exec {line}"], args=[])(made)
    (found,) = alterations.find_alterations(sent, made)
    assert not found.is_vital
    assert "hunter2" not in str(found), "who reads a condition need not read pods"


@pytest.mark.parametrize(
    "change",
    [set_variable("LR", "hunter2"), change_source("disk", "csi", "volumeAttributes", "key", to="hunter3")],
    ids=["variable", "volume"],
)
def test_values_of_users_are_not_told(change: Change) -> None:
    """They may be secrets, and who reads a condition need not read pods."""
    sent = build_pod()
    made = copy.deepcopy(sent)
    change(made)
    told = alterations.tell(alterations.find_alterations(sent, made))
    assert told
    assert "hunter" not in told


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("env", {"name": "V{}", "value": "1"}),
        ("env", {"name": "V{}", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}),
        ("volumeMounts", {"name": "tmp", "mountPath": "/m{}"}),
        ("volumes", {"name": "v{}", "emptyDir": {}}),
        ("volumes", {"name": "v{}", "persistentVolumeClaim": {"claimName": "c"}}),
    ],
)
def test_what_has_not_changed_costs_little(field: str, item: Pod) -> None:
    """There may be thousands of each."""

    def count(number: int) -> int:
        sent = build_pod()
        text = json.dumps(item)
        items = [json.loads(text.replace("{}", str(n))) for n in range(number)]
        (sent["spec"] if field == "volumes" else trainer_of(sent))[field] += items
        made = copy.deepcopy(sent)
        return count_work(lambda: alterations.find_alterations(sent, made))

    assert count(200) - count(100) <= 100 * MOST_STEPS


MOST_STEPS = 130  # instructions for each item


def test_a_pod_of_which_much_has_changed_is_told_in_short() -> None:
    sent = build_pod()
    trainer_of(sent)["env"] += [{"name": f"V{n}", "value": "1"} for n in range(1000)]
    made = copy.deepcopy(sent)
    set_field(env=[], command=["x" * 100_000], args=[])(made)
    found = alterations.find_alterations(sent, made)
    assert found[0].is_vital, "what matters comes first"
    assert len(alterations.tell(found)) < 8_000
