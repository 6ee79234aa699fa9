"""Classifies failures: which pod and rank failed, how, who is responsible, and which rule applies. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.model import containers, errortext
from elasticjob_operator.model.observe import Agent, Node, Pod

_NEVER_MENDS = frozenset({"StartError", "ContainerCannotRun", "InvalidImageName"})
# Reasons that runtimes and kubelets give for a container that has disappeared: the node was rebooted.
_VANISHED = frozenset({"Unknown", "ContainerStatusUnknown"})
LOST = "Lost"
POD_DEADLINE = "DeadlineExceeded"  # status.reason of a pod


class Blame(StrEnum):
    USER = "user"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as the rules see it, whether a pod or an agent reported it."""

    pod: str
    node: str = ""
    pod_uid: str = ""
    exit_code: int | None = None  # 128 + n for signal n
    reason: str = ""
    message: str = ""
    traceback: str = ""
    log_tail: str = ""
    init_container: str = ""  # that has failed, and not the trainer
    rank: int | None = None
    generation: int = 0  # the world that it ended; 0: the present one
    signal: str = ""
    blame: Blame = Blame.USER
    conditions: tuple[tuple[str, str], ...] = ()
    fatal: bool = False  # a retry cannot succeed
    waits: bool | None = None  # in a hang: whether this rank is blocked in a collective
    collectives: int | None = None  # in a hang: that this rank has entered
    altered: str = ""  # what others have changed in the job's pods, which may be why

    @property
    def is_cut(self) -> bool:
        """Whether a deadline that is not its template's has ended the pod."""
        return self.reason == POD_DEADLINE and self.blame is Blame.INFRASTRUCTURE

    @property
    def hung(self) -> bool:
        return self.reason in (names.RANK_HUNG, names.WORLD_HUNG)


def failure_of_pod(
    pod: Pod, node: Node | None, rank: int | None = None, probe: str = "", foreign_deadline: str = ""
) -> Failure:
    """The failure of a failed pod. `probe`: the field of a probe with which its template has the kubelet kill it.

    `foreign_deadline`: what to tell of its deadline, if not its template has set that.
    """
    code = pod.exit.code if pod.exit else None
    reason = pod.reason or (pod.exit.reason if pod.exit else "")
    said = _read_last_output(pod, reason)
    blame = blame_of_pod(pod, node, may_be_probed=bool(probe))
    if reason == POD_DEADLINE and foreign_deadline:
        said, blame = replace(said, message=foreign_deadline), Blame.INFRASTRUCTURE
    elif reason == POD_DEADLINE:
        said = replace(said, message=_AT_DEADLINE)
    elif probe and blame is Blame.USER and code in _KILLED:
        said = replace(said, message=f"{said.message}: {_tell_probe(probe)}")
    elif code == _TERMINATED and reason == "Error" and node is not None and _is_unexplained(pod, node):
        said = replace(said, message=f"{said.message}, {_BY_NOBODY} (kubectl events --for pod/{pod.name})")
    return Failure(
        pod=pod.name,
        pod_uid=pod.uid,
        node=pod.node,
        exit_code=code,
        reason=reason,
        message=said.message or reason or _tell_removal(pod, node),
        log_tail=said.log_tail,
        traceback=said.traceback,
        init_container=pod.exit.init_container if pod.exit else "",
        rank=rank,
        blame=blame,
        conditions=pod.conditions,
        fatal=reason in _NEVER_MENDS,
    )


def _tell_removal(pod: Pod, node: Node | None) -> str:
    """Why a pod has ended of which its containers tell nothing."""
    if pod.node and node is None:
        return f"its node {pod.node} is gone"
    return f"it was removed ({pod.disruption})" if pod.disruption else ""


@dataclass(frozen=True, slots=True)
class _Output:
    """Message, traceback and log of a failed pod, without repetition."""

    message: str = ""
    traceback: str = ""
    log_tail: str = ""


def _read_last_output(pod: Pod, reason: str) -> _Output:
    """The cause of a pod's failure, from the end of its log or from the cluster."""
    log = pod.exit.message if pod.exit else ""
    if pod.message or not log:
        code = pod.exit.code if pod.exit and reason not in _NEVER_MENDS else 0
        killed = _tell_kill(code) if code in _KILLED else ""
        return _Output(first_line(pod.message or pod.waiting_message) or killed, log_tail=errortext.tail(log))
    assert pod.exit is not None, "only an exit has a message"
    if reason in _NEVER_MENDS:  # the message is the container runtime's; the program never ran
        return _Output(first_line(log))
    if pod.exit.code in _KILLED or reason == "OOMKilled":
        # The program was killed: the last line of its log is not an error.
        return _Output(_tell_kill(pod.exit.code), log_tail=errortext.tail(log))
    found = errortext.split(log)
    message = errortext.exception_of(found.traceback) or signal_name(pod.exit.code) or errortext.last_word(log)
    return _Output(message, errortext.shorten(found.traceback), errortext.tail(found.rest))


