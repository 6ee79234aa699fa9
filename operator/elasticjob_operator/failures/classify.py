"""What a failure is: who failed, how, whose fault it is and what the rules say of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.model import errortext
from elasticjob_operator.model.observe import Agent, Node, Pod

_NEVER_MENDS = frozenset({"StartError", "ContainerCannotRun", "InvalidImageName"})
# What runtimes and kubelets say of a container that was gone when they came back: the node has booted anew.
_VANISHED = frozenset({"Unknown", "ContainerStatusUnknown"})
LOST = "Lost"


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
    waits: bool | None = None  # in a hang: whether this rank waits for others

    @property
    def hung(self) -> bool:
        return self.reason in (names.RANK_HUNG, names.WORLD_HUNG)


def fault_of_pod(pod: Pod, node: Node | None, rank: int | None = None) -> Fault:
    """What a pod that failed tells about the failure."""
    code = pod.exit.code if pod.exit else None
    reason = pod.reason or (pod.exit.reason if pod.exit else "")
    said = _last_words(pod, reason)
    return Fault(
        pod=pod.name,
        pod_uid=pod.uid,
        node=pod.node,
        exit_code=code,
        reason=reason,
        message=said.message or reason,
        log_tail=said.log_tail,
        traceback=said.traceback,
        rank=rank,
        blame=blame_of_pod(pod, node),
        conditions=pod.conditions,
        fatal=reason in _NEVER_MENDS,
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """What a pod left behind: each text once."""

    message: str = ""
    traceback: str = ""
    log_tail: str = ""


def _last_words(pod: Pod, reason: str) -> _Said:
    """What the end of a pod's log, or the cluster, says of its failure."""
    log = pod.exit.message if pod.exit else ""
    if pod.message or not log:
        return _Said(first_line(pod.message or pod.waiting_message), log_tail=errortext.tail(log))
    assert pod.exit is not None, "it has a message"
    if reason in _NEVER_MENDS:  # the runtime's words: the program had none
        return _Said(first_line(log))
    if pod.exit.code in _KILLED or reason == "OOMKilled":
        # It was doing something else when it was killed: what it last said is no error.
        killed = signal_name(pod.exit.code)
        return _Said(f"it was killed ({killed})" if killed else "", log_tail=errortext.tail(log))
    found = errortext.split(log)
    message = errortext.exception_of(found.traceback) or signal_name(pod.exit.code) or errortext.last_word(log)
    return _Said(message, errortext.shorten(found.traceback), errortext.tail(found.rest))


_KILLED = (137, 143)  # SIGKILL and SIGTERM
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def signal_name(exit_code: int) -> str:
    """The signal that an exit code stands for; "" where it stands for none."""
    return _SIGNALS.get(exit_code - 128, "")


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
    return Blame.INFRASTRUCTURE if pod.exit.code in _KILLED else Blame.USER


def fault_of_agent(agent: Agent, node: str, failure: wire.Failure, rank: int) -> Fault:
    """What an agent tells about a worker process that failed."""
    code = failure.exit_code
    if code is not None and code < 0:
        code = 128 - code
    return Fault(
        pod=agent.pod,
        node=node,
        exit_code=code,
        reason=names.RANK_HUNG if failure.kind == wire.HANG else failure.signal or "WorkerFailed",
        signal=failure.signal or "",
        message=failure.message or "its workers failed; see its log",
        traceback=errortext.shorten(errortext.clean(failure.traceback or "")),
        rank=failure.rank if failure.rank is not None else rank,
        waits=failure.waits,
    )


def fault_of_loss(pod: str, node: str, rank: int, why: str) -> Fault:
    """A member that vanished without a word."""
    return Fault(pod=pod, node=node, rank=rank, reason=LOST, message=why, blame=Blame.INFRASTRUCTURE)


def with_pod(fault: Fault, uid: str) -> Fault:
    """The same, told for the pod as well: when the pod fails too, that is no second failure."""
    return replace(fault, pod_uid=uid)


def never_joined(fault: Fault, *, again: bool) -> Fault:
    """Its program ended well and never asked for a world; where that happens again and again, it always will."""
    message = "it ended with exit code 0 and never joined: start the script with torchrun or elasticjob-run"
    return replace(fault, reason="NeverJoined", message=message, blame=Blame.USER, fatal=again)


PREFLIGHT = "PreflightFailed"
_PREFLIGHT_WORDS = "preflight: "


