"""Pods that wait without a word: their status has no reason, and only events tell it. Pure.

A volume whose ConfigMap is missing, a network without addresses or a device that is not ready leave a pod in
`ContainerCreating`. The kubelet writes an event and nothing else, so the events of one such pod of a job are read.
So are those of a pod of which the scheduler says only that another controller has to make its volume first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from elasticjob_operator.api.podtemplate import REQUIRED
from elasticjob_operator.failures.nodes import NEW_NODE_SECONDS
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.untyped import as_object, list_objects

NOT_STARTING: Final = "PodNotStarting"
QUIET: Final = ("", "ContainerCreating", "PodInitializing")  # why a container waits, as far as its status tells
WARN_SECONDS: Final = 15.0  # after these, a warning about a pod is the reason that it waits
PATIENCE_SECONDS: Final = 45.0  # after these, whatever is known about it
MOST_NAMED: Final = 5  # volumes, gates or containers
_KUEUE: Final = "kueue.x-k8s.io"
_PULLING: Final = "Pulling"
_BUSY: Final = f"{_PULLING}:"  # an event that says what a pod waits for, and is no warning
_SCHEDULING: Final = "FailedScheduling"  # the pod's status says the same, as long as it is true
_OF_ANOTHER: Final = "waiting for ephemeral volume controller"


def find_quiet(pods: Iterable[Pod], after: float, now: float) -> tuple[Pod | None, float | None]:
    """The first pod that has waited quietly for `after` seconds, and when the next one will have."""
    due = _list_due(pods, after)
    later = min((at for at, _ in due if at > now), default=None)
    return next((p for at, p in due if at <= now), None), later


def _list_due(pods: Iterable[Pod], after: float) -> list[tuple[float, Pod]]:
    """When each pod will have waited quietly for `after` seconds, by its number."""
    quiet = sorted((p for p in pods if _is_quiet(p)), key=lambda p: p.index)
    return [(max(p.scheduled or 0.0, p.created) + after, p) for p in quiet]


def _is_quiet(pod: Pod) -> bool:
    is_told = pod.unschedulable is not None and not waits_for_volume(pod.unschedulable_message)
    return pod.live and not pod.started and not is_told and pod.waiting in QUIET


def waits_for_volume(message: str) -> bool:
    """Whether the scheduler says only that a controller makes a volume first: an event says why it does not."""
    return _OF_ANOTHER in message


def find_lost(pods: Iterable[Pod], nodes: Collection[str], now: float) -> tuple[Pod | None, float | None]:
    """The same for pods whose node is none of these: the cluster removes them before they have waited for long."""
    return find_quiet((p for p in pods if p.node and p.node not in nodes), NEW_NODE_SECONDS, now)


def read_events(items: Sequence[Mapping[str, Any]]) -> tuple[bool, str]:
    """(whether it is a warning, `Reason: message`) of the newest warning about a pod, or else of the newest event.

    What a pod has got over is left out: it has a node, and pulls its image once all volumes are mounted.
    """

    def age(item: Mapping[str, Any]) -> tuple[bool, str]:
        return item.get("type") == "Warning", _when(item)

    told = [item for item in items if item.get("message") and item.get("reason") != _SCHEDULING]
    pulled = max((_when(item) for item in told if item.get("reason") == _PULLING), default="")
    told = [item for item in told if _when(item) >= pulled]
    if not told:
        return False, ""
    last = max(told, key=age)
    return last.get("type") == "Warning", f"{last.get('reason') or 'Event'}: {last['message']}"[:1024]


def _when(item: Mapping[str, Any]) -> str:
    return str(item.get("lastTimestamp") or item.get("eventTime") or item.get("firstTimestamp") or "")


def find_problem(
    pods: Sequence[Pod],
    said: Mapping[str, tuple[bool, str]],
    template: Mapping[str, Any],
    now: float,
    *,
    nodes: Collection[str],
) -> tuple[str, str] | None:
    """(reason, message) of a condition about a pod that waits quietly. `said`: what `read_events` found, by UID.

    `template`: the spec of the job's pods. `nodes`: those that exist, of the pods'.
    """
    pod, _ = find_lost(pods, nodes, now)
    if pod is not None:
        return NOT_STARTING, f"{pod.name}: there is no node {pod.node} (spec.template.spec.nodeName)"
    # Of the pods that are due, the events of one have been read, which need not be the first of them.
    due = [pod for at, pod in _list_due(pods, WARN_SECONDS) if at <= now]
    pod = next((pod for pod in due if said.get(pod.uid, (False, ""))[0]), None)
    text = said[pod.uid][1] if pod is not None else ""
    if pod is None:
        due = [pod for at, pod in _list_due(pods, PATIENCE_SECONDS) if at <= now]
        pod = next((pod for pod in due if pod.uid in said), next(iter(due), None))
        text = said.get(pod.uid, (False, ""))[1] if pod is not None else ""
        text = text if text.startswith(_BUSY) else ""  # other events say what has been done, not what is waited for
    if pod is None or (pod.unschedulable is not None and not text):
        return None
    return NOT_STARTING, f"{pod.name}: {name_unserved(text, template) if text else _guess(pod, template)}"


def is_still_told(reason: str, pods: Iterable[Pod], wanted: int, lived: float, now: float) -> bool:
    """Whether the condition of this reason about a pod stays: one in its place is too young to tell it again.

    Whoever deletes pods that cannot start, such as the cluster those without a node, would hide why every minute.
    `lived`: how long those had run that ended; if they had, and none waits, it is told why they ended.
    """
    live = [pod for pod in pods if pod.live]
    waits = [max(pod.scheduled or 0.0, pod.created) for pod in live if not pod.started]
    if reason != NOT_STARTING or len(live) - len(waits) >= wanted or (lived and not waits):
        return False
    return all(now - at < WARN_SECONDS for at in waits)


def name_gates(message: str, template: Mapping[str, Any]) -> str:
    """What a pod with scheduling gates says, with those of this template and who takes them away."""
    gates = [
        str(one["name"]) for one in list_objects(template.get("schedulingGates")) if isinstance(one.get("name"), str)
    ]
    if not gates:
        return f"{message}: the template has no spec.schedulingGates, so a webhook or a queue has added one: look there"
    owners = list(dict.fromkeys(gate.partition("/")[0] for gate in gates))
    one = f"the controller{'s' if len(owners) > 1 else ''} of {_join(owners)}"
    who = "Kueue" if all(owner.endswith(_KUEUE) for owner in owners) else one
    verb, what, them = ("takes", "it", "the gate") if len(gates) == 1 else ("take", "them", "the gates")
    verb = "takes" if who == "Kueue" else verb
    return (
        f"{message} (spec.template.spec.schedulingGates: {_join(gates)}): {who} {verb} {what} away; "
        f"if nobody is there to do it, remove {them} from the template"
    )


def name_pull_secrets(message: str, template: Mapping[str, Any]) -> str:
    """What a pod whose image cannot be pulled says, with the secrets of this template that may be missing or old."""
    secrets = [
        one["name"] for one in list_objects(template.get("imagePullSecrets")) if isinstance(one.get("name"), str)
    ]
    if not secrets:
        return message
    verb = "has" if len(secrets) == 1 else "have"
    return (
        f"{message} (spec.template.spec.imagePullSecrets: {_join(secrets)}, which {verb} to be in the job's namespace)"
    )


def name_sources(message: str, template: Mapping[str, Any]) -> str:
    """What a kubelet says of a variable that is no text, with where this template has variables from.

    It sends all variables of a container at once, and hears of none which is wrong.
    """
    found = dict.fromkeys(source for container in _list_containers(template) for source in _find_sources(container))
    if not found or "invalid UTF-8" not in message:
        return message
    advice = "a variable takes text only: encode the value with base64, or mount it as a volume"
    return f"{message} (variables are from {_join(found)}; {advice})"


def _find_sources(container: Mapping[str, Any]) -> Iterator[str]:
    used = [(one, "Ref") for one in list_objects(container.get("envFrom"))]
    used += [(as_object(one.get("valueFrom")), "KeyRef") for one in list_objects(container.get("env"))]
    for source, ending in used:
        for kind, field in (("Secret", "secret"), ("ConfigMap", "configMap")):
            if name := as_object(source.get(field + ending)).get("name"):
                yield f"{kind} {name}"


def _join(names: Iterable[str], between: str = ", ") -> str:
    first = list(itertools.islice(names, MOST_NAMED + 1))
    return between.join([*first[:MOST_NAMED], *(["…"] if len(first) > MOST_NAMED else ())])


_About = tuple[tuple[re.Pattern[str], Callable[[Mapping[str, Any]], Iterator[str]]], ...]


def name_fields(message: str, template: Mapping[str, Any]) -> str:
    """What a scheduler says of a pod that no node takes, with the fields of this template that ask for what nodes lack.

    It counts nodes, and names neither the field nor, mostly, its value.
    """
    found = (*_list_named(message, template, _BY_SCHEDULERS), *_name_amounts(message, template))
    return _add_fields(message, found)


def name_unserved(message: str, template: Mapping[str, Any]) -> str:
    """What a kubelet says of a pod that it cannot start, with the fields of this template that ask for it.

    It names drivers, handlers or variables, and not who asks for them.
    """
    return _name(message, template, _BY_KUBELETS)


def name_cause(reason: str, message: str, template: Mapping[str, Any]) -> str:
    """What is told of a pod that does not start, with the fields of this template that it is about."""
    if reason in ("Unschedulable", "SchedulerError"):
        return name_fields(message, template)
    if reason == "SchedulingGated":
        return name_gates(message, template)
    if reason == "ImagePullFailed":
        return name_pull_secrets(message, template)
    if reason in ("CreateContainerError", "CreateContainerConfigError"):
        return name_unserved(name_sources(message, template), template)
    return message


def _name(message: str, template: Mapping[str, Any], about: _About) -> str:
    return _add_fields(message, _list_named(message, template, about))


def _list_named(message: str, template: Mapping[str, Any], about: _About) -> Iterator[str]:
    return (told for said, find in about if said.search(message) for told in find(template))


def _add_fields(message: str, told: Iterable[str]) -> str:
    found = "; ".join(f"spec.template.spec.{one}" for one in told)
    return f"{message} ({found})" if found else message


def _name_amounts(message: str, template: Mapping[str, Any]) -> Iterator[str]:
    """Who asks for the resources that no node has enough of."""
    lacking = list(dict.fromkeys(_LACKING.findall(message)))
    named = _join(
        f"{container.get('name')} asks for {resource} {amount}"
        for container in _list_containers(template)
        for resource in lacking
        if (amount := _find_amount(container, resource)) is not None
    )
    if named:
        yield f"containers: {named}"
    of_pod = [(resource, _find_amount(template, resource)) for resource in lacking]
    if told := _join(f"{resource} {amount}" for resource, amount in of_pod if amount is not None):
        yield f"resources: {told}"
    by_class = _OF_OVERHEAD if template.get("runtimeClassName") else frozenset()
    if not by_class.isdisjoint(lacking):
        yield f"runtimeClassName: {template['runtimeClassName']}, whose overhead counts"
    owners = [*_list_containers(template), template]
    unasked = _join(
        resource
        for resource in lacking
        if resource not in by_class and all(_find_amount(owner, resource) is None for owner in owners)
    )
    if unasked and template.get("containers"):
        yield f"containers: none asks for {unasked}, so a LimitRange of the namespace, a webhook or a policy does"


def _find_amount(owner: Mapping[str, Any], resource: str) -> object:
    """What a container or a pod requests of a resource: its limit, where it says no more."""
    asked = as_object(owner.get("resources"))
    amounts = (as_object(asked.get(kind)).get(resource) for kind in ("requests", "limits"))
    return next((amount for amount in amounts if amount is not None), None)


def _name_chosen(template: Mapping[str, Any]) -> Iterator[str]:
    chosen = as_object(template.get("nodeSelector"))
    if chosen:
        yield f"nodeSelector: {_join(f'{key}={_show(value)}' for key, value in chosen.items())}"
    if as_object(as_object(template.get("affinity")).get("nodeAffinity")).get(REQUIRED):
        yield "affinity.nodeAffinity"
    if template.get("runtimeClassName"):
        yield f"runtimeClassName: {template['runtimeClassName']}, which may choose nodes"


def _show(value: object) -> str:
    """An empty value is an empty text to the API server."""
    return "" if value is None else str(value)


def _name_tolerated(template: Mapping[str, Any]) -> Iterator[str]:
    tolerated = _join(str(one.get("key") or "all taints") for one in list_objects(template.get("tolerations")))
    yield f"tolerations: {tolerated or 'none'}"


def _name_spread(template: Mapping[str, Any]) -> Iterator[str]:
    spread = list_objects(template.get("topologySpreadConstraints"))
    if spread:
        yield f"topologySpreadConstraints: {_join(str(one.get('topologyKey')) for one in spread)}"


def _name_neighbours(template: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = list_objects(as_object(as_object(template.get("affinity")).get(kind)).get(REQUIRED))
        if rules:
            yield f"affinity.{kind}: {_join(str(one.get('topologyKey')) for one in rules)}"


def _name_ports(template: Mapping[str, Any]) -> Iterator[str]:
    field = "containerPort" if template.get("hostNetwork") is True else "hostPort"
    named = _join(
        f"{field} {port[field]} of {container.get('name')}"
        for container in list_objects(template.get("containers"))
        for port in list_objects(container.get("ports"))
        if port.get(field)
    )
    if named:
        yield f"containers: {named}{' (hostNetwork)' if field == 'containerPort' else ''}"


def _name_volumes(template: Mapping[str, Any]) -> Iterator[str]:
    named = _join(filter(None, map(_name_claim, list_objects(template.get("volumes")))), "; ")
    if named:
        yield f"volumes: {named}"


def _name_devices(template: Mapping[str, Any]) -> Iterator[str]:
    claims = _name_claims(template)
    if claims:
        yield f"resourceClaims: {claims}"


def _name_runtime(template: Mapping[str, Any]) -> Iterator[str]:
    if template.get("runtimeClassName"):
        yield f"runtimeClassName: {template['runtimeClassName']}"


def _name_files(template: Mapping[str, Any]) -> Iterator[str]:
    for container in _list_containers(template):
        for one in list_objects(container.get("env")):
            file = as_object(as_object(one.get("valueFrom")).get("fileKeyRef"))
            if file:
                yield f"containers: env {one.get('name')} from {file.get('path')} in volume {file.get('volumeName')}"


def _name_paths(template: Mapping[str, Any]) -> Iterator[str]:
    for container in _list_containers(template):
        for one in list_objects(container.get("volumeMounts")):
            if one.get("subPathExpr"):
                yield f"containers: subPathExpr {one['subPathExpr']}, which takes what env of that container sets"


def _list_containers(template: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*list_objects(template.get("initContainers")), *list_objects(template.get("containers"))]


_LACKING: Final = re.compile(r"Insufficient ([a-zA-Z0-9./_-]*[a-zA-Z0-9])")
_OF_OVERHEAD: Final = frozenset({"cpu", "memory"})
# Words of kubelets and of the container runtime.
_BY_KUBELETS: Final[_About] = (
    (re.compile(r"dynamic resources|DRA driver"), _name_devices),
    (re.compile(r"no runtime for|RuntimeHandler"), _name_runtime),
    (re.compile(r"parse env file|not found in file"), _name_files),
    (re.compile(r"missing value for"), _name_paths),
)
# Words of the scheduler, of old and new versions, and what they are about.
_BY_SCHEDULERS: Final[_About] = (
    (re.compile(r"Pod's node affinity|match node selector|plugin\(s\) \[[^]]*NodeAffinity"), _name_chosen),
    (re.compile(r"\btaints?\b"), _name_tolerated),
    (re.compile(r"topology spread"), _name_spread),
    (re.compile(r"pod (anti-)?affinity"), _name_neighbours),
    (re.compile(r"free ports"), _name_ports),
    (
        re.compile(
            r"PersistentVolume|persistent volumes|non-existent pv|non-existent persistentvolume"
            r"|volume (node affinity|count|zone)|VolumeBinding"
        ),
        _name_volumes,
    ),
    (re.compile(r"allocate all claims|device class"), _name_devices),
)


def _name_claim(volume: object) -> str:
    match volume:
        case {"persistentVolumeClaim": {"claimName": str(name)}}:
            return f"PersistentVolumeClaim {name}"
        case {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": str(wanted)}}}}:
            return f"volume {name}, of {f'StorageClass {wanted}' if wanted else 'no StorageClass'}"
        case {"name": name, "ephemeral": {"volumeClaimTemplate": _}}:
            return f"volume {name}, of the default StorageClass"
    return ""


def _name_claims(template: Mapping[str, Any]) -> str:
    claims = list_objects(template.get("resourceClaims"))
    wanted = (one.get("resourceClaimName") or one.get("resourceClaimTemplateName") for one in claims)
    return _join(str(name) for name in wanted if name)


def _guess(pod: Pod, template: Mapping[str, Any]) -> str:
    if not pod.node:
        scheduler = template.get("schedulerName") or "default-scheduler"
        named = _name_claims(template)
        missing = f", and is there {named} (spec.template.spec.resourceClaims)" if named else ""
        late = "".join(f", and is its volume provided (spec.template.spec.{one})" for one in _name_volumes(template))
        return f"no scheduler has placed it: is {scheduler} running (spec.template.spec.schedulerName){missing}{late}?"
    if pod.waiting == "PodInitializing":
        init = list_objects(template.get("initContainers"))
        named = _join(str(one.get("name")) for one in init)
        sidecars = _join(str(one.get("name")) for one in init if one.get("restartPolicy") == "Always")
        older = f"; restartPolicy: Always of {sidecars} makes a sidecar from Kubernetes 1.29 on" if sidecars else ""
        where = f" (spec.template.spec.initContainers: {named}{older})" if named else ""
        return f"its init containers have not ended{where}: `kubectl logs {pod.name} -c CONTAINER` has what they say"
    return f"its containers are not created on {pod.node}: `kubectl describe pod {pod.name}` tells what they wait for"