_TERMINATED: Final = 143
_KILLED = (137, _TERMINATED)  # SIGKILL and SIGTERM
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def signal_name(exit_code: int) -> str:
    """The name of the signal that an exit code stands for; "" if it is not a signal."""
    return _SIGNALS.get(exit_code - 128, "")


def _tell_kill(exit_code: int) -> str:
    return f"it was killed ({name})" if (name := signal_name(exit_code)) else ""


_AT_DEADLINE = (
    "spec.template.spec.activeDeadlineSeconds has passed for this pod: remove it, and limit the job with "
    "spec.runPolicy.activeDeadlineSeconds"
)


_ADMISSION = "an admission webhook or a policy"


def tell_deadline(pod: Pod, template: Mapping[str, Any], what: str, *, is_earlier: bool = False) -> str:
    """Whose deadline a pod has that this template does not give it. `is_earlier`: it was made of another one."""
    wanted, seconds = template["spec"].get("activeDeadlineSeconds"), pod.deadline_seconds
    others = "an earlier template, an admission webhook or a policy" if is_earlier else _ADMISSION
    whose = repr(pod.deadline_writer) if pod.deadline_writer else others
    instead = "does not set it" if wanted is None else f"sets {wanted}"
    return (
        f"activeDeadlineSeconds ({seconds}) {what} this pod, and spec.template.spec {instead}: {whose} does: let it "
        "spare the pods of ElasticJobs, or give them longer"
    )


def has_foreign_deadline(pod: Pod, template: Mapping[str, Any]) -> bool:
    """Whether a pod has a deadline that this template does not give it."""
    wanted = template["spec"].get("activeDeadlineSeconds")
    return pod.deadline_seconds is not None and pod.deadline_seconds != wanted


_BY_NOBODY = (
    "and no drain, eviction or probe of spec.template is known to have asked for that: its events tell, if a probe has "
    "that a webhook or a policy has added"
)


def _is_unexplained(pod: Pod, node: Node) -> bool:
    """Whether nothing is known of a pod and of its node for which somebody may have asked the pod to stop."""
    asked = pod.deleting is not None or pod.disruption or pod.sick_device or pod.message
    return not asked and node.ready and not node.leaving and not node.problem


def _tell_probe(probe: str) -> str:
    return f"the kubelet does that when {probe} fails; the pod's events tell: mend the probe, or remove it"


def failure_of_probed_end(pod: Pod, probe: str) -> Failure:
    """The failure of a pod whose agent got SIGTERM from nobody that is known, and has a probe that may have failed."""
    return Failure(
        pod=pod.name,
        pod_uid=pod.uid,
        node=pod.node,
        exit_code=0,
        reason="Terminated",
        message=f"it was asked to stop (SIGTERM): {_tell_probe(probe)}",
    )


def blame_of_pod(pod: Pod, node: Node | None, *, may_be_probed: bool = False) -> Blame:
    """Whether the cluster or the program, with its template, caused the end of this pod."""
    if pod.disruption or pod.deleting is not None or pod.sick_device:
        return Blame.INFRASTRUCTURE
    if pod.reason in ("Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeAffinity"):
        return Blame.INFRASTRUCTURE
    if pod.reason == POD_DEADLINE:
        return Blame.USER
    if node is None and pod.node:
        return Blame.INFRASTRUCTURE
    if node is not None and (not node.ready or node.leaving or node.problem):
        return Blame.INFRASTRUCTURE
    if pod.exit is None:
        return Blame.INFRASTRUCTURE
    if pod.exit.reason == "OOMKilled":
        return Blame.USER
    if pod.exit.reason in _VANISHED:
        return Blame.INFRASTRUCTURE
    # 137 and 143: killed from outside. A program that fails by itself has another exit code.
    return Blame.INFRASTRUCTURE if pod.exit.code in _KILLED and not may_be_probed else Blame.USER


