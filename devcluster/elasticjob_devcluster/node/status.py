"""A pod's status derived from its containers, by the kubelet's rules. Pure."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Raw = Mapping[str, Any]


def timestamp(seconds: float) -> str:
    """The API's time format, whole seconds."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Ended:
    exit_code: int
    reason: str
    started_at: float
    finished_at: float
    signal: int | None = None
    message: str = ""
    container_id: str = ""

    def dump(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "exitCode": self.exit_code,
            "reason": self.reason,
            "startedAt": timestamp(self.started_at),
            "finishedAt": timestamp(self.finished_at),
            "containerID": self.container_id,
        }
        if self.signal:
            state["signal"] = self.signal
        if self.message:
            state["message"] = self.message
        return {"terminated": state}


@dataclass(frozen=True)
class Waiting:
    reason: str = "ContainerCreating"
    message: str = ""

    def dump(self) -> dict[str, Any]:
        state = {"reason": self.reason}
        return {"waiting": {**state, "message": self.message} if self.message else state}


@dataclass(frozen=True)
class Running:
    started_at: float

    def dump(self) -> dict[str, Any]:
        return {"running": {"startedAt": timestamp(self.started_at)}}


@dataclass(frozen=True)
class ContainerState:
    name: str
    image: str
    state: Waiting | Running | Ended = field(default_factory=Waiting)
    last: Ended | None = None
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""
    sidecar: bool = False  # an init container that runs until the other containers have ended

    def changed(self, **fields: Any) -> ContainerState:
        return replace(self, **fields)

    def dump(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "" if isinstance(self.state, Waiting) and not self.container_id else f"process://{self.image}",
            "state": self.state.dump(),
            "lastState": self.last.dump() if self.last else {},
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            **({"containerID": self.container_id} if self.container_id else {}),
        }


def should_restart(policy: str, ended: Ended) -> bool:
    return policy == "Always" or (policy == "OnFailure" and ended.exit_code != 0)


def ended_reason(exit_code: int) -> str:
    return "Completed" if exit_code == 0 else "Error"


def is_initialized(state: ContainerState, main: Sequence[ContainerState]) -> bool:
    """Whether this init container no longer blocks others: it succeeded, or is a sidecar that has started."""
    if state.sidecar:
        return state.started or any(not isinstance(c.state, Waiting) or c.last for c in main)
    return isinstance(state.state, Ended) and state.state.exit_code == 0


def compute_phase(policy: str, init: Sequence[ContainerState], main: Sequence[ContainerState]) -> str:
    """Pending, Running, Succeeded or Failed."""
    for state in init:
        if is_initialized(state, main):
            continue
        failed = isinstance(state.state, Ended) and not state.sidecar
        return "Failed" if failed and policy == "Never" else "Pending"
    ends = [c.state for c in main if isinstance(c.state, Ended)]
    never_ran = [c for c in main if isinstance(c.state, Waiting) and c.last is None and c.restarts == 0]
    if never_ran:
        return "Pending"
    served = any(c.sidecar and isinstance(c.state, Running) for c in init)
    if len(ends) == len(main) and not served and not any(should_restart(policy, e) for e in ends):
        return "Succeeded" if all(e.exit_code == 0 for e in ends) else "Failed"
    return "Running"


def compute_conditions(
    phase: str,
    init: Sequence[ContainerState],
    main: Sequence[ContainerState],
    gates: Mapping[str, bool],
) -> dict[str, tuple[bool, str, str]]:
    """Type → (status, reason, message) of the conditions that a node owns."""
    unfinished = [c.name for c in init if not is_initialized(c, main)]
    result: dict[str, tuple[bool, str, str]] = {}
    if unfinished:
        text = f"containers with incomplete status: [{' '.join(unfinished)}]"
        result["Initialized"] = (False, "ContainersNotInitialized", text)
    else:
        result["Initialized"] = (True, "PodCompleted" if phase == "Succeeded" else "", "")
    unready = [c.name for c in main if not c.ready]
    if phase in ("Succeeded", "Failed"):
        verdict = (False, "PodCompleted" if phase == "Succeeded" else "PodFailed", "")
        return {**result, "ContainersReady": verdict, "Ready": verdict}
    verdict = (
        (False, "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
        if unready
        else (True, "", "")
    )
    result["ContainersReady"] = verdict
    closed = sorted(gate for gate, holds in gates.items() if not holds)
    if not unready and closed:
        verdict = (False, "ReadinessGatesNotReady", f"the status of pod readiness gate {closed[0]!r} is not True")
    result["Ready"] = verdict
    return result


def merge_conditions(
    existing: Iterable[Raw], wanted: Mapping[str, tuple[bool, str, str]], now: float
) -> list[dict[str, Any]]:
    """The conditions to send: the transition time is kept if the value did not change."""
    old = {c["type"]: c for c in existing}
    merged = []
    for kind, (holds, reason, message) in wanted.items():
        status = "True" if holds else "False"
        before = old.get(kind, {})
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        condition: dict[str, Any] = {
            "type": kind,
            "status": status,
            "lastProbeTime": None,
            "lastTransitionTime": since or timestamp(now),
            "reason": reason or None,
            "message": message or None,
        }
        merged.append(condition)
    return merged


def compute_status(
    pod: Raw,
    init: Sequence[ContainerState],
    main: Sequence[ContainerState],
    *,
    pod_ip: str,
    host_ip: str,
    start_time: float,
    now: float,
    failure: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """The complete status that a node reports; `failure` is a reason set by the node, such as DeadlineExceeded."""
    spec, before = pod["spec"], pod.get("status") or {}
    phase = "Failed" if failure else compute_phase(spec.get("restartPolicy", "Always"), init, main)
    conditions = {c["type"]: c.get("status") == "True" for c in before.get("conditions") or ()}
    gates = {g["conditionType"]: conditions.get(g["conditionType"], False) for g in spec.get("readinessGates") or ()}
    wanted = compute_conditions(phase, init, main, gates)
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": merge_conditions(before.get("conditions") or (), wanted, now),
        "hostIP": host_ip,
        "startTime": before.get("startTime") or timestamp(start_time),
        "containerStatuses": [_with_resources(c, spec) for c in main],
    }
    if pod_ip:
        status["podIP"] = pod_ip
        status["podIPs"] = [{"ip": pod_ip}]
    if init:
        status["initContainerStatuses"] = [c.dump() for c in init]
    if failure:
        status["reason"], status["message"] = failure
    return status


def _with_resources(container: ContainerState, spec: Raw) -> dict[str, Any]:
    """A running process has what its pod asks for. The API server resizes no pod whose status lacks this."""
    if not isinstance(container.state, Running):
        return container.dump()
    asked = next((c.get("resources") for c in spec["containers"] if c["name"] == container.name), None)
    return {**container.dump(), "resources": asked or {}}


def parse_time(text: str | None) -> float:
    if not text:
        return time.time()
    return datetime.datetime.fromisoformat(text).timestamp()


def parse_ended(raw: Raw | None) -> Ended | None:
    if not raw:
        return None
    return Ended(
        int(raw.get("exitCode", 0)),
        raw.get("reason", ""),
        parse_time(raw.get("startedAt")),
        parse_time(raw.get("finishedAt")),
        signal=raw.get("signal"),
        message=raw.get("message", ""),
        container_id=raw.get("containerID", ""),
    )
