"""Builds a worker pod: the template plus environment, token, shared memory and, on request, the runtime. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from elasticjob_operator import api, quantity
from elasticjob_operator.api import names
from elasticjob_operator.api.podtemplate import count_devices, leaves_nproc_to_pods, trainer_container
from elasticjob_operator.apply.manifests import affinity, gangs
from elasticjob_operator.apply.manifests.common import Object, Settings, metadata
from elasticjob_operator.failures import stragglers
from elasticjob_operator.history import spans
from elasticjob_operator.model.observe import Job, resolve_nproc
from elasticjob_operator.model.quota import Placement
from elasticjob_operator.plan.values import NewPod
from elasticjob_operator.pool.capacity import find_pool

# Torch's own rendezvous: the shortest constants that stay correct (docs/design.md says how they were found).
C10D_CONF = {"join_timeout": "600", "last_call_timeout": "1", "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}
_AMOUNTS: Final = ("cpu", "memory", "ephemeral-storage")
UNLIMITED_RESTARTS = "1000000"  # the operator enforces the restart budget of the job


def build_pod(job: Job, spec: api.Spec, new: NewPod, settings: Settings) -> Object:
    """The manifest of the worker pod with this replica index.

    Only the parts that differ are copied from the template; pods share the rest, which must not be modified.
    """
    theirs = spec.template.get("metadata") or {}
    described = metadata(job, names.pod_name(job.name, new.index))
    described["labels"] = {**(theirs.get("labels") or {}), **described["labels"], names.LABEL_INDEX: str(new.index)}
    described["annotations"] = {
        "karpenter.sh/do-not-disrupt": "true",
        **(theirs.get("annotations") or {}),
        names.ANNOTATION_TRAINER: trainer_container(spec.template),  # a webhook may put another container in front
        names.ANNOTATION_TEMPLATE_HASH: spec.template_hash,
        names.ANNOTATION_TEMPLATE_SHAPE: spec.shape.hash,
        **({names.ANNOTATION_RELEASE: settings.release} if settings.release else {}),
    }
    # Charts leave fields empty, which is as if they were not there, but for a class that is looked up by its name.
    body: Object = {name: value for name, value in spec.template["spec"].items() if value not in ("", None)}
    pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": described, "spec": body}
    body["restartPolicy"] = "Never"
    body.setdefault("hostname", names.host_name(job.name, new.index))
    body.setdefault("subdomain", names.service_name(job.name))
    grace = spec.elastic_policy.graceful_shutdown_timeout_seconds
    body.setdefault("terminationGracePeriodSeconds", grace + 5)  # the agent stops its workers before the kubelet does
    body.setdefault("automountServiceAccountToken", False)
    body.setdefault("enableServiceLinks", False)
    if spec.is_pooled:
        affinity.prefer_cheap(body, find_pool(settings.pools, spec.template))
    affinity.avoid(body, new.avoid, is_required=spec.health.avoid_nodes is api.AvoidNodes.REQUIRED)
    body["containers"] = [dict(c) for c in body["containers"]]
    trainer = next(c for c in body["containers"] if c["name"] == trainer_container(spec.template))
    trainer["terminationMessagePolicy"] = trainer.get("terminationMessagePolicy") or "FallbackToLogsOnError"
    told = {"name": names.ENV_TERMINATION_LOG, "value": trainer.get("terminationMessagePath") or names.TERMINATION_LOG}
    _add_environment(trainer, [*environment(job, spec, new.index, settings), told])
    _add_token(body, trainer, job, settings)
    _add_shm(body, trainer)
    if spec.checkpoints is not None:
        _add_checkpoints(body, trainer, job, spec.checkpoints)
    if wants_runtime(spec, trainer, settings):
        _add_runtime(body, trainer, settings)
    if new.placement is not None:
        _place(described, body, new.placement)
    gangs.tie(pod, job, spec, new)
    return pod


def environment(job: Job, spec: api.Spec, index: int, settings: Settings) -> list[Object]:
    """The trainer's environment variables: torchrun's `PET_*`, and the runtime's."""

    def field(path: str) -> Object:
        return {"fieldRef": {"fieldPath": path}}

    grace = spec.elastic_policy.graceful_shutdown_timeout_seconds
    variables: list[Object] = [
        {"name": names.ENV_NAME, "value": job.name},
        {"name": names.ENV_NAMESPACE, "value": job.namespace},
        {"name": names.ENV_UID, "value": job.uid},
        {"name": names.ENV_POD_NAME, "valueFrom": field("metadata.name")},
        {"name": names.ENV_POD_UID, "valueFrom": field("metadata.uid")},
        {"name": names.ENV_POD_IP, "valueFrom": field("status.podIP")},
        {"name": names.ENV_NODE_NAME, "valueFrom": field("spec.nodeName")},
        {"name": names.ENV_INDEX, "value": str(index)},
        {"name": names.ENV_GRACE_SECONDS, "value": str(grace)},
        {"name": names.ENV_HANG_TIMEOUT, "value": str(spec.health.hang_timeout_seconds)},
        {"name": names.ENV_PREFLIGHT, "value": spec.health.preflight.value},
        {"name": "PET_NPROC_PER_NODE", **_processes(spec)},
        {"name": "PET_RDZV_ID", "value": job.uid},
        {"name": "PET_MONITOR_INTERVAL", "value": "0.1"},
    ]
    if settings.is_traced:
        variables.append({"name": names.TRACEPARENT, "value": spans.describe_context(job.uid)})
    if count_devices(spec.template):
        # torchrun looks for devices in the process from which workers are forked. NVML tells without harm to a fork.
        variables.append({"name": "PYTORCH_NVML_BASED_CUDA_CHECK", "value": "1"})
    if spec.health.preflight is not api.Preflight.OFF:
        seconds = str(spec.health.preflight_timeout_seconds)
        variables.append({"name": names.ENV_PREFLIGHT_SECONDS, "value": seconds})
    if spec.health.compare_every_steps:
        variables.append({"name": names.ENV_COMPARE_EVERY_STEPS, "value": str(spec.health.compare_every_steps)})
    if listed := api.list_patterns(spec.health.rules or ()):
        variables.append({"name": names.ENV_LOG_RULES, "value": listed})
    if spec.health.stragglers is not None:
        variables.append({"name": names.ENV_STRAGGLER_SECONDS, "value": str(stragglers.WINDOW_SECONDS)})
    return variables + _rendezvous_environment(job, spec, index, settings)