def preflight_of(pod: Pod, agent: Agent | None) -> str:
    """What the preflight found in this pod, "" where it found nothing: told by its agent, or by the end of its log."""
    failure = agent.state.failure if agent else None
    if failure is not None and agent is not None and agent.state.phase is wire.AgentPhase.FAILED:
        told = failure.message or ""
    else:
        last = (pod.exit.message.strip() if pod.exit else "").rpartition("\n")[2]
        told = last.removeprefix("elasticjob: error: ")
    return told.removeprefix(_PREFLIGHT_WORDS) if told.startswith(_PREFLIGHT_WORDS) else ""


def failed_preflight(fault: Fault, found: str) -> Fault:
    """Its node or its network is not fit for a world. The program has not run, so no rule about exit codes is meant."""
    return replace(
        fault,
        reason=PREFLIGHT,
        message=first_line(found),
        traceback="",
        exit_code=None,
        blame=Blame.INFRASTRUCTURE,
        fatal=False,
    )


# The program's own text is wrong, so that it fails at every start: errors of names and syntax, a script that is not
# there, arguments that it does not take.
_MISTAKES = re.compile(
    r"(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError|NameError|UnboundLocalError): "
    r"|(AttributeError|TypeError): (?!.*NoneType)"
    r"|.*: can't open file '.*': \[Errno 2\]"
    r"|.*: error: (unrecognized arguments|the following arguments are required|argument )"
)


def mistake_of(faults: Sequence[Fault]) -> str:
    """The one mistake of the program that all of these tell of, leaving out their consequences; else ""."""
    told = {_last_mistake(f) for f in faults if f.blame is Blame.USER and not is_secondary(f)}
    return told.pop() if len(told) == 1 else ""


def _last_mistake(fault: Fault) -> str:
    for text in (fault.traceback, fault.message, fault.log_tail):
        last = text.strip().rpartition("\n")[2].strip()
        if _MISTAKES.match(last):
            return last[:256]
    return ""


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


# Signals that no peer's end can cause. SIGABRT is not one of them: NCCL's watchdog ends a process by it.
_OWN_SIGNALS = frozenset({"SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})


def first_fault(faults: Sequence[Fault]) -> Fault:
    """The fault that caused the others: workers whose peer died fail too, with an error of the network.

    How a process ended says more than who told of it first: those that lose a peer may be the faster ones.
    """

    def distance(fault: Fault) -> int:
        if fault.signal in _OWN_SIGNALS:
            return 0
        if is_secondary(fault):
            return 3
        return 1 if fault.exit_code is not None else 2  # 2: told by a process that did not end by it

    hung = [fault for fault in faults if fault.hung]
    return blame_hang(hung) if hung else min(faults, key=distance)


def blame_hang(hung: Sequence[Fault]) -> Fault:
    """The rank that holds the others up: it is elsewhere, while they wait in a collective."""
    late = [fault for fault in hung if fault.waits is False]
    if late and (len(late) < len(hung) or len(hung) == 1):
        return late[0]
    return replace(hung[0], reason=names.WORLD_HUNG)


def is_secondary(fault: Fault) -> bool:
    """Workers whose peer died fail too, with an error of the network or by NCCL's watchdog."""
    if fault.signal in _OWN_SIGNALS:
        return False
    return fault.signal == "SIGABRT" or any(word in fault.message + fault.traceback for word in _SECONDARY)


class Verdict(StrEnum):
    RESTART = "Restart"  # and charge the budget
    RESTART_FREE = "RestartIgnoreBudget"
    FAIL = "FailJob"


def apply_rules(rules: Sequence[api.FailureRule], fault: Fault) -> Verdict:
    """The first rule that matches; without one: blame decides whether the budget is charged."""
    ruled = find_rule(rules, fault)
    if ruled is not None:
        return ruled
    if fault.fatal:
        return Verdict.FAIL
    return Verdict.RESTART if fault.blame is Blame.USER else Verdict.RESTART_FREE


def find_rule(rules: Sequence[api.FailureRule], fault: Fault) -> Verdict | None:
    """What the user's first rule that matches says."""
    for rule in rules:
        if rule.on_exit_codes is not None and fault.exit_code is not None:
            inside = fault.exit_code in rule.on_exit_codes.values
            if inside == (rule.on_exit_codes.operator == "In"):
                return Verdict(rule.action.value)
        if rule.on_pod_conditions is not None and any(
            (c.type, c.status) in fault.conditions for c in rule.on_pod_conditions
        ):
            return Verdict(rule.action.value)
    return None


def first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:2048]
