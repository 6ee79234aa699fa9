"""Judges what became of a job: it trains, it was refused, or it says what is in the way. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from chaos import manifest_maker, manifest_pods, manifest_table
from chaos.manifest_maker import Made
from elasticjob_operator.api import names

Raw = Mapping[str, Any]
TRAINS: Final = "trains"
TOLD: Final = "told"
FOREIGN: Final = "another's"
SILENT: Final = "silent"
SILENT_SECONDS: Final = 70.0  # a minute, and what it takes to see it
MOST_REFUSED: Final = 10  # writes of one job that the API server refuses, or pods that a node refuses, in a minute
MOST_TRIES: Final = 8  # of a job whose script fails at its start: at once, and then 1, 2, 4 … s later
MOST_REQUESTS: Final = 120  # of one job in a minute, with all that it makes
REFUSED_BY_NODES: Final = "node-refuses"  # the part that makes nodes refuse all pods
EVICTED: Final = "evicted"  # the part whose pods are evicted soon after their start
ENDED_BEFORE: Final = frozenset({"post-start", "init-fails"})  # parts that end pods before that, which is charged
# Reasons that say only that there is no world yet.
_EMPTY: Final = ("BelowWanted", "WaitingForPods", "WorldStarting", "Regrouping", "MembersFinish", "AllWanted")
# Of pods that wait: only those that are there do.
_OF_WAITING: Final = frozenset({"PodNotStarting", "ImagePullFailed", "Unschedulable", "SchedulingGated", "NoAgent"})
# Of a job of which all pods train: what may still be told. Anything else is of a time before.
STANDING: Final = frozenset({"SidecarFailed", "AutoscalerRefused", "BudgetRefused", "ServiceRefused"})
_COMMON: Final = frozenset({"true", "false", "none", "always", "default", "path", "value", "name", "image"})


@dataclass(frozen=True, slots=True)
class Word:
    """The name of a field, or a value, in a manifest."""

    text: str
    is_field: bool = False


_EVERYWHERE: Final = (Word("metadata.name"),)  # each job has a name of its own kind


def read_told(status: Raw) -> list[tuple[str, str]]:
    """(reason, message) of the conditions that tell why a job does not train."""
    found = []
    for one in status.get("conditions") or ():
        reason, message = one.get("reason") or "", one.get("message") or ""
        holds = one["status"] == "True" and one["type"] in ("Degraded", "Failed", "Suspended", "Complete")
        waits = one["status"] == "False" and one["type"] in ("Running", "Admitted")
        if (holds or waits) and not _is_empty(reason, message):
            found.append((reason, message))
    return found


def _is_empty(reason: str, message: str) -> bool:
    """Whether that says only how many pods train. A job that is smaller than asked for may go on: …: and why."""
    return reason in _EMPTY and not (reason == "BelowWanted" and ": " in message)


def recall(events: Iterable[Raw]) -> Raw:
    """What the status of a job said that is gone: the warnings about it stay."""
    about = [one for one in events if one["type"] == "Warning" and one["involvedObject"]["kind"] == names.KIND]
    return {"conditions": [{**one, "type": "Failed", "status": "True"} for one in about]}


def find_state(made: Made, status: Raw) -> str:
    """TRAINS, TOLD, FOREIGN or SILENT at this moment."""
    if not made.is_ours:
        return FOREIGN
    if any((c["type"], c["status"]) == ("Running", "True") for c in status.get("conditions") or ()):
        return TRAINS
    return TOLD if read_told(status) else SILENT


def judge_words(made: Made, status: Raw) -> str:
    """What is wrong with what a job tells that does not train; "" if it names what is in the way."""
    told = read_told(status)
    text = "; ".join(f"{reason}: {message}" for reason, message in told)
    if made.told and any((c["type"], c["status"]) == ("Complete", "True") for c in status.get("conditions") or ()):
        return f"it says that it is complete, although something keeps it from training: {text}"
    if unsaid := find_unsaid(made, status):
        return f"it does not tell {', '.join(unsaid)}: {text}"
    return judge_text(made, f"{text}; {_read_warning(status)}")


def judge_text(made: Made, text: str) -> str:
    """What is wrong with a text about a job, also one of the API server that refuses it.

    It has to name what was drawn: the words of a part that is known to keep a job from training, or else, where parts
    may do so only together, a field or a value that they have put there. What every job has does not count: its own
    name, those of its pods and of their nodes, and the words of a plain template.
    """
    if any(is_told(word, text) for word in made.told):
        return ""
    if not (made.is_sure and made.told) and any(
        is_named(word, text) for word in (*find_words(made.causes), *_EVERYWHERE)
    ):
        return ""
    return f"it names none of {', '.join(made.told) or 'the words of its parts'}: {text}"


def find_unsaid(made: Made, status: Raw) -> list[str]:
    """The parts for which the API server refuses a pod, and that are not told although others are.

    It lists all fields that are wrong, unless it cannot even read the pod.
    """
    text = "; ".join(f"{reason}: {message}" for reason, message in read_told(status)).lower()
    if "422 invalid" not in text:
        return []
    parts = [one for one in manifest_maker.PARTS if one.name in made.parts and one.name in manifest_table.FIELDS]
    kept = [one for one in parts if manifest_maker.has_part(made.body, one)]
    return [one.name for one in kept if not any(is_told(word, text) for word in one.told)]


def judge_training(made: Made, status: Raw, pods: Sequence[Raw], lost: Sequence[str]) -> str:
    """What is wrong with a job that trains. `lost`: what its pods have not as its template asks for it."""
    told = read_told(status)
    text = "; ".join(f"{reason}: {message}" for reason, message in told)
    live, size, ready = manifest_pods.list_live(pods), made.size, status.get("readyReplicas") or 0
    if size is not None and ready < size:
        return judge_words(made, status) if told else f"{ready} of {size} pods train, and it does not say why"
    if size is not None and len(live) > size + made.spares:
        return f"{len(live)} pods are there for {size}"
    if size is not None and (stale := [reason for reason, _ in told if reason not in STANDING]):
        return f"all its pods train, and it still tells {', '.join(stale)}: {text}"
    down = sorted({name for pod in live for name in manifest_pods.find_down(pod)})
    if unsaid := [name for name in down if f"'{name}'" not in text]:
        return f"{', '.join(unsaid)} of its pods does not run, and it does not say so: {text}"
    return f"its pods differ from its template: {'; '.join(lost)}" if lost else ""


def find_gone(name: str, status: Raw, pods: Iterable[Raw]) -> str:
    """A pod that a condition tells of as one that waits, and that is not there; "" if there is none."""
    there = {pod["metadata"]["name"] for pod in pods}
    waits = [message for reason, message in read_told(status) if reason in _OF_WAITING]
    first = re.escape(names.pod_name(name, 0)[:-1])
    named = {found for message in waits for found in re.findall(rf"(?<![\w.-]){first}\d+\b", message)}
    return next((pod for pod in sorted(named - there)), "")


def judge_silence(answered: bool, said: str, watched_seconds: float) -> str:
    """What is wrong with a job that neither trains nor tells why.

    `answered`: whether it did once, and `said` is the last of that; one that never did may do so within the minute.
    """
    if answered:
        return f"it says no more why: {said}"
    return "silent" if watched_seconds >= SILENT_SECONDS else ""


def is_warned(made: Made, status: Raw) -> bool:
    return any(word in _read_warning(status) for word in made.warned)


def _read_warning(status: Raw) -> str:
    return next((c.get("message") or "" for c in status.get("conditions") or () if c["type"] == "Warning"), "")


def find_last_step(pod: Raw) -> float:
    """When a pod got to where it is: created, scheduled, or with a container that runs."""
    status = pod.get("status") or {}
    times = [pod["metadata"]["creationTimestamp"]]
    times += [c.get("lastTransitionTime") for c in status.get("conditions") or () if c["type"] == "PodScheduled"]
    for kind in ("containerStatuses", "initContainerStatuses"):
        states = [c.get("state") or {} for c in status.get(kind) or ()]
        times += [state["running"].get("startedAt") for state in states if state.get("running")]
    return max(datetime.fromisoformat(when.replace("Z", "+00:00")).timestamp() for when in times if when)


def most_pods(made: Made) -> int:
    """How many pods of this job may be made in a minute: each try of a job whose script fails makes all of them."""
    size = int(made.body["spec"].get("replicas") or 1)
    if EVICTED in made.parts and not ENDED_BEFORE.intersection(made.parts):
        return most_pods_of_evicted(size)
    return max(MOST_REFUSED + 3, 0 if REFUSED_BY_NODES in made.parts else MOST_TRIES * size)


def most_pods_of_evicted(size: int) -> int:
    """The first pods of a job, a few in their place, which are made at once, and then one that tries for all."""
    return size + MOST_REFUSED


def find_words(raw: object) -> Iterator[Word]:
    """The names of fields, and values, in a part of a manifest."""
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            yield Word(str(key), is_field=True)
            yield from find_words(value)
    elif isinstance(raw, str):
        if raw:
            yield Word(raw)
    elif isinstance(raw, Sequence):
        for one in raw:
            yield from find_words(one)


def is_told(word: str, text: str) -> bool:
    """Whether a text has this word of a part. A plain one, such as `logs`, is in many texts about other things."""
    return is_named(Word(word, is_field=True), text) if _is_plain(word) else word.lower() in text.lower()


def _is_plain(word: str) -> bool:
    return word.isascii() and word.isalpha() and word.islower()


def is_named(word: Word, text: str) -> bool:
    """Whether a text names this field or value, and not only has it in other words of its own.

    A field of one plain word, such as `volumes`, has to be part of a path, or the name of a container, a short value in
    quotes or after `name`, and so a value that many fields have, such as `Always`.
    """
    said = re.escape(word.text)
    alone = rf"(?<![\w-]){said}(?![\w-])"
    if word.is_field:
        path = rf"\.{said}\b|\b{said}\[|[\"'`\[]{said}[\"'`\]]|\b{said}: |\bvalue of {said}\b|\bcontainer {said}\b"
        pattern = path if _is_plain(word.text) else alone
    elif word.text.lower() in _COMMON:
        pattern = rf"[\"'`]{said}[\"'`]|\bname {said}\b"
    else:
        pattern = alone if len(word.text) > 3 else rf"[\"'`\[]{said}[\"'`\]]|name {said}\b|={said}\b| is {said}\b"
    return re.search(pattern, text, re.IGNORECASE) is not None


def find_most(times: Iterable[float], seconds: float = 60.0) -> int:
    """The most events within so many seconds."""
    ordered, most, first = sorted(times), 0, 0
    for last, at in enumerate(ordered):
        while at - ordered[first] > seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def shorten(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:700]
