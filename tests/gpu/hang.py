"""A rank that does not go on: what the agent sees of the ranks that wait for it on the device."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from elasticjob.channel import hang, stillness, work
from gpu import rig
from gpu.report import Report


def paused(check: Report, folder: Path) -> None:
    """A rank is paused in a step. The others wait: that is seen, and after the pause they go on."""
    _pause(check, folder, "stop")


def paused_elsewhere(check: Report, folder: Path) -> None:
    """The same in an evaluation, of which only torch's recorder tells how far the device is."""
    _pause(check, folder, "stop evaluating", evaluates=True)


def _pause(check: Report, folder: Path, point: str, **settings: bool) -> None:
    with rig.gang(folder, "train.py", {"width": 256, **settings}) as world:
        world.start(3)
        world.await_step(20, 60.0)
        stopped, waiting = world.members[1], [world.members[0], world.members[2]]
        still = stillness.Stillness(worked=10)
        (world.folder / f"die-{stopped.pid}").write_text(point)
        rig.wait(lambda: not (world.folder / f"die-{stopped.pid}").exists(), "the pause", 10.0)
        time.sleep(0.3)
        reached = max(row["step"] for row in world.steps())
        began, last, seen = time.monotonic(), 0.0, []
        is_still = blocked = None
        pids = [one.pid for one in waiting]
        before = {pid: work.measure(pid).ticks for pid in pids}
        while time.monotonic() - began < 7.0 and not (is_still and blocked):
            now = time.monotonic()
            still = still.look(now, world.looks.glance(world.server, pids[:1]))
            is_still = is_still or (round(now - began, 2) if still.is_waiting else None)
            if now - last >= hang.BLOCKED_SECONDS:
                last = now
                seen.append(world.looks.take_stacks(world.server, {0: pids[0]}, polls=still.is_waiting))
                blocked = blocked or (round(now - began, 2) if hang.is_blocked(seen) else None)
            time.sleep(0.1)
        took = time.monotonic() - began
        pending = {pid: world.looks.is_pending(pid) for pid in pids[:1]}
        ticks = {f"rank {2 * index}": work.measure(pid).ticks - before[pid] for index, pid in enumerate(pids)}
        check.measure(secondsUntilStill=is_still, secondsUntilBlocked=blocked, ticks=ticks, seconds=round(took, 1))
        check.dry = check.dry and os.environ.get("FAKE") != "1"  # over gloo, a rank waits in the collective itself
        told = "a rank that waits tells that its device has not done what it has queued"
        check.expect(all(pending.values()), told, device_only=True)
        check.expect(blocked is not None, "that a rank is blocked behind a paused one is seen within seconds")
        still_told = "that a pod's ranks wait is seen within seconds"
        check.expect(is_still is not None, still_told, device_only=bool(settings))
        os.kill(stopped.pid, signal.SIGCONT)
        world.await_step(reached + 4)
        check.expect(True, "after the pause all go on")
