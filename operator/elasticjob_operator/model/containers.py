"""How a pod's trainer stands, whatever its other containers do. Pure.

A pod's phase speaks for all of its containers: beside a sidecar that runs on, a trainer that has crashed leaves it
`Running` for ever. So a pod counts as what its trainer is. Other containers matter only where they hold the trainer up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Raw = Mapping[str, Any]


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
    """How the trainer container ended."""

    code: int
    reason: str = ""
    message: str = ""  # the termination message: the log's tail where the policy falls back to it
    container: str = ""


@dataclass(frozen=True, slots=True)
class Trainer:
    """The container that trains, or the init container that keeps it from doing so."""

    phase: PodPhase
    began: str | None = None  # as the kubelet writes it
    waiting: str = ""
    waiting_message: str = ""
    exit: Exit | None = None
    runs: bool = False
    lingers: bool = False  # it has ended, and its pod has not


def find_trainer(spec: Raw, status: Raw, name: str) -> Trainer:
    """How the container of this name stands in a pod with this spec and status."""
    phase = PodPhase(status.get("phase") or "Pending")
    states = {c.get("name"): c.get("state") or {} for c in status.get("containerStatuses") or ()}
    state = states.get(name, {})
    ended = state.get("terminated")
    if ended is not None:
        found = _exit(ended, name)
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
    return Trainer(phase, waiting=waiting.get("reason", ""), waiting_message=waiting.get("message", ""), exit=failed)


def _phase_of_ended(phase: PodPhase, found: Exit, status: Raw) -> PodPhase:
    if phase is PodPhase.FAILED and status.get("reason"):  # evicted, for example: the kubelet's word counts
        return phase
    return PodPhase.FAILED if found.code else PodPhase.SUCCEEDED


def _look_at_init_containers(spec: Raw, status: Raw) -> tuple[Exit | None, Raw]:
    """The init container that has failed, and why one that holds the trainer up waits.

    One with `restartPolicy: Always` is a sidecar: it is started again when it ends, so that is no failure of the pod.
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


def _exit(ended: Raw, container: str) -> Exit:
    code = int(ended.get("exitCode", 0))
    if not code and ended.get("signal"):
        code = 128 + int(ended["signal"])
    return Exit(code, ended.get("reason", ""), ended.get("message", ""), container)