def _processes(spec: api.Spec) -> Object:
    if not leaves_nproc_to_pods(spec.nproc_per_node, spec.template):
        return {"value": str(resolve_nproc(spec))}
    source = {"containerName": trainer_container(spec.template), "resource": "limits.cpu"}
    return {"valueFrom": {"resourceFieldRef": source}}


def _rendezvous_environment(job: Job, spec: api.Spec, index: int, settings: Settings) -> list[Object]:
    backend, conf = spec.rendezvous.backend, dict(spec.rendezvous.conf or {})
    first = f"{names.host_name(job.name, 0)}.{names.service_name(job.name)}.{job.namespace}"
    endpoint = spec.rendezvous.endpoint or f"{first}:{names.C10D_PORT}"
    elastic = f"{spec.min_replicas}:{spec.max_replicas}"
    if backend is api.RendezvousBackend.STATIC:
        host, _, port = endpoint.rpartition(":")
        values = {
            "PET_RDZV_BACKEND": "static",
            "PET_NNODES": str(spec.wanted),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": host,
            "PET_MASTER_PORT": port,
            "PET_MAX_RESTARTS": UNLIMITED_RESTARTS,
        }
    elif backend is api.RendezvousBackend.OPERATOR:
        values = {
            names.ENV_HUB_URL: settings.hub_url,
            names.ENV_TOKEN_FILE: names.TOKEN_PATH,
            "PET_RDZV_BACKEND": names.RENDEZVOUS_BACKEND,
            "PET_RDZV_ENDPOINT": settings.hub_url.partition("://")[2],
            "PET_NNODES": elastic,
            "PET_MAX_RESTARTS": UNLIMITED_RESTARTS,
        }
        if settings.tls:
            values[names.ENV_CA_FILE] = names.CA_PATH
    else:
        if backend is api.RendezvousBackend.C10D:
            conf = {**C10D_CONF, "is_host": "1" if index == 0 else "0", **conf}
        values = {
            "PET_RDZV_BACKEND": backend.value,
            "PET_RDZV_ENDPOINT": endpoint,
            "PET_NNODES": elastic,
            "PET_MAX_RESTARTS": UNLIMITED_RESTARTS,
            "PET_LOCAL_ADDR": f"$({names.ENV_POD_IP})",  # torch would give peers a host name, and DNS lags
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # with a shared store, no node can join a completed rendezvous
        }
    if conf:
        values["PET_RDZV_CONF"] = ",".join(f"{k}={v}" for k, v in conf.items())
    return [{"name": name, "value": value} for name, value in values.items()]


def _add_environment(container: Object, variables: list[Object]) -> None:
    """Put the operator's variables first, so that the user's can refer to them. The user's take precedence."""
    theirs = container.get("env") or []
    taken = {v.get("name") for v in theirs}
    container["env"] = [v for v in variables if v["name"] not in taken] + theirs


