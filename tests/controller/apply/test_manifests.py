"""The objects that are sent: the user's fields take precedence, nothing adds privileges, gangs have their minimum."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from controller.builders import TEMPLATE, make_job, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.apply import manifests
from elasticjob_operator.apply.alterations import find_alterations
from elasticjob_operator.apply.manifests import Settings
from elasticjob_operator.model.observe import observe_pod
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.children import find_gang, wanted_children
from elasticjob_operator.plan.plan import Child, Config, Kind, NewPod
from elasticjob_operator.pool.capacity import Pool, Rate

ANNOTATED = {names.ANNOTATION_TRAINER: "other"}
SETTINGS = Settings(hub_url="wss://10.96.0.7:8443", tls=True, runtime_image="runtime:1")


def template(**container: Any) -> dict[str, Any]:
    made = copy.deepcopy(TEMPLATE)
    made["spec"]["containers"][0].update(container)
    return made


def build(spec: api.Spec | None = None, settings: Settings = SETTINGS, **new: Any) -> dict[str, Any]:
    spec = spec or make_spec()
    return manifests.build_pod(make_job(spec), spec, NewPod(**{"index": 2, **new}), settings)


def trainer(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in trainer(pod)["env"]}


def test_a_built_pod_is_observed_as_ours() -> None:
    pod = build()
    pod["metadata"] |= {"uid": "p1"}
    seen = observe_pod(pod)
    assert seen is not None
    assert (seen.name, seen.job, seen.job_uid, seen.index) == ("digits-worker-2", "digits", "job-uid", 2)


@pytest.mark.parametrize("annotations", [pytest.param({}, id="the first"), pytest.param(ANNOTATED, id="the annotated")])
def test_a_pod_names_its_trainer_whatever_others_put_in_front(annotations: dict[str, str]) -> None:
    """Meshes that hold the application until their proxy runs put it in front of all containers."""
    made = template()
    made["metadata"] = {"annotations": annotations}
    made["spec"]["containers"].append({"name": "other", "image": "other:1"})
    expected = annotations.get(names.ANNOTATION_TRAINER, made["spec"]["containers"][0]["name"])
    pod = build(make_spec(template=made))
    pod["metadata"] |= {"uid": "p1"}
    pod["spec"]["containers"].insert(0, {"name": "proxy", "image": "proxy:1"})
    running, waiting = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, {"waiting": {"reason": "ErrImagePull"}}
    states = {"proxy": running, "other": running, made["spec"]["containers"][0]["name"]: running} | {expected: waiting}
    pod["status"] = {"phase": "Running", "containerStatuses": [{"name": n, "state": s} for n, s in states.items()]}
    seen = observe_pod(pod)
    assert seen is not None
    assert (seen.waiting, seen.started) == ("ErrImagePull", False)


def test_a_checkpoint_directory_and_its_copies_share_one_volume() -> None:
    wanted = {"path": "/checkpoints", "replicas": 2, "medium": "Memory", "sizeLimit": "2Gi"}
    pod = build(make_spec(checkpoints=wanted))
    assert {"name": "elasticjob-checkpoints", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in pod["spec"][
        "volumes"
    ]
    mounts = {m["mountPath"]: (m["name"], m["subPath"]) for m in trainer(pod)["volumeMounts"] if "subPath" in m}
    assert mounts == {
        "/checkpoints": ("elasticjob-checkpoints", "files"),
        "/var/run/elasticjob.dev/copies": ("elasticjob-checkpoints", "copies"),
    }
    variables = {name: value for name, value in environment(pod).items() if "CHECKPOINT" in name}
    assert variables == {
        "ELASTICJOB_CHECKPOINTS": "/checkpoints",
        "ELASTICJOB_CHECKPOINT_COPIES": "/var/run/elasticjob.dev/copies",
        "ELASTICJOB_CHECKPOINT_REPLICAS": "2",
        "ELASTICJOB_CHECKPOINT_BYTES": str(2 << 30),
    }


def test_a_pod_begins_where_the_other_job_archived_when_this_one_started() -> None:
    checkpoints = {"path": "/checkpoints", "archive": {"to": "s3://bucket"}, "from": {"job": "other", "step": 7}}
    spec = make_spec(checkpoints=checkpoints)

    def variables(**origin: str) -> dict[str, Any]:
        status = api.Status(origin=api.OriginStatus(**origin) if origin else None)
        found = environment(manifests.build_pod(make_job(spec, status), spec, NewPod(0), SETTINGS))
        return {name: value for name, value in found.items() if name.startswith("ELASTICJOB_ARCHIVE_FROM")}

    assert variables(job="other", url="s3://bucket/ns/other/uid") == {
        "ELASTICJOB_ARCHIVE_FROM": "s3://bucket/ns/other/uid",
        "ELASTICJOB_ARCHIVE_FROM_STEP": "7",
    }
    assert variables(job="before", url="s3://bucket/ns/before/uid") == {}
    assert variables() == {}


def test_only_the_kubelet_reads_the_credentials_of_an_archive() -> None:
    archive = {"to": "s3://bucket/runs/", "everySeconds": 60, "keep": 5, "credentialsSecret": "s3"}
    origin = {"archive": "s3://bucket/runs/ns/other/uid", "step": 7}
    pod = build(make_spec(checkpoints={"path": "/checkpoints", "archive": archive, "from": origin}))
    secret = {"secretName": "s3", "optional": True, "defaultMode": 0o444}
    assert {"name": "elasticjob-archive", "secret": secret} in pod["spec"]["volumes"]
    assert "secretKeyRef" not in str(pod), "the script's environment has no credentials"
    variables = {name: value for name, value in environment(pod).items() if "ARCHIVE" in name}
    assert variables == {
        "ELASTICJOB_ARCHIVE": "s3://bucket/runs/default/digits/job-uid",
        "ELASTICJOB_ARCHIVE_EVERY_SECONDS": "60",
        "ELASTICJOB_ARCHIVE_KEEP": "5",
        "ELASTICJOB_ARCHIVE_FROM": "s3://bucket/runs/ns/other/uid",
        "ELASTICJOB_ARCHIVE_FROM_STEP": "7",
        "ELASTICJOB_ARCHIVE_CREDENTIALS": "/var/run/secrets/elasticjob.dev-archive",
    }
    without = build(make_spec(checkpoints={"path": "/checkpoints", "archive": {"to": "s3://bucket"}}))
    assert "ELASTICJOB_ARCHIVE_CREDENTIALS" not in environment(without), "the pod's identity counts"


def test_a_job_without_checkpoints_gets_nothing_for_them() -> None:
    assert "checkpoint" not in str(build()).lower()


def test_a_pod_belongs_to_its_job() -> None:
    (owner,) = build()["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("ElasticJob", "job-uid", True)
    assert owner["blockOwnerDeletion"] is False, "deleting a job never waits for us"


def test_the_template_is_not_changed() -> None:
    spec = make_spec()
    before = copy.deepcopy(spec.template)
    build(spec)
    assert spec.template == before


def test_cpus_that_only_the_kubelet_knows_are_left_to_it() -> None:
    """A LimitRange may add them to the pod; an amount in the template is computed as before."""
    source = {"containerName": "worker", "resource": "limits.cpu"}
    assert environment(build(make_spec(nprocPerNode="cpu")))["PET_NPROC_PER_NODE"] == {"resourceFieldRef": source}
    for kind in ("limits", "requests"):
        worker = {"name": "worker", "image": "train:1", "resources": {kind: {"cpu": "3500m"}}}
        spec = make_spec(nprocPerNode="cpu", template={"spec": {"containers": [worker]}})
        assert environment(build(spec))["PET_NPROC_PER_NODE"] == "3"


def test_environment_of_the_operators_rendezvous() -> None:
    env = environment(build(make_spec(nprocPerNode=3)))
    assert env["PET_RDZV_BACKEND"] == "elasticjob"
    assert env["PET_NNODES"] == "2:4"
    assert env["PET_NPROC_PER_NODE"] == "3"
    assert env["ELASTICJOB_HUB_URL"] == "wss://10.96.0.7:8443"
    assert env["ELASTICJOB_REPLICA_INDEX"] == "2"
    assert env["ELASTICJOB_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert env["ELASTICJOB_CA_FILE"] == "/var/run/secrets/elasticjob.dev/ca.crt"
    assert "ELASTICJOB_STRAGGLER_SECONDS" not in env, "nothing is measured unless the job asks for it"
    assert "ELASTICJOB_COMPARE_EVERY_STEPS" not in env
    rule = {"name": "Ends", "when": {"log": "(?:error|$(HOME))$"}}
    looked_for = environment(build(make_spec(health={"rules": [rule]})))["ELASTICJOB_LOG_RULES"]
    assert "$" not in looked_for, "the kubelet would replace it"
    assert json.loads(looked_for) == [{"rule": "Ends", "pattern": rule["when"]["log"]}]  # type: ignore[index]
    assert "ELASTICJOB_LOG_RULES" not in env
    compared = environment(build(make_spec(health={"stragglers": "Report", "compareEverySteps": 100})))
    assert compared["ELASTICJOB_COMPARE_EVERY_STEPS"] == "100"
    assert compared["ELASTICJOB_STRAGGLER_SECONDS"] == "60"


def test_a_traced_job_tells_its_workers_the_span_of_the_job_unless_they_have_another() -> None:
    job, spec = replace(make_job(), uid="7c0e3ec4-5d27-4be6-9a37-3c7a9f2c1e11"), make_spec()
    traced = replace(SETTINGS, is_traced=True)
    pod = manifests.build_pod(job, spec, NewPod(0), traced)
    assert environment(pod)["TRACEPARENT"] == "00-7c0e3ec45d274be69a373c7a9f2c1e11-8000000000000000-01"
    assert "TRACEPARENT" not in environment(build())
    theirs = make_spec(template=template(env=[{"name": "TRACEPARENT", "value": "00-a-b-01"}]))
    assert environment(build(theirs, traced))["TRACEPARENT"] == "00-a-b-01"


def test_workers_of_pods_with_devices_can_be_forked() -> None:
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    assert name not in environment(build(make_spec()))
    template = copy.deepcopy(TEMPLATE)
    trainer = template["spec"]["containers"][0]
    trainer["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    assert environment(build(make_spec(template=template)))[name] == "1", "torchrun looks for devices before it forks"
    trainer["env"] = [{"name": name, "value": "0"}]
    assert environment(build(make_spec(template=template)))[name] == "0", "what the user says takes precedence"


@pytest.mark.parametrize(
    ("rendezvous", "expected"),
    [
        pytest.param(
            {"backend": "c10d"},
            {
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": "digits-worker-0.digits-workers.default:29400",
                "PET_LOCAL_ADDR": "$(ELASTICJOB_POD_IP)",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            },
            id="c10d",
        ),
        pytest.param(
            {"backend": "etcd-v2", "endpoint": "etcd:2379", "conf": {"protocol": "https"}},
            {"PET_RDZV_BACKEND": "etcd-v2", "PET_RDZV_ENDPOINT": "etcd:2379", "PET_RDZV_CONF": "protocol=https"},
            id="etcd",
        ),
        pytest.param(
            {"backend": "static"},
            {
                "PET_RDZV_BACKEND": "static",
                "PET_NNODES": "4",
                "PET_NODE_RANK": "2",
                "PET_MASTER_ADDR": "digits-worker-0.digits-workers.default",
                "PET_MASTER_PORT": "29400",
            },
            id="static",
        ),
    ],
)
def test_environment_of_torchs_own_rendezvous(rendezvous: dict[str, Any], expected: dict[str, str]) -> None:
    env = environment(build(make_spec(rendezvous=rendezvous)))
    assert expected.items() <= env.items()


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_the_default_endpoint_is_the_first_pods_name_in_dns(backend: str) -> None:
    """`hostname.subdomain.namespace`, where a headless Service has the name of the subdomain."""
    spec = make_spec(rendezvous={"backend": backend})
    first = build(spec, index=0)
    env = environment(first)
    host = env.get("PET_MASTER_ADDR") or env["PET_RDZV_ENDPOINT"].partition(":")[0]
    body = first["spec"]
    assert host == f"{body['hostname']}.{body['subdomain']}.{first['metadata']['namespace']}"
    service = manifests.build_child(make_job(spec), child(Kind.SERVICE, spec))
    assert service["metadata"]["name"] == body["subdomain"]


def test_what_the_user_wrote_wins() -> None:
    made = template(env=[{"name": "PET_NNODES", "value": "9"}, {"name": "MINE", "value": "1"}])
    made["spec"] |= {"terminationGracePeriodSeconds": 7, "hostname": "mine", "automountServiceAccountToken": True}
    made["metadata"] = {"labels": {"app": "x"}, "annotations": {"karpenter.sh/do-not-disrupt": "false"}}
    pod = build(make_spec(template=made))
    assert environment(pod)["PET_NNODES"] == "9"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 7
    assert pod["spec"]["hostname"] == "mine"
    assert pod["spec"]["automountServiceAccountToken"] is True
    assert pod["metadata"]["labels"]["app"] == "x"
    assert pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "false"


def test_defaults_of_a_pod() -> None:
    body = build()["spec"]
    assert body["restartPolicy"] == "Never"
    assert body["terminationGracePeriodSeconds"] == 35, "the agent stops its workers before the kubelet does"
    assert body["automountServiceAccountToken"] is False
    assert "securityContext" not in body, "nothing adds or takes privilege"
    assert "hostNetwork" not in body


@pytest.mark.parametrize("empty", ["", None])
def test_what_a_chart_leaves_empty_is_as_if_it_were_not_there(empty: str | None) -> None:
    """The API server looks an empty class up by its name, and answers that a name may not be empty."""
    plain = build()
    written = template(terminationMessagePolicy=empty)
    written["spec"] |= dict.fromkeys(("hostname", "subdomain", "runtimeClassName", "schedulerName"), empty)
    written["spec"] |= dict.fromkeys(("terminationGracePeriodSeconds", "automountServiceAccountToken"))
    made = build(make_spec(template=written))
    assert made["spec"] == plain["spec"]


def test_the_token_is_for_the_hub_alone() -> None:
    volume = next(v for v in build()["spec"]["volumes"] if v["name"] == "elasticjob-token")
    token = volume["projected"]["sources"][0]["serviceAccountToken"]
    assert token["audience"] == "elasticjob.dev"


@pytest.mark.parametrize(
    ("path", "is_theirs"), [("/dev/shm", True), ("/dev/shm/", True), ("/dev/shm/cache", False), ("/dev/shmem", False)]
)
def test_shm_is_sized_for_data_loaders_unless_the_template_has_one(path: str, is_theirs: bool) -> None:
    assert {"name": "elasticjob-shm", "emptyDir": {"medium": "Memory"}} in build()["spec"]["volumes"]
    theirs = template(volumeMounts=[{"name": "big", "mountPath": path}])
    theirs["spec"]["volumes"] = [{"name": "big", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]
    names = [v["name"] for v in build(make_spec(template=theirs))["spec"]["volumes"]]
    assert ("elasticjob-shm" not in names) is is_theirs


@pytest.mark.parametrize(
    ("fields", "settings", "injected"),
    [
        pytest.param({}, SETTINGS, True, id="auto"),
        pytest.param({"runtimeInjection": "Never"}, SETTINGS, False, id="never"),
        pytest.param({}, replace(SETTINGS, runtime_image=""), False, id="no-runtime-image"),
        pytest.param({}, replace(SETTINGS, worker_image="train:1"), False, id="our-own-image"),
        pytest.param({"rendezvous": {"backend": "c10d"}}, SETTINGS, False, id="torchs-own-rendezvous"),
        pytest.param({"runtimeInjection": "Always", "rendezvous": {"backend": "c10d"}}, SETTINGS, True, id="always"),
    ],
)
def test_runtime_injection(fields: dict[str, Any], settings: Settings, injected: bool) -> None:
    pod = build(make_spec(**fields), settings)
    assert ("initContainers" in pod["spec"]) is injected
    assert ("PYTHONPATH" in environment(pod)) is injected


@pytest.mark.parametrize("kind", ["initContainers", "containers"])
def test_the_container_that_copies_the_runtime_gives_way_to_one_of_the_template(kind: str) -> None:
    theirs = {"name": "elasticjob-runtime", "image": "mine:1"}
    made = template()
    made["spec"].setdefault(kind, []).append(theirs)
    pod = build(make_spec(template=made))
    found = [c["name"] for k in ("initContainers", "containers") for c in pod["spec"][k]]
    assert len(set(found)) == len(found)
    assert theirs in pod["spec"][kind]
    installer = pod["spec"]["initContainers"][0]
    lost = {**pod, "spec": {**pod["spec"], "initContainers": pod["spec"]["initContainers"][1:]}}
    (told,) = find_alterations(pod, lost)
    assert (told.field, told.is_vital) == (f"spec.initContainers[{installer['name']}]", True)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        pytest.param(
            {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 1}},
            {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}},
            id="without devices",
        ),
        pytest.param(
            {"limits": {"ephemeral-storage": "1Gi"}, "claims": [{"name": "gpu"}]},
            {"limits": {"ephemeral-storage": "1Gi"}},
            id="without claims",
        ),
        pytest.param({}, {}, id="none"),
        pytest.param(None, {}, id="null"),
    ],
)
def test_the_runtime_is_copied_with_the_amounts_of_the_trainer(resources: Any, expected: dict[str, Any]) -> None:
    """Then it fits where the trainer fits, whatever a LimitRange says, and the pod keeps its QoS class."""
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0] |= {"resources": resources}
    pod = build(make_spec(template=template, runtimeInjection="Always"), replace(SETTINGS, runtime_image="r:1"))
    (installer,) = pod["spec"]["initContainers"]
    assert installer["resources"] == expected


def test_offenders_are_asked_last() -> None:
    affinity = build(avoid=("node1",))["spec"]["affinity"]["nodeAffinity"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity
    (term,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchExpressions"][0]["values"] == ["node1"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(["a", 300, None], ["a", 300, None], id="for the API server to refuse"),
        pytest.param([10, 1], [10, 1], id="weaker already"),
        pytest.param([100], [25], id="as strong"),
        pytest.param([100, 100, 50], [10, 10, 5], id="stronger together"),
        pytest.param([100, 1], [24, 1], id="none is lost"),
    ],
)
def test_no_wish_of_the_template_is_worth_a_node_that_fails(given: list[Any], expected: list[Any]) -> None:
    """The scheduler adds up what a node fulfils. Where nothing is to be avoided, the wishes are as they were."""
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    template = copy.deepcopy(TEMPLATE)
    wishes = [{"weight": weight, "preference": {"matchExpressions": [ZONE]}} for weight in given]
    template["spec"]["affinity"] = {"nodeAffinity": {preferred: wishes}}
    spec = make_spec(template=template)
    *theirs, ours = build(spec, avoid=("node1",))["spec"]["affinity"]["nodeAffinity"][preferred]
    assert [term["weight"] for term in theirs] == expected
    assert (ours["weight"], ours["preference"]["matchExpressions"]) == (100, [HOSTS])
    assert build(spec)["spec"]["affinity"]["nodeAffinity"][preferred] == wishes


def test_cheap_nodes_are_preferred_where_the_pool_chooses() -> None:
    rates = (Rate(0.7, {"capacity-type": "spot"}), Rate(2.8, {"capacity-type": "on-demand"}), Rate(2.1))
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    settings = replace(SETTINGS, pools=(Pool("gpu", "nvidia.com/gpu", rates=rates),))
    pooled = make_spec(template=template, scaling={"mode": "Goodput"})
    affinity = build(pooled, settings, avoid=("node1",))["spec"]["affinity"]["nodeAffinity"]
    spot, faulty = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert spot["preference"]["matchExpressions"] == [{"key": "capacity-type", "operator": "In", "values": ["spot"]}]
    assert 0 < spot["weight"] < faulty["weight"]
    assert "affinity" not in build(make_spec(template=template), settings)["spec"], "its size is its user's"
    assert "affinity" not in build(pooled)["spec"], "no prices"


HOSTS = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node1"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}


@pytest.mark.parametrize(
    ("given", "terms"),
    [
        pytest.param(None, [[HOSTS]], id="none of the template's own"),
        pytest.param([[ZONE], []], [[ZONE, HOSTS], [HOSTS]], id="a node needs to match one of the template's"),
    ],
)
def test_a_job_can_refuse_faulty_nodes(given: list[list[Any]] | None, terms: list[list[Any]]) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    template = copy.deepcopy(TEMPLATE)
    if given is not None:
        own = {"nodeSelectorTerms": [{"matchExpressions": one} for one in given]}
        template["spec"]["affinity"] = {"nodeAffinity": {required: own}}
    spec = make_spec(template=template, health={"avoidNodes": "Required"})
    affinity = build(spec, avoid=("node1",))["spec"]["affinity"]["nodeAffinity"]
    assert affinity == {required: {"nodeSelectorTerms": [{"matchExpressions": one} for one in terms]}}
    assert given is not None or "affinity" not in build(spec)["spec"]


def test_the_runtime_is_mounted_where_the_cluster_can() -> None:
    pod = build(settings=replace(SETTINGS, is_runtime_volume=True))["spec"]
    assert "initContainers" not in pod
    (volume,) = [v for v in pod["volumes"] if v["name"] == "elasticjob-runtime"]
    assert volume["image"] == {"reference": "runtime:1", "pullPolicy": "IfNotPresent"}
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "elasticjob-runtime"]
    assert mount == {"name": "elasticjob-runtime", "mountPath": "/opt/elasticjob/runtime", "readOnly": True}
    assert environment({"spec": pod})["PYTHONPATH"] == "/opt/elasticjob/runtime/runtime/site-packages"


# --- children --------------------------------------------------------------------------------------------


def child(kind: Kind, spec: api.Spec, config: Config | None = None) -> Child:
    """One of the objects of a job that had a world."""
    job = make_job(spec, api.Status(rendezvous=make_world(), template_hash=spec.template_hash))
    return next(c for c in wanted_children(job, spec, config or Config()) if c.kind is kind)


def test_the_disruption_budget_keeps_min() -> None:
    spec = make_spec(3, 8)
    made = manifests.build_child(
        make_job(spec), child(Kind.DISRUPTION_BUDGET, spec), Served(frozenset({"policy/v1beta1"}))
    )
    assert made["apiVersion"] == "policy/v1beta1"
    assert made["spec"]["minAvailable"] == 3


def test_a_changed_minimum_is_another_digest() -> None:
    assert child(Kind.DISRUPTION_BUDGET, make_spec(2)).digest != child(Kind.DISRUPTION_BUDGET, make_spec(3)).digest


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, False, id="with our rendezvous pods meet by address"),
        pytest.param({"network": {"service": True}}, True, id="asked for"),
        pytest.param({"rendezvous": {"backend": "c10d"}}, True, id="c10d finds its host by name"),
        pytest.param({"rendezvous": {"backend": "static"}}, True, id="static, too"),
    ],
)
def test_there_is_a_service_where_somebody_needs_names(fields: dict[str, Any], expected: bool) -> None:
    spec = make_spec(**fields)
    kinds = [c.kind for c in wanted_children(make_job(spec), spec, Config())]
    assert (Kind.SERVICE in kinds) is expected


def test_the_service_is_headless_and_publishes_early() -> None:
    spec = make_spec(network={"service": True})
    made = manifests.build_child(make_job(spec), child(Kind.SERVICE, spec))
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.parametrize(
    ("scheduler", "group_version", "mark"),
    [
        pytest.param(
            "volcano",
            "scheduling.volcano.sh/v1beta1",
            ("annotations", "scheduling.k8s.io/group-name"),
            id="volcano",
        ),
        pytest.param(
            "scheduler-plugins-scheduler",
            "scheduling.x-k8s.io/v1alpha1",
            ("labels", "scheduling.x-k8s.io/pod-group"),
            id="scheduler-plugins",
        ),
    ],
)
def test_a_gang_is_min_replicas(scheduler: str, group_version: str, mark: tuple[str, str]) -> None:
    made = copy.deepcopy(TEMPLATE)
    made["spec"]["schedulerName"] = scheduler
    spec = make_spec(2, 8, template=made)
    group = manifests.build_child(make_job(spec), child(Kind.POD_GROUP, spec))
    assert (group["apiVersion"], group["kind"], group["spec"]) == (
        group_version,
        "PodGroup",
        {"minMember": 2},
    )  # the rest: test_gangs
    kind, key = mark
    inside = manifests.build_pod(make_job(spec), spec, NewPod(1, gang=find_gang(spec, Config())), SETTINGS)
    outside = manifests.build_pod(make_job(spec), spec, NewPod(2, gang=find_gang(spec, Config())), SETTINGS)
    assert inside["metadata"][kind][key] == "digits"
    assert key not in outside["metadata"][kind], "extras are scheduled one by one"


def test_no_gang_without_a_scheduler_that_knows_them() -> None:
    spec = make_spec()
    assert Kind.POD_GROUP not in [c.kind for c in wanted_children(make_job(spec), spec, Config())]


METRICS = [{"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "30"}}}]


@pytest.mark.parametrize("version", ["autoscaling/v2", "autoscaling/v2beta2"])
def test_an_autoscaler_has_the_bounds_of_the_policy(version: str) -> None:
    spec = make_spec(2, 8, elasticPolicy={"minReplicas": 2, "maxReplicas": 8, "metrics": METRICS})
    made = manifests.build_child(make_job(spec), child(Kind.AUTOSCALER, spec), Served(frozenset({version})))
    assert (made["apiVersion"], made["kind"], made["metadata"]["name"]) == (
        version,
        "HorizontalPodAutoscaler",
        "digits",
    )
    target = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "name": "digits"}
    assert made["spec"] == {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 8, "metrics": METRICS}


def test_host_network_has_no_policy() -> None:
    made = copy.deepcopy(TEMPLATE)
    made["spec"]["hostNetwork"] = True
    spec = make_spec(template=made)
    assert Kind.NETWORK_POLICY not in [c.kind for c in wanted_children(make_job(spec), spec, Config())]


@pytest.mark.parametrize(
    ("before", "after", "patch"),
    [
        pytest.param({"a": 1}, {"a": 1}, {}, id="same"),
        pytest.param({"a": 1}, {"a": 2}, {"a": 2}, id="changed"),
        pytest.param({"a": 1}, {}, {"a": None}, id="removed"),
        pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 3}}, id="inner"),
        pytest.param({"a": [1, 2]}, {"a": [1]}, {"a": [1]}, id="lists-are-replaced"),
    ],
)
def test_merge_patch(before: dict[str, Any], after: dict[str, Any], patch: dict[str, Any]) -> None:
    assert manifests.merge_patch(before, after) == patch


def test_pods_share_the_template_and_nobody_changes_it() -> None:
    """A thousand pods of a big template: what is the same in all of them is there once."""
    big = [{"name": f"V{i}", "value": "x"} for i in range(1000)] + [{"name": "PYTHONPATH", "value": "/mine"}]
    volumes = [{"name": "mine", "emptyDir": {}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "affinity": affinity,
            "volumes": volumes,
            "schedulerName": "volcano",
            "containers": [
                {"name": "worker", "image": "i", "env": big, "volumeMounts": [{"name": "mine", "mountPath": "/m"}]}
            ],
        },
    }
    before = copy.deepcopy(template)
    spec = make_spec(template=template, runtimeInjection="Always")
    settings = manifests.Settings(hub_url="wss://hub:1", tls=True, runtime_image="runtime:1")
    first, second = (
        manifests.build_pod(make_job(spec), spec, NewPod(i, avoid=("node9",)), settings)["spec"] for i in (0, 1)
    )
    assert spec.template == before
    assert first["containers"][0]["env"][-2] is second["containers"][0]["env"][-2]
    assert first["containers"][0]["env"][-1] == {
        "name": "PYTHONPATH",
        "value": "/mine:/opt/elasticjob/runtime/site-packages",
    }
    preferred = first["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [term["weight"] for term in preferred] == [1, 100]


@pytest.mark.parametrize(
    ("kind", "change", "patch"),
    [
        pytest.param(Kind.NETWORK_POLICY, {}, {}, id="as it was built"),
        pytest.param(
            Kind.NETWORK_POLICY,
            {"egress": [{}], "podSelector": {"matchLabels": {"nobody": "has"}}},
            {"egress": None, "podSelector": {"matchLabels": {"nobody": None}}},
            id="loosened",
        ),
        pytest.param(Kind.SERVICE, {"clusterIPs": ["None"]}, {}, id="what the API server fills in"),
        pytest.param(Kind.AUTOSCALER, {"behavior": {"scaleDown": {}}}, {}, id="a behaviour that a user gives"),
        pytest.param(Kind.SERVICE, {"publishNotReadyAddresses": False}, {"publishNotReadyAddresses": True}, id="ours"),
    ],
)
def test_what_others_changed_is_set_right(kind: Kind, change: dict[str, Any], patch: dict[str, Any]) -> None:
    wanted = manifests.build_child(make_job(), Child(kind, "digits-workers"))
    found = copy.deepcopy(wanted)
    found["spec"] = {**found["spec"], **change}
    if "podSelector" in change:  # a label that narrows the policy to no pod at all
        found["spec"]["podSelector"] = {
            "matchLabels": {**wanted["spec"]["podSelector"]["matchLabels"], **change["podSelector"]["matchLabels"]}
        }
    assert manifests.correct_child(kind, found, wanted) == ({"spec": patch} if patch else {})
    found["metadata"]["annotations"] = {"theirs": "stays"}
    marked = manifests.correct_child(kind, found, wanted)["metadata"]["annotations"]
    assert list(marked) == ["elasticjob.dev/digest"]
