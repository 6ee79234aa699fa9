"""From which step, and from whose memory, a new world continues. Pure.

A model that every rank has completely: `choose_source`. A sharded one, of which a lost rank takes its shards with it:
`plan_recovery`. There, other ranks may have the same shards: the live ones of another copy of the model (HSDP), of
which a step may be applied on some ranks and not on others, or copies that were sent after an earlier step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MOST_PLACED, _MOST_HELD = 3, 8  # see ShardInventory
_NOTHING = -1


NOWHERE = -1  # in no epoch: a joiner, or a script without epochs


class StateLostError(RuntimeError):
    """No rank of the new world has a complete state in memory: only a checkpoint helps."""


class LeftBehindError(RuntimeError):
    """The scripts of other ranks have begun a later epoch."""


def choose_epoch(epochs: Sequence[int], rank: int) -> int:
    """The epoch in which all ranks go on, by that of each one's script. NOWHERE if none has begun one. Pure.

    What a script does between two epochs cannot be skipped, and can be done only with all ranks. If a world broke in
    between, some have it behind them and others before them: those raise LeftBehindError, and begin again as joiners.
    """
    latest = max(epochs)
    if NOWHERE < epochs[rank] < latest:
        raise LeftBehindError(f"other ranks had gone on from epoch {epochs[rank]} to {latest} when the world broke")
    return latest


# --- every rank has the whole state -------------------------------------------------------------------------


@dataclass(frozen=True)
class RankState:
    """What one rank has in memory."""

    step: int  # the last step applied to it; -1 for a joiner
    clean: bool  # no step is partially applied
    digest: int  # digest of everything that must be equal on all ranks


def choose_source(rank_states: list[RankState]) -> int:
    """The rank whose state is used: the most advanced complete state that most ranks have, from the lowest such rank.

    So a bit that has flipped in one rank's memory does not spread. If no rank has trained yet, the initial parameters
    of the lowest rank are used, as with DDP. They are never used if some rank has trained, however many ranks have
    them. Raises StateLostError if no state is complete that could be used.
    """
    has_trained = any(rank_state.step >= 0 for rank_state in rank_states)
    whole = [rank for rank, one in enumerate(rank_states) if one.clean and (one.step >= 0 or not has_trained)]
    if not whole:
        raise StateLostError("every rank that has trained was interrupted while it applied a step")
    best = max(rank_states[rank].step for rank in whole)
    latest = [rank for rank in whole if rank_states[rank].step == best]
    counts = Counter(rank_states[rank].digest for rank in latest if best >= 0)
    return max(latest, key=lambda rank: (counts[rank_states[rank].digest], -rank))


def are_equal(rank_states: list[RankState]) -> bool:
    """Whether all ranks have the same complete state, so that nothing has to be sent."""
    return all(rank_state == rank_states[0] and rank_state.clean for rank_state in rank_states)


# --- every rank has shards ----------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Piece:
    """A part of a sharded model as it was after a step: number `index` of the `count` parts into which the ranks of one
    world had cut it. One of one is the whole model.
    """

    step: int
    world: int  # the generation in which it was cut
    count: int
    index: int


@dataclass(frozen=True)
class ShardInventory:
    """What one rank has in memory."""

    step: int = -1  # the last step applied to it; -1 for a joiner
    clean: bool = True  # no step is partially applied
    placed: tuple[int, ...] = ()  # earlier steps of which it has all but the model, such as the sampler's position
    held: tuple[Piece, ...] = ()  # its own part of the model, and copies of others

    def to_row(self) -> list[int]:
        """Equally many integers on each rank."""
        placed = [*self.placed, *[_NOTHING] * (_MOST_PLACED - len(self.placed))]
        newest = sorted(self.held, reverse=True)[:_MOST_HELD]
        held = [number for one in newest for number in (one.step, one.world, one.count, one.index)]
        return [self.step, int(self.clean), *placed, *held, *[_NOTHING] * (4 * _MOST_HELD - len(held))]

    @classmethod
    def from_row(cls, row: Sequence[int]) -> ShardInventory:
        step, clean, *rest = row
        placed = tuple(one for one in rest[:_MOST_PLACED] if one != _NOTHING)
        held = tuple(Piece(*rest[at : at + 4]) for at in range(_MOST_PLACED, len(rest), 4) if rest[at] != _NOTHING)
        return cls(step, bool(clean), placed, held)

    def find_steps(self) -> Iterator[int]:
        """The steps of which it has all but the model."""
        if self.clean and self.step >= 0:
            yield self.step
        yield from self.placed


@dataclass(frozen=True)
class RecoveryPlan:
    """The step from which the ranks continue, and which ranks have it."""

    step: int  # -1: no rank has trained yet
    world: int = -1  # in which the parts were cut
    holders: tuple[tuple[int, ...], ...] = ()  # by part of the model: the ranks that have it

    def find_piece(self, index: int) -> Piece:
        """Part `index` of the model."""
        return Piece(self.step, self.world, len(self.holders), index)


def plan_recovery(shard_inventories: Sequence[ShardInventory]) -> RecoveryPlan:
    """The latest step of which all parts exist. Raises StateLostError if there is none.

    A step counts only if some rank has completed it: that rank also has the sampler's position and the effects of the
    script's code after the optimizer. The other ranks had all gradients of the step before any rank applied it.
    """
    if all(shard_inventory.step < 0 for shard_inventory in shard_inventories):
        return RecoveryPlan(-1)
    steps = {step for shard_inventory in shard_inventories for step in shard_inventory.find_steps()}
    holders: dict[tuple[int, int, int], dict[int, list[int]]] = {}
    for rank, shard_inventory in enumerate(shard_inventories):
        for piece in shard_inventory.held:
            if piece.step in steps:
                cut = holders.setdefault((piece.step, piece.world, piece.count), {})
                cut.setdefault(piece.index, []).append(rank)
    for (step, world, count), found in sorted(holders.items(), reverse=True):
        if len(found) == count:
            return RecoveryPlan(step, world, tuple(tuple(found[index]) for index in range(count)))
    raise StateLostError("lost ranks took their shards with them, and not all had a copy of the same step")
