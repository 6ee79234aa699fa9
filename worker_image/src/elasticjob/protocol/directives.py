"""What a directive means for what an agent does now, as pure functions.

No I/O and no clock here. The rules are those of `docs/protocol.md`: a directive counts for the generations it
names and is ignored otherwise, so that an old or repeated one does no harm.
"""

from __future__ import annotations

from elasticjob.protocol import wire


def is_over(generation: int, directive: wire.Directive | None) -> bool:
    """Whether the generation that runs here must end: told so, replaced by a newer one, or stopped."""
    if isinstance(directive, wire.Regroup):
        return generation <= directive.generation
    if isinstance(directive, wire.World):
        return generation < directive.generation
    return isinstance(directive, wire.Stop)


def find_world(generation: int, store: wire.Store | None, directive: wire.Directive | None) -> wire.World | None:
    """The world to enter from `ready`, if the directive is one that counts.

    A world that names a store of ours which no longer listens was made for an earlier `ready`: it is void, and
    the hub makes another one when it hears of the new store.
    """
    if not isinstance(directive, wire.World) or directive.generation <= generation:
        return None
    if directive.rank == 0 and (store is None or directive.store.port != store.port):
        return None
    return directive


def is_given_up(generation: int, directive: wire.Directive | None) -> bool:
    """Whether the hub waits to hear, from `ready`, that a generation which never ran here never will."""
    return isinstance(directive, wire.Regroup) and directive.generation > generation


def grace_of(directive: wire.Directive | None) -> float:
    """Seconds the script may take to save its state before the generation ends; 0 where nothing can be saved."""
    if isinstance(directive, wire.Regroup | wire.Stop) and directive.checkpoint:
        return directive.grace_seconds
    return 0.0


def is_hung(directive: wire.Directive | None) -> bool:
    """Whether the world ends because it makes no steps: where everybody is, is to be found out first."""
    return isinstance(directive, wire.Regroup) and directive.reason == wire.HUNG


def base_rank(world: wire.World) -> int:
    """The global rank of this pod's first worker: pods may bring different numbers of workers."""
    return sum(world.nprocs[: world.rank])


def world_size(world: wire.World) -> int:
    """How many worker processes the world has."""
    return sum(world.nprocs)


def leave_after(grace_seconds: float) -> float:
    """How long to train on after SIGTERM: the grace, less the time it takes to stop the workers."""
    return max(0.0, grace_seconds - min(5.0, 0.3 * grace_seconds))


def backoff(attempt: int, fraction: float) -> float:
    """Seconds to wait before connection attempt number `attempt`: at once, then 0.1 s doubling to 5 s.

    `fraction` (0..1) spreads a crowd of agents over the upper half of the interval.
    """
    if attempt <= 0:
        return 0.0
    return float(min(5.0, 0.1 * 2 ** min(attempt - 1, 10)) * (0.5 + 0.5 * fraction))


def was_paused(slept: float, timeout_seconds: float) -> bool:
    """Whether a short sleep took so long that the hub has given us up meanwhile."""
    return slept > timeout_seconds