_SILENT = "its workers failed; see the pod's log"
_ABORTED = (
    "native code has aborted the process (SIGABRT), and says why in the last lines of the pod's log, after 'terminate"
    " called'. With gloo: ranks that call collectives of different sizes, or in another order"
)
_MEANINGS: Final = {  # of a signal that has ended a worker, which could say nothing itself
    "SIGABRT": _ABORTED,
    "SIGKILL": (
        "it was killed (SIGKILL), and its log does not say why: by the kernel, if the memory of the container "
        "(resources.limits.memory) or of the node was used up, or by somebody"
    ),
    "SIGBUS": (
        "it got SIGBUS: /dev/shm is full, as a rule, where data loaders hold their batches. Mount more there, or lower "
        "num_workers; or a file that it had mapped has become shorter"
    ),
    "SIGSEGV": (
        "native code has crashed (SIGSEGV): with PYTHONFAULTHANDLER=1 in the container's env, the log has the line "
        "of the script that called it"
    ),
}


def failure_of_agent(agent: Agent, node: str, failure: wire.Failure, rank: int) -> Failure:
    """The failure of a worker process that an agent reported."""
    if failure.kind == wire.RESTART:
        return Failure(
            pod=agent.pod,
            reason=SESSION_RESTARTED,
            message=first_line(failure.message or ""),
            rank=failure.rank if failure.rank is not None else rank,
            blame=Blame.INFRASTRUCTURE,  # of no node: it is what a loss or a change of the world has left behind
        )
    code = failure.exit_code
    if code is not None and code < 0:
        code = 128 - code
    return Failure(
        pod=agent.pod,
        node=node,
        exit_code=code,
        reason=names.RANK_HUNG if failure.kind == wire.HANG else failure.signal or "WorkerFailed",
        signal=failure.signal or "",
        message=failure.message or _MEANINGS.get(failure.signal or "", _SILENT),
        traceback=errortext.shorten(errortext.clean(failure.traceback or "")),
        rank=failure.rank if failure.rank is not None else rank,
        waits=failure.waits,
        collectives=failure.collectives,
    )


_REMEDIES = (
    (
        r"unrecognized arguments:.* --local[-_]rank",
        "torch.distributed.launch passes it: start the script with torchrun, and read LOCAL_RANK",
    ),
    (r"getpwuid\(\): uid not found", "the image has no such user: set USER and LOGNAME in the container's env"),
    (r"Permission denied: '/\.", "set HOME to a folder that this user can write to, in the container's env"),
    (r"(?i)argument list too long", "Linux takes 128 KiB for an argument or variable: put long texts into a ConfigMap"),
    (
        r"contains nul byte|setenv: invalid argument",
        "a variable takes no NUL byte: encode the value in its Secret or ConfigMap, or mount that as a volume",
    ),
)


def advise(message: str) -> str:
    """The message, with the remedy if the cause is in the pod's template."""
    found = (remedy for pattern, remedy in _REMEDIES if re.search(pattern, message))
    return next((f"{message} ({remedy})" for remedy in found), message)


def failure_of_loss(pod: str, node: str, rank: int, why: str) -> Failure:
    """The failure of a member that was lost without a report."""
    return Failure(pod=pod, node=node, rank=rank, reason=LOST, message=why, blame=Blame.INFRASTRUCTURE)


def with_pod(failure: Failure, uid: str) -> Failure:
    """The same failure, also attributed to the pod, so that the pod's own end is not a second failure."""
    return replace(failure, pod_uid=uid)


def never_joined(failure: Failure, advice: str, *, again: bool) -> Failure:
    """The failure of a pod whose program exited with 0 without joining a world; fatal if that is repeated."""
    message = f"it exited with code 0 without joining a world. {advice}"
    return replace(failure, reason="NeverJoined", message=message, blame=Blame.USER, fatal=again)


def failure_of_unsaid_end(pod: Pod, rank: int | None, agent: Agent | None) -> Failure:
    """The failure of a member whose command ended with 0 although its agent did not say that its workers succeeded.

    The program's, if the agent was heard: a shell hides how its agent ended. Otherwise the operator may have been away.
    """
    remedy = "; a shell ends with the code of its last command: write `set -o pipefail`, or start torchrun with `exec`"
    return Failure(
        pod=pod.name,
        pod_uid=pod.uid,
        node=pod.node,
        exit_code=0,
        reason=UNSAID,
        message=containers.UNSAID + remedy,
        rank=rank,
        blame=Blame.INFRASTRUCTURE if agent is None else Blame.USER,
    )


def failure_of_early_end(early: api.Member, others: Sequence[Failure]) -> Failure:
    """The failure of a member that succeeded while others were training, which they cannot without it."""
    lost = next((one for one in others if one.rank is not None), others[0])
    who = f"rank {lost.rank}" if lost.rank is not None else lost.pod
    why = errortext.exception_of(lost.message) or lost.message
    return Failure(
        pod=early.pod,
        node=early.node,
        exit_code=0,
        reason=EARLY,
        message=f"the others were training, and lost it ({who}: {why}); all ranks have to make equally many steps",
        rank=early.rank,
    )


