"""The state of a pod's trainer container, independent of its other containers. Pure.

A pod's phase covers all of its containers: if a sidecar keeps running, a pod whose trainer has crashed stays `Running`.
Therefore the operator uses the trainer's phase. Other containers matter only if they block the trainer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from elasticjob_operator import numerals

Raw = Mapping[str, Any]
# What the agent writes for an operator that is away when its workers succeed.
_SUCCESS = re.compile(r"^elasticjob: succeeded in generation (\d{1,15})\s*\Z", re.MULTILINE | re.ASCII)
# Characters that are kept of what a pod says: the operator has thousands of pods in its memory.
LONGEST_REASON, LONGEST_MESSAGE = 320, 2048  # a condition's type has up to 316
LONGEST_TERMINATION = 4096  # the kubelet keeps as much of the end of a log
PULL_REASONS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
UNSAID = "its agent did not say that its workers succeeded"  # what exit code 0 does not tell


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> PodPhase:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Exit:
    """The termination of the trainer container, or of an init container that kept it from starting."""

    code: int
    reason: str = ""
    message: str = ""  # the termination message, or the end of the log (FallbackToLogsOnError)
    init_container: str = ""  # which of them has failed; "" for the trainer

    @property
    def succeeded_in(self) -> int | None:
        """The world in which the workers succeeded, as the agent has left word in the termination message."""
        said = _SUCCESS.search(self.message) if not self.code else None
        return numerals.read_count(said[1]) if said else None


@dataclass(frozen=True, slots=True)
class Trainer:
    """The state of the trainer container, or of the init container that blocks it."""

    phase: PodPhase
    began: str | None = None  # RFC 3339, as written by the kubelet
    waiting: str = ""
    waiting_message: str = ""
    exit: Exit | None = None
    runs: bool = False
    lingers: bool = False  # the container has terminated, but its pod has not


def find_trainer(spec: Raw, status: Raw, name: str) -> Trainer:
    """The state of the container `name` in a pod with this spec and status."""
    phase = PodPhase(status.get("phase") or "Pending")
    states = {c.get("name"): c.get("state") or {} for c in status.get("containerStatuses") or ()}
    state = states.get(name, {})
    ended = state.get("terminated")
    if ended is not None:
        found = _exit(ended)
        return Trainer(
            phase=_phase_of_ended(phase, found, status),
            began=ended.get("startedAt"),
            exit=found,
            lingers=phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED),
        )
    if "running" in state:
        began = (state["running"] or {}).get("startedAt")
        return Trainer(PodPhase.RUNNING if phase is PodPhase.PENDING else phase, began, runs=True)
    failed, held = _look_at_init_containers(spec, status)
    waiting = {} if failed else held or state.get("waiting") or {}
    reason, message = waiting.get("reason", "")[:LONGEST_REASON], waiting.get("message", "")[:LONGEST_MESSAGE]
    return Trainer(phase, waiting=reason, waiting_message=message, exit=failed)


def _phase_of_ended(phase: PodPhase, found: Exit, status: Raw) -> PodPhase:
    if phase is PodPhase.FAILED and status.get("reason"):  # for example Evicted: the kubelet's reason takes precedence
        return phase
    return PodPhase.FAILED if found.code else PodPhase.SUCCEEDED


def find_sick_device(status: Raw) -> str:
    """The first device of a pod that is unhealthy, `resource id`; "" if none is, or if the kubelet does not tell it.

    Kubernetes has this since 1.31 (KEP-4680). `Unknown` is no evidence: a device plugin that restarts causes it too.
    """
    for container in status.get("containerStatuses") or ():
        for allocated in container.get("allocatedResourcesStatus") or ():
            for device in allocated.get("resources") or ():
                if device.get("health") == "Unhealthy":
                    return f"{allocated.get('name', '')} {device.get('resourceID', '')}"
    return ""


def find_dead_sidecar(spec: Raw, status: Raw, trainer: str) -> str:
    """The first container beside the trainer that has failed or cannot start, and how; "" if there is none.

    With `restartPolicy: Never`, nobody restarts it. One that ended with 0 had done its work. The text is the same
    whenever the kubelet tries again.
    """
    native = {c.get("name") for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    entries = [c for c in status.get("initContainerStatuses") or () if c.get("name") in native]
    for container in (*entries, *(status.get("containerStatuses") or ())):
        name, state = container.get("name"), container.get("state") or {}
        if name == trainer or "running" in state:
            continue
        if why := _find_standstill(state, spec, name) or _find_end(state, is_final=name not in native):
            return f"container {name!r} {why}"[:LONGEST_REASON]
    return ""


def _find_end(state: Raw, *, is_final: bool) -> str:
    ended = state.get("terminated") or {}
    if not ended.get("exitCode") or not is_final:
        return ""
    reason = str(ended.get("reason") or "Error")[:64]
    why = "" if reason == "Error" else f" [{reason}]"
    return f"ended with exit code {ended['exitCode']}{why}"


def _find_standstill(state: Raw, spec: Raw, name: str) -> str:
    waiting = state.get("waiting") or {}
    match waiting.get("reason"):
        case "CrashLoopBackOff":
            return "fails again and again"
        case reason if reason in PULL_REASONS:
            containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
            image = next((c.get("image") for c in containers if c.get("name") == name), "")
            return f"has not started: image {image} cannot be pulled"
        case "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" as reason:
            return f"has not started: {reason}: {waiting.get('message') or ''}".rstrip(": ")
    return ""


def _look_at_init_containers(spec: Raw, status: Raw) -> tuple[Exit | None, Raw]:
    """The exit of a failed init container, and the waiting state of one that blocks the trainer.

    An init container with `restartPolicy: Always` is a sidecar: it is restarted when it exits, which is no pod failure.
    """
    sidecars = {c.get("name") for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    for container in status.get("initContainerStatuses") or ():
        state, name = container.get("state") or {}, container.get("name", "")
        waiting = state.get("waiting") or {}
        if waiting.get("reason") not in ("PodInitializing", None):
            return None, waiting
        failed = state.get("terminated") or {}
        if failed.get("exitCode") and name not in sidecars:
            return _exit(failed, name), {}
    return None, {}


def _exit(ended: Raw, init_container: str = "") -> Exit:
    code = numerals.read_count(ended.get("exitCode"), 2**31, least=-(2**31)) or 0
    if not code:
        number = numerals.read_count(ended.get("signal"), 2**31)
        code = 128 + number if number else 0
    reason, message = ended.get("reason", "")[:LONGEST_REASON], ended.get("message", "")[-LONGEST_TERMINATION:]
    return Exit(code, reason, message, init_container)
