"""The rules for a directive, as pure functions.

They follow `docs/protocol.md`: a directive applies to the generations that it names and is ignored otherwise, so an old
or repeated one is harmless. No I/O and no clock.
"""

from __future__ import annotations

from elasticjob.protocol import wire


def is_over(generation: int, directive: wire.Directive | None) -> bool:
    """Whether the running generation must end: by a regroup, a newer world, or a stop."""
    if isinstance(directive, wire.Regroup):
        return generation <= directive.generation
    if isinstance(directive, wire.World):
        return generation < directive.generation
    return isinstance(directive, wire.Stop)


def find_world(generation: int, store: wire.Store | None, directive: wire.Directive | None) -> wire.World | None:
    """The world to enter from `ready`; None if the directive is not a valid world.

    A world that names a store of this agent which no longer listens was created for an earlier `ready`. It is void; the
    hub creates another one when it learns of the new store.
    """
    if not isinstance(directive, wire.World) or directive.generation <= generation:
        return None
    if directive.rank == 0 and (store is None or directive.store.port != store.port):
        return None
    return directive


def is_given_up(generation: int, directive: wire.Directive | None) -> bool:
    """Whether the hub waits for a `ready` that confirms that a generation will never run here."""
    return isinstance(directive, wire.Regroup) and directive.generation > generation


def ends_memory(directive: wire.Directive | None) -> bool:
    """Whether the workers end with their world, also those that keep their memory."""
    return isinstance(directive, wire.Stop) or (isinstance(directive, wire.Regroup) and directive.fresh)


def grace_of(directive: wire.Directive | None) -> float:
    """Seconds that the script may take to save its state before the generation ends; 0 if it cannot save."""
    if isinstance(directive, wire.Regroup | wire.Stop) and directive.checkpoint:
        return directive.grace_seconds
    return 0.0


def ends_at_once(generation: int, directive: wire.Directive | None) -> bool:
    """Whether the running generation ends by an order of the hub, which knows that nothing can be saved."""
    ends = isinstance(directive, wire.Regroup | wire.Stop) and is_over(generation, directive)
    return ends and grace_of(directive) == 0


def is_hung(directive: wire.Directive | None) -> bool:
    """Whether the world ends because it makes no steps; stacks are collected first."""
    return isinstance(directive, wire.Regroup) and directive.reason == wire.HUNG


def base_rank(world: wire.World) -> int:
    """The global rank of this pod's first worker; the number of workers can differ by pod."""
    return sum(world.nprocs[: world.rank])


def world_size(world: wire.World) -> int:
    """The number of worker processes in the world."""
    return sum(world.nprocs)


def leave_after(grace_seconds: float) -> float:
    """Seconds to continue training after SIGTERM: the grace period minus the time needed to stop the workers."""
    return max(0.0, grace_seconds - min(5.0, 0.3 * grace_seconds))


def backoff(
    attempt: int, fraction: float, spread: float = 0.0, *, sent_away: bool = False, busy: bool = False
) -> float:
    """Seconds to wait before connection attempt number `attempt`: none, then 0.1 s doubling up to 5 s.

    `fraction` (0..1, random) spreads many agents over the upper half of the interval. `spread`: the seconds over which
    the hub wants its agents to come back, a few milliseconds for a few agents. It is used where all of them lost the
    hub, so never for the first attempt after a connection broke, unless the hub `sent_away` its agents itself. A hub
    that answers that it is `busy` is there, and asks for about a second, whatever the spread.
    """
    if busy:
        return min(5.0, 2.0 ** min(max(0, attempt - 1), 10) * (0.5 + fraction))
    if attempt <= 0:
        return spread * fraction if sent_away else 0.0
    if attempt == 1:
        return max(0.1 * (0.5 + 0.5 * fraction), spread * fraction)
    return min(5.0, max(spread, 0.1 * 2.0 ** min(attempt - 1, 10))) * (0.5 + 0.5 * fraction)


def was_paused(slept: float, timeout_seconds: float) -> bool:
    """Whether a short sleep took so long that the hub has considered this agent lost meanwhile."""
    return slept > timeout_seconds
