"""Judges what became of a job: it trains, it was refused, or it says what is in the way. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

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
_COMMON: Final = frozenset({"spec", "name", "template", "kind", "value", "image", "path", "true", "false", "None"})


def read_told(status: Raw) -> list[tuple[str, str]]:
    """(reason, message) of the conditions that tell why a job does not train."""
    found = []
    for one in status.get("conditions") or ():
        reason, message = one.get("reason") or "", one.get("message") or ""
        holds = one["status"] == "True" and one["type"] in ("Degraded", "Failed", "Suspended", "Complete")
        waits = one["status"] == "False" and one["type"] in ("Running", "Admitted")
        if (holds or waits) and reason not in _EMPTY:
            found.append((reason, message))
    return found


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


def judge_words(made: Made, status: Raw, cluster: Iterable[str]) -> str:
    """What is wrong with what a job tells that does not train; "" if it names what is in the way.

    `cluster`: names of objects outside the manifest.
    """
    told = read_told(status)
    text = "; ".join(f"{reason}: {message}" for reason, message in told)
    warning = _read_warning(status)
    wanted = list(made.told)
    if not made.is_sure or not wanted:
        wanted += sorted({*find_words(made.body), *find_words(made.neighbours), *cluster})
    if any(word.lower() in f"{text}; {warning}".lower() for word in wanted):
        return ""
    return f"it names none of {', '.join(made.told) or 'the words of its manifest'}: {text}"


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


def find_words(raw: object) -> Iterator[str]:
    """The names of fields and objects in a manifest."""
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            yield from find_words(str(key))
            yield from find_words(value)
    elif isinstance(raw, str):
        if len(raw) > 3 and raw not in _COMMON:
            yield raw
        elif raw:
            yield f'"{raw}"'
            yield f".{raw} "  # a field, as the API server writes it that cannot read its value
            yield f"name {raw} "  # not every message quotes a name
            if len(raw) == 3:
                yield f" {raw} "
    elif isinstance(raw, Sequence):
        for one in raw:
            yield from find_words(one)


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
