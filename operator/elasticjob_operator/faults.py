"""What a failure is: who failed, how, whose fault it is and what the rules say of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from elasticjob_operator import api, wire
from elasticjob_operator.observe import Agent, Node, Pod

_NEVER_MENDS = frozenset({"StartError", "ContainerCannotRun", "InvalidImageName"})
# What runtimes and kubelets say of a container that was gone when they came back: the node has booted anew.
_VANISHED = frozenset({"Unknown", "ContainerStatusUnknown"})
TRACEBACK_LINES = 12


class Blame(StrEnum):
    USER = "user"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure as the rules see it, whether a pod or an agent told of it."""

    pod: str
    node: str = ""
    pod_uid: str = ""
    exit_code: int | None = None  # a signal n counts as 128 + n
    reason: str = ""
    message: str = ""
    traceback: str = ""
    log_tail: str = ""
    rank: int | None = None
    signal: str = ""
    blame: Blame = Blame.USER
    conditions: tuple[tuple[str, str], ...] = ()
    fatal: bool = False  # trying again cannot help


def fault_of_pod(pod: Pod, node: Node | None, rank: int | None = None) -> Fault:
    """What a pod that failed tells about the failure."""
    code = pod.exit.code if pod.exit else None
    reason = pod.reason or (pod.exit.reason if pod.exit else "")
    message = pod.message or (pod.exit.message if pod.exit else "") or pod.waiting_message
    return Fault(
        pod=pod.name,
        pod_uid=pod.uid,
        node=pod.node,
        exit_code=code,
        reason=reason,
        message=first_lines(message, 1) or reason,
        log_tail=message[-4096:],
        traceback=traceback_of(message),
        rank=rank,
        blame=blame_of_pod(pod, node),
        conditions=pod.conditions,
        fatal=reason in _NEVER_MENDS,
    )


def blame_of_pod(pod: Pod, node: Node | None) -> Blame:
    """Whether the cluster or the program ended this pod."""
    if pod.disruption or pod.deleting is not None:
        return Blame.INFRASTRUCTURE
    if pod.reason in ("Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeAffinity"):
        return Blame.INFRASTRUCTURE
    if node is None and pod.node:
        return Blame.INFRASTRUCTURE
    if node is not None and (not node.ready or node.leaving):
        return Blame.INFRASTRUCTURE
    if pod.exit is None:
        return Blame.INFRASTRUCTURE
    if pod.exit.reason == "OOMKilled":
        return Blame.USER
    if pod.exit.reason in _VANISHED:
        return Blame.INFRASTRUCTURE
    # 137 and 143: killed from outside. A program that breaks ends otherwise.
    return Blame.INFRASTRUCTURE if pod.exit.code in (137, 143) else Blame.USER


def fault_of_agent(agent: Agent, node: str, failure: wire.Failure, rank: int) -> Fault:
    """What an agent tells about a worker process that failed."""
    code = failure.exit_code
    if code is not None and code < 0:
        code = 128 - code
    return Fault(
        pod=agent.pod,
        node=node,
        exit_code=code,
        reason=failure.signal or "WorkerFailed",
        signal=failure.signal or "",
        message=failure.message or "its workers failed; see its log",
        traceback=failure.traceback or "",
        rank=failure.rank if failure.rank is not None else rank,
    )


def fault_of_loss(pod: str, node: str, rank: int, why: str) -> Fault:
    """A member that vanished without a word."""
    return Fault(pod=pod, node=node, rank=rank, reason="Lost", message=why, blame=Blame.INFRASTRUCTURE)


def with_pod(fault: Fault, uid: str) -> Fault:
    """The same, told for the pod as well: when the pod fails too, that is no second failure."""
    return replace(fault, pod_uid=uid)


def never_joined(fault: Fault, *, again: bool) -> Fault:
    """Its program ended well and never asked for a world; where that happens again and again, it always will."""
    message = "it ended with exit code 0 and never joined: start the script with torchrun or elasticjob-run"
    return replace(fault, reason="NeverJoined", message=message, blame=Blame.USER, fatal=again)


def blame_node(fault: Fault) -> Fault:
    """The same, as a fault of the node on which it happened."""
    return replace(fault, blame=Blame.INFRASTRUCTURE, fatal=False)


_SECONDARY = (
    "Connection closed by peer",
    "Connection reset",
    "Connection refused",
    "Broken pipe",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "ncclRemoteError",
    "gloo",
)


def first_fault(faults: Sequence[Fault]) -> Fault:
    """The fault that caused the others: workers whose peer died fail too, with an error of the network."""

    def is_secondary(fault: Fault) -> bool:
        text = fault.message + fault.traceback
        return not fault.signal and any(word in text for word in _SECONDARY)

    return min(faults, key=is_secondary)


class Verdict(StrEnum):
    RESTART = "Restart"  # and charge the budget
    RESTART_FREE = "RestartIgnoreBudget"
    FAIL = "FailJob"


def apply_rules(rules: Sequence[api.FailureRule], fault: Fault) -> Verdict:
    """The first rule that matches; without one: blame decides whether the budget is charged."""
    for rule in rules:
        if rule.on_exit_codes is not None and fault.exit_code is not None:
            inside = fault.exit_code in rule.on_exit_codes.values
            if inside == (rule.on_exit_codes.operator == "In"):
                return Verdict(rule.action.value)
        if rule.on_pod_conditions is not None and any(
            (c.type, c.status) in fault.conditions for c in rule.on_pod_conditions
        ):
            return Verdict(rule.action.value)
    if fault.fatal:
        return Verdict.FAIL
    return Verdict.RESTART if fault.blame is Blame.USER else Verdict.RESTART_FREE


def traceback_of(text: str) -> str:
    """The first Python traceback in a log tail, shortened."""
    start = text.find("Traceback (most recent call last)")
    return first_lines(text[start:], TRACEBACK_LINES) if start >= 0 else ""


def first_lines(text: str, count: int) -> str:
    return "\n".join(text.strip().splitlines()[:count])[:2048]
