"""Parts of a pod template that contradict the job: they are honoured, and the user is told before a pod runs. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from elasticjob_operator import api, text
from elasticjob_operator.api import names
from elasticjob_operator.api.podtemplate import trainer_container
from elasticjob_operator.model import launchers

# Environment variables that take an agent away from the operator's rendezvous.
_RENDEZVOUS_VARIABLES: Final = (names.ENV_HUB_URL, names.ENV_TOKEN_FILE, "PET_RDZV_BACKEND", "PET_STANDALONE")


_MOST_NAMED: Final = 5  # arguments, of which there may be thousands
_LONGEST: Final = 64  # characters of one


@dataclass(frozen=True, slots=True)
class Contradiction:
    reason: str
    message: str


def find_contradictions(spec: api.Spec) -> Iterator[Contradiction]:
    pod: Mapping[str, Any] = spec.template["spec"]
    name = trainer_container(spec.template)
    trainer: Mapping[str, Any] = next((one for one in pod["containers"] if one.get("name") == name), {})
    if spec.rendezvous.backend is api.RendezvousBackend.OPERATOR:
        yield from _find_overridden(name, trainer)
        yield from _find_unset(name, trainer)
    if pod.get("activeDeadlineSeconds") is not None:
        yield Contradiction(
            "PodDeadline",
            "spec.template.spec.activeDeadlineSeconds ends each pod, which is then replaced and charged as a failure: "
            "to limit the job, set spec.runPolicy.activeDeadlineSeconds",
        )
    grace, announced = pod.get("terminationGracePeriodSeconds"), spec.elastic_policy.graceful_shutdown_timeout_seconds
    if isinstance(grace, int) and grace < announced:
        yield Contradiction(
            "GraceTooShort",
            f"spec.template.spec.terminationGracePeriodSeconds is {grace}, and scripts are promised {announced} s to "
            "save (spec.elasticPolicy.gracefulShutdownTimeoutSeconds): a pod that is deleted may lose what it saves; "
            "raise the one, or lower the other",
        )
    if pod.get("hostname"):
        yield Contradiction(
            "FixedHostname",
            "spec.template.spec.hostname gives all pods one name, so that they cannot be told apart in logs, and a "
            "Service resolves it to any of them: leave it out",
        )


def advise(spec: api.Spec) -> str:
    """What to do about a command that has started no agent, or one that does not reach the operator."""
    pod: Mapping[str, Any] = spec.template["spec"]
    name = trainer_container(spec.template)
    trainer: Mapping[str, Any] = next((one for one in pod["containers"] if one.get("name") == name), {})
    overridden = next(_find_overridden(name, trainer), None)
    if overridden is not None:
        return overridden.message
    words = [*_words_of(trainer, "command"), *_words_of(trainer, "args")]
    if launchers.starts_agent(words):
        return (
            f"Container {name!r} starts an agent: the pod's log says whether it waits for something before that, or "
            "cannot reach the operator's hub"
        )
    others = ", ".join(str(one.get("name")) for one in pod["containers"] if one.get("name") != name)
    found = [] if words else [f"container {name!r} has no command, and its image's entry point starts no agent"]
    found.append("start the script with torchrun or elasticjob-run instead of python or another launcher")
    if others:
        found.append(f"if another container trains ({others}), name it in the annotation {names.ANNOTATION_TRAINER}")
    said = "; ".join(found)
    return f"{said[0].upper()}{said[1:]}. Scripts that use accelerate, Lightning or transformers need no change"


def _words_of(trainer: Mapping[str, Any], field: str) -> list[str]:
    part = trainer.get(field)
    return [word for word in part if isinstance(word, str)] if isinstance(part, list) else []


def _find_overridden(name: str, trainer: Mapping[str, Any]) -> Iterator[Contradiction]:
    words = [*_words_of(trainer, "command"), *_words_of(trainer, "args")]
    overriding = itertools.islice(dict.fromkeys(launchers.find_overriding(words)), _MOST_NAMED)
    found = [f"the argument {text.cut(word, _LONGEST)} of container {name!r}" for word in overriding]
    theirs = {str(one.get("name")) for one in trainer.get("env") or () if isinstance(one, dict)}
    found += [f"the variable {one} of container {name!r}" for one in _RENDEZVOUS_VARIABLES if one in theirs]
    if found:
        yield Contradiction(
            "RendezvousOverridden",
            f"{', '.join(found)} takes precedence over the operator's rendezvous, so that pods may train alone or wait "
            "for ever: remove it, or set spec.rendezvous",
        )


def _find_unset(name: str, trainer: Mapping[str, Any]) -> Iterator[Contradiction]:
    if trainer.get("envFrom"):
        return  # it may set anything
    words = [*_words_of(trainer, "command"), *_words_of(trainer, "args")]
    known = {str(one.get("name")) for one in trainer.get("env") or () if isinstance(one, dict)}
    found = launchers.find_unset(words, known)
    if found:
        yield Contradiction(
            "VariableNotSet",
            f"container {name!r} reads {', '.join(found)} in its command, which nobody sets: leave --nnodes, "
            "--node-rank, --master-addr and --master-port out, since the operator gives torchrun all of them",
        )
