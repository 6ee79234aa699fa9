"""Pods that wait without a word: their status has no reason, and only events tell it. Pure.

A volume whose ConfigMap is missing, a network without addresses or a device that is not ready leave a pod in
`ContainerCreating`. The kubelet writes an event and nothing else, so the events of one such pod of a job are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from elasticjob_operator.failures.nodes import NEW_NODE_SECONDS
from elasticjob_operator.model.observe import Pod

QUIET: Final = ("", "ContainerCreating", "PodInitializing")  # why a container waits, as far as its status tells
WARN_SECONDS: Final = 15.0  # after these, a warning about a pod is the reason that it waits
PATIENCE_SECONDS: Final = 45.0  # after these, whatever is known about it
MOST_VOLUMES: Final = 5  # that are named
_BUSY: Final = "Pulling:"  # an event that says what a pod waits for, and is no warning


def find_quiet(pods: Iterable[Pod], after: float, now: float) -> tuple[Pod | None, float | None]:
    """The first pod that has waited quietly for `after` seconds, and when the next one will have."""
    quiet = sorted(
        (p for p in pods if p.live and not p.started and p.unschedulable is None and p.waiting in QUIET),
        key=lambda p: p.index,
    )
    due = [(max(p.scheduled or 0.0, p.created) + after, p) for p in quiet]
    later = min((at for at, _ in due if at > now), default=None)
    return next((p for at, p in due if at <= now), None), later


def find_lost(pods: Iterable[Pod], nodes: Collection[str], now: float) -> tuple[Pod | None, float | None]:
    """The same for pods whose node is none of these: the cluster removes them before they have waited for long."""
    return find_quiet((p for p in pods if p.node and p.node not in nodes), NEW_NODE_SECONDS, now)


def read_events(items: Sequence[Mapping[str, Any]]) -> tuple[bool, str]:
    """(whether it is a warning, `Reason: message`) of the newest warning about a pod, or else of the newest event."""

    def age(item: Mapping[str, Any]) -> tuple[bool, str]:
        when = item.get("lastTimestamp") or item.get("eventTime") or item.get("firstTimestamp") or ""
        return item.get("type") == "Warning", str(when)

    told = [item for item in items if item.get("message")]
    if not told:
        return False, ""
    last = max(told, key=age)
    return last.get("type") == "Warning", f"{last.get('reason') or 'Event'}: {last['message']}"[:1024]


def find_problem(
    pods: Sequence[Pod],
    said: Mapping[str, tuple[bool, str]],
    scheduler: str,
    now: float,
    *,
    nodes: Collection[str],
    claims: Sequence[str] = (),
) -> tuple[str, str] | None:
    """(reason, message) of a condition about a pod that waits quietly. `said`: what `read_events` found, by UID.

    `nodes`: those that exist, of the pods'. `claims`: the resource claims that pods need.
    """
    pod, _ = find_lost(pods, nodes, now)
    if pod is not None:
        return "PodNotStarting", f"{pod.name}: there is no node {pod.node} (spec.template.spec.nodeName)"
    pod, _ = find_quiet(pods, WARN_SECONDS, now)
    is_warning, text = said.get(pod.uid, (False, "")) if pod is not None else (False, "")
    if not is_warning:
        pod, _ = find_quiet(pods, PATIENCE_SECONDS, now)
        text = said.get(pod.uid, (False, ""))[1] if pod is not None else ""
        text = text if text.startswith(_BUSY) else ""  # other events say what has been done, not what is waited for
    if pod is None:
        return None
    return "PodNotStarting", f"{pod.name}: {text or _guess(pod, scheduler, claims)}"


def find_claims(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the resource claims of this pod template, or of their templates."""
    claims = pod.get("resourceClaims")
    known = [one for one in claims if isinstance(one, Mapping)] if isinstance(claims, list) else []
    found = (one.get("resourceClaimName") or one.get("resourceClaimTemplateName") for one in known)
    return tuple(str(name) for name in found if name)


def name_volumes(message: str, pod: Mapping[str, Any]) -> str:
    """What a scheduler says of a pod, with the volumes of this template that it may mean: it names no claim."""
    if "PersistentVolumeClaim" not in message:
        return message
    volumes = pod.get("volumes")
    claims = filter(None, map(_name_claim, volumes if isinstance(volumes, list) else ()))
    named = list(itertools.islice(claims, MOST_VOLUMES + 1))
    if len(named) > MOST_VOLUMES:
        named[MOST_VOLUMES:] = ["…"]
    return f"{message} (spec.template.spec.volumes: {'; '.join(named)})" if named else message


def _name_claim(volume: object) -> str:
    match volume:
        case {"persistentVolumeClaim": {"claimName": str(name)}}:
            return f"PersistentVolumeClaim {name}"
        case {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": str(wanted)}}}}:
            return f"volume {name}, of {f'StorageClass {wanted}' if wanted else 'no StorageClass'}"
        case {"name": name, "ephemeral": {"volumeClaimTemplate": _}}:
            return f"volume {name}, of the default StorageClass"
    return ""


def _guess(pod: Pod, scheduler: str, claims: Sequence[str]) -> str:
    if not pod.node:
        missing = f", and is there {', '.join(claims)} (spec.template.spec.resourceClaims)" if claims else ""
        return f"no scheduler has taken it: is {scheduler} running (spec.template.spec.schedulerName){missing}?"
    if pod.waiting == "PodInitializing":
        return f"its init containers have not ended: `kubectl logs {pod.name} -c CONTAINER` has what they say"
    return f"its containers are not created on {pod.node}: `kubectl describe pod {pod.name}` tells what they wait for"
