"""The events of the rescale benchmark, and one run of one event under one launcher."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import launchers, timeline

SETTLE = 1.5  # seconds that a world trains before the event
SILENCE = 20.0  # seconds that a paused node sleeps: longer than any compared keep-alive
SURVIVAL = 10.0  # seconds of observation after the coordinator is lost


@dataclass
class Run:
    """A running job, on which the events act."""

    launcher: launchers.Launcher
    tail: timeline.Tail
    world: timeline.Formed | None = None

    def node_of(self, rank: int) -> int:
        assert self.world is not None
        return self.world.node_of(rank if rank >= 0 else len(self.world.first) + rank)


@dataclass(frozen=True)
class Case:
    """An event: start with `before` nodes of `maximum`, run `act`, and wait for a world of `after`."""

    name: str
    before: int
    after: int
    maximum: int
    act: Callable[[Run], float | None] | None = None
    step_seconds: float = 0.05
    bound: float = 75.0
    pause_counts: bool = True  # whether the pause is reported as well as the time since the event


@dataclass(frozen=True)
class Outcome:
    """Seconds from the event to the first step of every rank; None if that did not happen within the bound."""

    recovery: float | None
    pause: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    note: str = ""


def grow(run: Run) -> float:
    return run.launcher.start_agent(100)


def shrink(run: Run) -> float:
    return run.launcher.shrink(run.node_of(-1))


def kill_follower(run: Run) -> float:
    return run.launcher.kill(run.node_of(-1), signal.SIGKILL)


def kill_first(run: Run) -> float:
    return run.launcher.kill(run.node_of(0), signal.SIGKILL)


def terminate(run: Run) -> float:
    return run.launcher.terminate(run.node_of(-1))


def pause(run: Run) -> float:
    return run.launcher.kill(run.node_of(-1), signal.SIGSTOP)


CASES = (
    Case("start 2 below max", before=2, after=2, maximum=3),
    Case("grow 2 to 3", before=2, after=3, maximum=3, act=grow, bound=90.0),
    Case("shrink 3 to 2, announced", before=3, after=2, maximum=3, act=shrink),
    Case("SIGKILL follower", before=3, after=2, maximum=3, act=kill_follower),
    Case("SIGKILL rank 0", before=3, after=2, maximum=3, act=kill_first, bound=60.0),
    Case("SIGTERM", before=3, after=2, maximum=3, act=terminate),
    Case(
        "SIGKILL outside a collective",
        before=3,
        after=2,
        maximum=3,
        act=kill_follower,
        step_seconds=300.0,
        bound=45.0,
        pause_counts=False,
    ),
    Case("node paused", before=3, after=2, maximum=3, act=pause, step_seconds=0.05, bound=SILENCE, pause_counts=False),
)
COORDINATOR = Case("coordinator lost", before=3, after=3, maximum=3, bound=SURVIVAL)
FENCE = Case("paused node wakes", before=3, after=3, maximum=3, act=pause, bound=30.0, pause_counts=False)
EVERY = (*CASES, COORDINATOR, FENCE)


def wait_until(condition: Callable[[], bool], bound: float) -> bool:
    """Poll until the condition holds; False if it does not within the bound."""
    until = time.monotonic() + bound
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def wait_for_world(
    run: Run, size: int, after: float, bound: float, *, give_up_when_dead: bool = True
) -> timeline.Formed | None:
    """Wait until the world exists, the bound has passed, or no agent is left to form it."""
    until = time.monotonic() + bound
    while True:
        run.tail.read()
        world = timeline.find_world(run.tail.steps, size, after)
        if world is not None or time.monotonic() > until:
            return world
        if give_up_when_dead and not run.launcher.is_alive():
            return None
        time.sleep(0.02)


def perform(case: Case, launcher: launchers.Launcher, directory: Path) -> Outcome:
    """Start, settle, run the event, measure, stop everything."""
    arguments = ["--step-seconds", str(case.step_seconds)]
    job = launchers.Job(directory, case.maximum, arguments=arguments)
    run = Run(launcher, timeline.Tail(job.steps))
    try:
        launcher.open(job, wanted=case.before)
        began = min(launcher.start_agent(node) for node in range(case.before))
        run.world = wait_for_world(run, case.before, began, bound=90.0)
        if case.act is None and case is not COORDINATOR:
            return _measure(case, run, began, run.world)
        if run.world is None:
            return Outcome(None, note="the first world never was")
        time.sleep(SETTLE)
        if case is COORDINATOR:
            return _survive(run)
        assert case.act is not None
        event = case.act(run)
        if event is None:
            return Outcome(None, note="no such thing here")
        if case is FENCE:
            return _fence(run, event)
        return _measure(case, run, event, wait_for_world(run, case.after, event, case.bound))
    finally:
        launcher.close()


def _measure(case: Case, run: Run, event: float, world: timeline.Formed | None) -> Outcome:
    if world is None:
        alive = run.launcher.is_alive()
        return Outcome(None, note=f"not in {case.bound:.0f} s" if alive else "every agent ended")
    run.tail.read()
    return Outcome(
        recovery=world.complete - event,
        pause=timeline.find_pause(run.tail.steps, world) if case.pause_counts and case.act else None,
        phases=timeline.find_phases(event, world, run.tail.marks, run.launcher.moments(event)),
    )


def _survive(run: Run) -> Outcome:
    """After the loss of the coordinator: the longest time without a step, if training continues until the end."""
    event = run.launcher.lose_coordinator()
    if event is None:
        return Outcome(None, note="no such thing here")
    time.sleep(SURVIVAL)
    run.tail.read()
    end = event + SURVIVAL
    gap = timeline.find_longest_gap(run.tail.steps, event, end)
    last = max(step.t for step in run.tail.steps)
    if end - last > SURVIVAL / 2:
        return Outcome(None, note="training ended")
    return Outcome(recovery=gap, pause=gap)


def _fence(run: Run, event: float) -> Outcome:
    """A node sleeps and wakes: seconds until it trains in a world of three again, unless it continues in
    its old one.
    """
    assert run.world is not None
    smaller = wait_for_world(run, 2, event, SILENCE)
    node = run.node_of(-1)
    woken = run.launcher.kill(node, signal.SIGCONT)
    if smaller is None:
        return Outcome(None, note="nobody noticed: it trains on in its old world, unfenced")
    world = wait_for_world(run, 3, woken, 30.0)
    run.tail.read()
    stale = [step for step in timeline.find_stale(run.tail.steps, run.world, node, woken) if step.t > woken + 0.5]
    if stale:
        return Outcome(None, note=f"{len(stale)} steps in an old world")
    return Outcome(world.complete - woken if world else None, note="" if world else "not back in 30 s")