def _add_token(body: Object, trainer: Object, job: Job, settings: Settings) -> None:
    sources: list[Object] = [
        {
            "serviceAccountToken": {
                "audience": names.TOKEN_AUDIENCE,
                "expirationSeconds": settings.token_seconds,
                "path": "token",
            }
        }
    ]
    if settings.tls:
        ca = {"name": names.ca_config_map_name(job.name), "items": [{"key": "ca.crt", "path": "ca.crt"}]}
        sources.append({"configMap": ca})
    # Readable for any user of the image: the token is valid only for the hub and for this pod.
    volume = {"name": names.VOLUME_TOKEN, "projected": {"sources": sources, "defaultMode": 0o444}}
    mount = {"name": names.VOLUME_TOKEN, "mountPath": names.MOUNT_PATH, "readOnly": True}
    _mount(body, trainer, volume, mount)


def _mount(body: Object, trainer: Object, volume: Object, mount: Object) -> str:
    """Mount a volume of the operator's; returns its name, which gives way to those of the template."""
    name = _find_free(volume["name"], {one.get("name") for one in body.get("volumes") or ()})
    body["volumes"] = [*(body.get("volumes") or ()), {**volume, "name": name}]
    trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or ()), {**mount, "name": name}]
    return name


def _find_free(name: str, taken: Collection[Any]) -> str:
    while name in taken:
        name += "-0"
    return name


def _add_shm(body: Object, trainer: Object) -> None:
    """Data loaders pass tensors through /dev/shm; the runtime's default of 64 MiB is too small for them."""
    if any((m.get("mountPath") or "").rstrip("/") == "/dev/shm" for m in trainer.get("volumeMounts") or ()):  # noqa: S108
        return
    volume = {"name": names.VOLUME_SHM, "emptyDir": {"medium": "Memory"}}
    _mount(body, trainer, volume, {"name": names.VOLUME_SHM, "mountPath": "/dev/shm"})  # noqa: S108


def without_shm(pod: Object) -> Object | None:
    """The same pod without the operator's /dev/shm, for a webhook that mounts one; None if there is none."""
    body = pod["spec"]
    volumes = [str(v.get("name")) for v in body.get("volumes") or ()]
    ours = next((name for name in volumes if name.startswith(names.VOLUME_SHM)), None)
    mounts = [m for c in body["containers"] for m in c.get("volumeMounts") or () if m.get("name") == ours]
    if ours is None or [m.get("mountPath") for m in mounts] != ["/dev/shm"]:  # noqa: S108
        return None
    containers = [
        {**c, "volumeMounts": [m for m in c["volumeMounts"] if m.get("name") != ours]} if c.get("volumeMounts") else c
        for c in body["containers"]
    ]
    others = [v for v in body["volumes"] if v.get("name") != ours]
    return {**pod, "spec": {**body, "containers": containers, "volumes": others}}


def _add_checkpoints(body: Object, trainer: Object, job: Job, checkpoints: api.Checkpoints) -> None:
    """The script's directory, and beside it the copies that this pod holds for others: one volume with one limit."""
    empty: Object = {}
    variables = {
        names.ENV_CHECKPOINTS: checkpoints.path,
        names.ENV_CHECKPOINT_COPIES: names.COPIES_PATH,
        names.ENV_CHECKPOINT_REPLICAS: str(checkpoints.replicas),
    }
    if checkpoints.medium is api.CheckpointMedium.MEMORY:
        empty["medium"] = "Memory"
    if checkpoints.size_limit is not None:
        empty["sizeLimit"] = checkpoints.size_limit
        variables[names.ENV_CHECKPOINT_BYTES] = str(math.floor(quantity.parse(checkpoints.size_limit)))
    name = names.VOLUME_CHECKPOINTS
    name = _mount(body, trainer, {"name": name, "emptyDir": empty}, _part_of(name, checkpoints.path, "files"))
    trainer["volumeMounts"].append(_part_of(name, names.COPIES_PATH, "copies"))
    if checkpoints.archive is not None:
        url = names.archive_url(checkpoints.archive.to, job.namespace, job.name, job.uid)
        variables |= _add_archive(body, trainer, url, checkpoints.archive)
        variables |= _find_origin(job.status, checkpoints.from_)
    _add_environment(trainer, [{"name": name, "value": value} for name, value in variables.items()])


def _find_origin(status: api.Status, origin: api.CheckpointOrigin | None) -> dict[str, str]:
    """The variables of the save of another job to begin from."""
    if origin is None:
        return {}
    url, known = origin.archive, status.origin
    if known is not None and origin.job is not None and known.job == origin.job:
        url = known.url
    if url is None:
        return {}  # it was named after the job had started
    step = {} if origin.step is None else {names.ENV_ARCHIVE_FROM_STEP: str(origin.step)}
    return {names.ENV_ARCHIVE_FROM: url} | step


