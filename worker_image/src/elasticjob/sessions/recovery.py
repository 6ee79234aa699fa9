"""Which rank's state a new world uses. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class RankState:
    """What one rank has in memory."""

    step: int  # the last step applied to it; -1 for a joiner
    clean: bool  # no step is partially applied
    digest: int  # digest of everything that must be equal on all ranks


class StateLostError(RuntimeError):
    """No rank of the new world has a complete state in memory: only a checkpoint helps."""


def choose_source(rank_states: list[RankState]) -> int:
    """The rank whose state is used: the most advanced complete state that most ranks have, from the lowest such rank.

    So a bit that has flipped in one rank's memory does not spread. If no rank has trained yet, rank 0's initial
    parameters are used, as with DDP. Raises StateLostError if no state is complete.
    """
    whole = [rank for rank, rank_state in enumerate(rank_states) if rank_state.clean]
    if not whole:
        raise StateLostError("every rank was interrupted while it applied a step")
    best = max(rank_states[rank].step for rank in whole)
    latest = [rank for rank in whole if rank_states[rank].step == best]
    counts = Counter(rank_states[rank].digest for rank in latest if best >= 0)
    return max(latest, key=lambda rank: (counts[rank_states[rank].digest], -rank))


def are_equal(rank_states: list[RankState]) -> bool:
    """Whether all ranks have the same complete state, so that nothing has to be sent."""
    return all(rank_state == rank_states[0] and rank_state.clean for rank_state in rank_states)
