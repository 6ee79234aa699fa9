"""Silent corruption: what must be equal on several ranks is compared every few steps.

A bit that flips in one rank's parameters reaches the others with its gradients, so it cannot be mended later. If the
digests differ, all ranks go back to the last state that all of them agreed on, of which each keeps a copy. A rank that
differs from most of its replicas is not trusted any more: it leaves the job.

The replicas of a rank are those with the same part of the model: all ranks, if every rank has the whole model; those
with the same shard, if there are several copies of a sharded one. Compared are the parameters and the state of the
optimizer. Buffers are not: those of batch norm differ by rank.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum

from elasticjob import env
from elasticjob.context import agreement
from elasticjob.errors import ReplicasDifferError
from elasticjob.sessions import transfer
from elasticjob.sessions.memory import Copy, Memory
from elasticjob.sessions.worlds import Worlds

logger = logging.getLogger("elasticjob")


def judge(digests: Sequence[int], shards: int = 1) -> frozenset[int] | None:
    """The ranks that differ from more than half of their replicas; empty if nobody knows who is wrong, None if all are
    equal. Rank r has part r % `shards` of the model. Pure.
    """
    guilty: set[int] = set()
    differs = False
    for part in range(shards):
        replicas = range(part, len(digests), shards)
        common, count = Counter(digests[rank] for rank in replicas).most_common(1)[0]
        differs = differs or count < len(replicas)
        if 2 * count > len(replicas):
            guilty.update(rank for rank in replicas if digests[rank] != common)
    return frozenset(guilty) if differs else None


class Verdict(Enum):
    """What a rank does after a comparison."""

    GO_ON = "go on"
    GO_BACK = "go back"
    LEAVE = "leave"  # its state is wrong
    STOP = "stop"  # going back has not helped, and nobody knows who is wrong


def decide(guilty: frozenset[int] | None, rank: int, in_vain: bool) -> Verdict:
    """`guilty`: see `judge`. `in_vain`: the comparison before found a difference and nobody to blame. Pure."""
    if guilty is None:
        return Verdict.GO_ON
    if rank in guilty:
        return Verdict.LEAVE
    return Verdict.STOP if in_vain and not guilty else Verdict.GO_BACK


class Replicas:
    """Compares the replicas of a session after every `every` steps and after each epoch; 0: never.

    In a world without replicas, in which each shard is on one rank, there is nothing to compare.
    """

    def __init__(self, memory: Memory, worlds: Worlds, every: int) -> None:
        self._memory = memory
        self._worlds = worlds
        self._every = every
        self._agreed: Copy | None = None
        self._in_vain = False  # the last comparison found a difference, and nobody to blame

    def enter(self) -> None:
        """All ranks of a new world have the same state."""
        is_on = self._every > 0 and self._worlds.size > self._memory.model_state.shards
        self._agreed = self._memory.copy(self._agreed) if is_on else None

    def keep(self) -> None:
        """An epoch begins. What the script did since the last one, such as a scheduler's step, is not taken back."""
        if self._agreed is not None and self._agreed.step == self._memory.committed:
            self._agreed = self._memory.copy(self._agreed)

    def check(self) -> bool:
        """Compare, if that is due after this step. Whether all ranks went back. All ranks call it.

        The process exits if its own state is wrong. Raises ReplicasDifferError if nobody knows who is wrong, although
        the ranks have gone back once.
        """
        agreed = self._agreed
        if agreed is None or not self._is_due():
            return False
        try:
            digests = self._worlds.exchange(digest(self._memory))
        except RuntimeError:
            # The world broke. Others may know that the ranks differ, and this state may be trained on wrong gradients.
            # Or they know that all are equal, and go on from this step: then they need this rank's shard of it.
            self._memory.model_state.keep(self._memory.committed, self._worlds.state.generation)
            self._memory.go_back(agreed)
            raise
        guilty, rank = judge(digests, self._memory.model_state.shards), self._worlds.rank
        verdict = decide(guilty, rank, self._in_vain)
        self._in_vain = not guilty and verdict is Verdict.GO_BACK
        if verdict is Verdict.GO_ON:
            self._agreed = self._memory.copy(agreed)
            return False
        with contextlib.suppress(RuntimeError):
            self._worlds.exchange(0)  # no rank leaves before all know that they differ
        agreement.go_back(agreed.step)
        step = self._memory.committed
        if verdict is Verdict.LEAVE:
            text = f"after step {step}, the parameters of rank {rank} differ from those of most of its replicas"
            self._worlds.give_up_corrupt(f"{text}; all agreed after step {agreed.step}")
        if verdict is Verdict.STOP:
            raise ReplicasDifferError(_explain(step, agreed.step, len(digests)))
        who = f"rank {', '.join(map(str, sorted(guilty)))} differs" if guilty else f"the {len(digests)} ranks differ"
        text = "After step %d, %s in the parameters: going back to step %d, which all agreed on."
        logger.warning(text, step, who, agreed.step)
        self._memory.go_back(agreed)
        return True

    def _is_due(self) -> bool:
        sampler = self._memory.sampler
        return self._memory.committed % self._every == 0 or (hasattr(sampler, "is_over") and bool(sampler.is_over()))


def _explain(step: int, agreed: int, size: int) -> str:
    return (
        f"After step {step}, the parameters of the {size} ranks differ again, although all had gone back to step "
        f"{agreed}. Either a device computes wrongly: with three or more ranks (of a sharded model, with three or more "
        "copies), the one that differs from most others is excluded. Or this script trains other parameters on each "
        "rank: set health.compareEverySteps to 0."
    )


def digest(memory: Memory) -> int:
    """A digest of this rank's parameters and of its optimizer's state, for a signed 64-bit word."""
    return transfer.digest_inventory(transfer.take_inventory(memory.model_state.compared()))


def read_every(environ: Mapping[str, str]) -> int:
    """`health.compareEverySteps` of the job; 0 where it is not set."""
    text = environ.get(env.COMPARE_EVERY_STEPS, "").strip()
    if text and not text.isdecimal():
        raise env.SettingsError(f"{env.COMPARE_EVERY_STEPS}={text!r} is not a number of steps. Set it to 0 or more.")
    return int(text or 0)