def _add_archive(body: Object, trainer: Object, url: str, archive: api.Archive) -> dict[str, str]:
    """The variables of the archive, and the Secret with its credentials, which only the kubelet reads.

    A Secret that is not there holds up no pod: the agent tells that it is missing.
    """
    variables = {
        names.ENV_ARCHIVE: url,
        names.ENV_ARCHIVE_SECONDS: str(archive.every_seconds),
        names.ENV_ARCHIVE_KEEP: str(archive.keep),
    }
    if archive.credentials_secret is not None:
        secret = {"secretName": archive.credentials_secret, "optional": True, "defaultMode": 0o444}
        mount = {"name": names.VOLUME_ARCHIVE, "mountPath": names.ARCHIVE_PATH, "readOnly": True}
        _mount(body, trainer, {"name": names.VOLUME_ARCHIVE, "secret": secret}, mount)
        variables[names.ENV_ARCHIVE_CREDENTIALS] = names.ARCHIVE_PATH
    return variables


def _part_of(volume: str, path: str, folder: str) -> Object:
    return {"name": volume, "mountPath": path, "subPath": folder}


def wants_runtime(spec: api.Spec, trainer: Object, settings: Settings) -> bool:
    """Whether an init container copies the runtime into the pod."""
    if spec.runtime_injection is api.RuntimeInjection.NEVER or not settings.runtime_image:
        return False
    if spec.runtime_injection is api.RuntimeInjection.ALWAYS:
        return True
    if spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR:
        return False
    image = str(trainer.get("image", ""))
    return image not in (settings.worker_image, settings.runtime_image)


def _add_runtime(body: Object, trainer: Object, settings: Settings) -> None:
    mount: Object = {"name": names.VOLUME_RUNTIME, "mountPath": names.RUNTIME_PATH, "readOnly": True}
    if settings.is_runtime_volume:
        image = {"reference": settings.runtime_image, "pullPolicy": settings.image_pull_policy}
        # All of it: containerd 2.1 ignores a subPath of an image, and mounts the whole there without a word.
        _mount(body, trainer, {"name": names.VOLUME_RUNTIME, "image": image}, mount)
        packages = f"{names.RUNTIME_PATH}/runtime/site-packages"
    else:
        name = _mount(body, trainer, {"name": names.VOLUME_RUNTIME, "emptyDir": {}}, mount)
        taken = {one.get("name") for kind in ("initContainers", "containers") for one in body.get(kind) or ()}
        installer = {**_build_installer(settings, name, trainer), "name": _find_free(names.VOLUME_RUNTIME, taken)}
        body["initContainers"] = [installer, *(body.get("initContainers") or [])]
        packages = f"{names.RUNTIME_PATH}/site-packages"
    theirs = next((v for v in trainer["env"] if v.get("name") == "PYTHONPATH" and v.get("value") is not None), None)
    if theirs is None:
        trainer["env"].append({"name": "PYTHONPATH", "value": packages})
    else:
        both = {**theirs, "value": f"{theirs['value']}:{packages}"}
        trainer["env"] = [both if v is theirs else v for v in trainer["env"]]


def _build_installer(settings: Settings, volume: str, trainer: Object) -> Object:
    """The init container that copies the runtime into the pod's volume.

    It has the trainer's amounts, which are free again when that starts. So it fits wherever the trainer fits, whatever
    a LimitRange says of each container, and the pod keeps its QoS class.
    """
    return {
        "image": settings.runtime_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["/runtime/install", names.RUNTIME_PATH],
        "volumeMounts": [{"name": volume, "mountPath": names.RUNTIME_PATH}],
        "resources": _find_amounts(trainer),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _find_amounts(trainer: Object) -> Object:
    """What a container asks for beside devices."""
    theirs = trainer.get("resources") or {}
    found = {
        kind: {name: amount for name, amount in (theirs.get(kind) or {}).items() if name in _AMOUNTS}
        for kind in ("requests", "limits")
    }
    return {kind: amounts for kind, amounts in found.items() if amounts}


def _place(described: Object, body: Object, placement: Placement) -> None:
    """What the job's queue says about its pods; the template says the rest, and the operator what it goes by."""
    for kind, said in (("labels", placement.labels), ("annotations", placement.annotations)):
        described[kind] = {**described[kind], **{key: said[key] for key in said if not names.is_mark(key)}}
    if placement.node_selector:
        body["nodeSelector"] = {**(body.get("nodeSelector") or {}), **placement.node_selector}
    if placement.tolerations:
        theirs = list(body.get("tolerations") or ())
        known = set(map(_identify, theirs))  # both lists may be long
        body["tolerations"] = theirs + [dict(t) for t in placement.tolerations if _identify(t) not in known]
    if placement.gates:
        body["schedulingGates"] = [*(body.get("schedulingGates") or ()), *({"name": g} for g in placement.gates)]


def _identify(toleration: Mapping[str, Any]) -> str:
    return json.dumps(toleration, sort_keys=True)