UNSAID = "SuccessNotReported"
EARLY = "EndedEarly"
PREFLIGHT = "PreflightFailed"
CORRUPT = "CorruptState"
NOT_SAVED = "NotSaved"
SESSION_RESTARTED = "SessionRestarted"
# How an agent's last message begins if its node is at fault, with the reason of that failure.
_OF_NODES = {"preflight: ": PREFLIGHT, "corrupt state: ": CORRUPT}


def last_words_of(pod: Pod, agent: Agent | None) -> str:
    """What the agent of this pod said when it gave up, or the end of the pod's log."""
    failure = agent.state.failure if agent else None
    if failure is not None and agent is not None and agent.state.phase is wire.AgentPhase.FAILED:
        return failure.message or ""
    last = (pod.exit.message.strip() if pod.exit else "").rpartition("\n")[2]
    return last.removeprefix("elasticjob: error: ")


def blame_unfit_node(failure: Failure, told: str) -> Failure:
    """The same failure, or the node's if that is what was told: the node is unfit, or its replica became wrong.

    Rules about exit codes are for programs.
    """
    words = next((words for words in _OF_NODES if told.startswith(words)), None)
    if words is None:
        return failure
    return replace(
        failure,
        reason=_OF_NODES[words],
        message=first_line(told.removeprefix(words)),
        traceback="",
        exit_code=None,
        blame=Blame.INFRASTRUCTURE,
        fatal=False,
    )


def blame_node(failure: Failure) -> Failure:
    """The same failure, attributed to the node on which it happened."""
    return replace(failure, blame=Blame.INFRASTRUCTURE, fatal=False)


def first_failure(failures: Sequence[Failure]) -> Failure:
    """The failure that caused the others: workers whose peer died fail too, with network errors.

    How a process ended matters more than who reported first: workers that lost a peer can be faster.
    """

    def distance(failure: Failure) -> int:
        if failure.signal in errortext.OWN_SIGNALS:
            return 0
        if is_secondary(failure):
            return 3 if failure.signal == "SIGABRT" else 4  # gloo ends one process so, and the others lose it
        return 1 if failure.exit_code is not None else 2  # 2: reported by a process that did not exit because of it

    hung = [failure for failure in failures if failure.hung]
    return blame_hang(hung) if hung else min(failures, key=distance)


def blame_hang(hung: Sequence[Failure]) -> Failure:
    """The rank that holds up the others: they wait in a collective that it has not entered."""
    late = [failure for failure in hung if failure.waits is False]
    if late and (len(late) < len(hung) or len(hung) == 1):
        return late[0]
    counts = sorted(one.collectives for one in hung if one.collectives is not None)
    if len(counts) == len(hung) > 1 and counts[0] < counts[1]:
        return min(hung, key=lambda one: one.collectives or 0)
    return replace(hung[0], reason=names.WORLD_HUNG)


def others_of(failures: Iterable[Failure], first: Failure) -> Iterator[Failure]:
    """All but the first failure, which `first_failure` may have given another reason."""
    return (one for one in failures if replace(one, reason=first.reason) != first)


def is_secondary(failure: Failure) -> bool:
    """Whether a failure looks like the consequence of a lost peer."""
    return errortext.is_of_a_peer(failure.signal, failure.message + failure.traceback)


class Verdict(StrEnum):
    RESTART = "Restart"  # restart, and charge the budget
    RESTART_FREE = "RestartIgnoreBudget"
    FAIL = "FailJob"


def apply_rules(rules: Sequence[api.FailureRule], failure: Failure) -> Verdict:
    """The verdict of the first matching rule; without one, the blame decides whether the budget is charged."""
    ruled = find_rule(rules, failure)
    if ruled is not None:
        return ruled
    if failure.fatal:
        return Verdict.FAIL
    return Verdict.RESTART if failure.blame is Blame.USER else Verdict.RESTART_FREE


def find_rule(rules: Sequence[api.FailureRule], failure: Failure) -> Verdict | None:
    """The verdict of the first matching rule of the user; None if no rule matches."""
    for rule in rules:
        if rule.on_exit_codes is not None and failure.exit_code is not None:
            inside = failure.exit_code in rule.on_exit_codes.values
            if inside == (rule.on_exit_codes.operator == "In"):
                return Verdict(rule.action.value)
        if rule.on_pod_conditions is not None and any(
            (c.type, c.status) in failure.conditions for c in rule.on_pod_conditions
        ):
            return Verdict(rule.action.value)
    return None


def first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:2048]
