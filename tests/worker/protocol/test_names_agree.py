"""The runtime keeps its own copy of the operator's names and words, because it must not import the operator."""

from __future__ import annotations

import re

import pytest

from elasticjob import env, errors
from elasticjob.agent import torch_agent
from elasticjob_operator.api import names
from elasticjob_operator.model import errortext
from worker.gang_helper import REPOSITORY

# Set by the agent for its workers, or by the author of the job: the operator does not know them.
OURS = {"ELASTICJOB_GENERATION", "ELASTICJOB_CONTROL", "ELASTICJOB_IN_PROCESS", "ELASTICJOB_WARM_START"} | {
    "ELASTICJOB_CHECKPOINT_MIB_PER_SECOND",
    "ELASTICJOB_CODE_REVISION",
    "ELASTICJOB_MEMORY",
    "ELASTICJOB_PRELOAD",
    "ELASTICJOB_REPEATED_FAILURES",
    "ELASTICJOB_RESTORE_BEFORE",
    "ELASTICJOB_RUN_ID",
    "ELASTICJOB_TRACE",
}


def operator_names() -> set[str]:
    return {value for name, value in vars(names).items() if name.startswith("ENV_")}


def runtime_names() -> set[str]:
    values = {value for value in vars(env).values() if isinstance(value, str)}
    return {value for value in values if re.fullmatch(r"ELASTICJOB_[A-Z_]+", value)}


def test_both_lists_hold_the_same_variables() -> None:
    assert runtime_names() - OURS == operator_names()
    assert names.RENDEZVOUS_BACKEND == env.BACKEND


def test_no_other_variable_is_used_anywhere_in_the_runtime() -> None:
    used = set()
    for path in (REPOSITORY / "worker_image/src").rglob("*.py"):
        used |= set(re.findall(r"\bELASTICJOB_[A-Z_]*[A-Z]\b", path.read_text()))
    assert used <= operator_names() | OURS


def test_every_variable_of_ours_is_documented() -> None:
    text = "".join((REPOSITORY / "docs" / name).read_text() for name in ("runtime.md", "elastic-scripts.md"))
    assert {name for name in OURS if name not in text} == set()


ERRORS = [name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, Exception)]
ENDINGS = [
    *(f"elasticjob.errors.{name}: x" for name in ERRORS),
    *(f"elasticjob.errors.{name}: Connection closed by peer" for name in ERRORS),
    *(f"RuntimeError: {words} x" for words in ("Connection closed by peer", "Connection reset", "Connection refused")),
    *(f"torch.distributed.Dist{name}Error: x" for name in ("Backend", "Network", "Store")),
    *(
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: ncclRemoteError: x",
        "RuntimeError: [gloo/pair.cc:1] x",
    ),
    "ValueError: x",
]


@pytest.mark.parametrize("text", ENDINGS)
def test_both_know_by_the_same_words_who_has_lost_a_peer(text: str) -> None:
    """The agent compares the workers of a pod, and the operator the pods of a job."""
    assert torch_agent.is_of_a_peer(text) is errortext.is_of_a_peer("", text)


def test_a_lost_peer_and_a_refused_script_are_told_apart() -> None:
    found = {torch_agent.is_of_a_peer(text) for text in ENDINGS}
    assert found == {True, False}
