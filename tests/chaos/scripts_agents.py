"""Runs generated scripts under real agents: everything of a pod but its container, against the small hub of the tests.

The pods are forked with the imports of an agent made. What `scripts_worlds` leaves out is in it: the launcher, the
signals and the graces of an agent, and what it cleans up after its workers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos import scripts_judge
from chaos.scripts_judge import Run, Suspend
from chaos.scripts_text import STEPS
from chaos.sessions import Event
from worker import warm_pods
from worker.fake_hub import FakeHub
from worker.fake_pods import Pod, Pods, Steps

PATIENCE = 120.0  # seconds without a step
COLD_PATIENCE = 360.0  # where each pod imports torch, several at a time
_SOON = 5.0  # seconds in which the processes of an old world end
_PAUSE = "0.04"  # seconds between steps: agents need more time for a change than the training takes


def find_processes(folder: Path) -> dict[Path, list[str]]:
    """The processes that a run has started and whose output goes to a pod's log, by that log."""
    found: dict[Path, list[str]] = defaultdict(list)
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            output = (place / "fd/1").readlink()
            if output.is_relative_to(folder):
                found[output].append(f"{place.name} ({(place / 'comm').read_text().strip()})")
    return found


def find_left(folder: Path, lost: Collection[str] = ()) -> list[str]:
    """What old worlds have left. The one process that a script starts and leaves would end with the container.

    `lost`: pods that were killed, of which nothing would be left.
    """
    deadline = time.monotonic() + _SOON
    while any(len(those) > 1 for those in find_processes(folder).values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [f"one of {', '.join(those)}" for those in find_processes(folder).values() if len(those) > 1]
    for place in (folder / "tmp").iterdir():
        names = [] if place.name in lost else sorted(path.name for path in place.iterdir())
        left += [f"the file {place / name}" for name in scripts_judge.find_unexplained(names)]
    return left


@dataclass(frozen=True)
class Start:
    """How pods are started."""

    warm: bool = True  # forked, with the imports of an agent made
    header: Path | None = None  # of a script, of which the imports are made too

    @property
    def patience(self) -> float:
        return PATIENCE if self.warm else COLD_PATIENCE


def prepare(header: Path) -> None:
    """Make the imports of pods, once for all processes that are forked from this one."""
    warm_pods.shared("agent", header)


class Stage:
    """The pods of one run."""

    def __init__(self, hub: FakeHub, pods: Pods, script: Path, folder: Path, patience: float, is_session: bool) -> None:
        self._hub, self._pods, self._folder, self._patience = hub, pods, folder, patience
        self._is_session = is_session  # its ranks keep all steps in memory over a change
        self._command = (str(script), str(folder / "out"), str(folder / "saved"))
        self._steps = Steps(folder / "out")
        self._members: dict[str, Pod] = {}
        self.suspends: list[Suspend] = []
        self.lost: set[str] = set()  # pods
        self._names = (f"pod-{number}" for number in itertools.count())

    def start(self, count: int) -> None:
        for _ in range(count):
            name = next(self._names)
            own = self._folder / "tmp" / name
            own.mkdir()
            env: dict[str, str | None] = {"PAUSE": _PAUSE, "TMPDIR": str(own), "WEIGHS": "1"}
            self._members[name] = self._pods.start(name, *self._command, launcher="elasticjob-run", env=env)

    def read(self) -> list[dict[str, Any]]:
        return [line for line in self._steps.read() if "seen" in line]

    def wait_for(self, steps: int) -> bool:
        """False if the script has ended before so many steps."""
        made, deadline = -1, time.monotonic() + self._patience
        while True:
            now = max((line["step"] for line in self.read()), default=0)
            if now >= steps:
                return True
            if any(pod.process.poll() == 0 for pod in self._members.values()):
                return False
            if now > made:
                made, deadline = now, time.monotonic() + self._patience
            if time.monotonic() > deadline:
                raise AssertionError(f"no step after step {made} in {self._patience:.0f} s; {self._hub.describe()}")
            time.sleep(0.05)

    def _find_running(self) -> int:
        """The generation of the world, or none that any has if it was told to end: it may have saved already."""
        world = self._hub.world
        return 0 if world is None or world.over else world.generation

    def _lose(self, pod: str) -> None:
        self._members.pop(pod).kill()
        self.lost.add(pod)
        self._hub.declare_lost(pod)

    def act(self, event: Event) -> bool:
        """Carry out an event; False where the world has become too small for it, or is not there yet."""
        world = self._hub.world
        members = [] if world is None else [pod for pod in world.pods if pod in self._members]
        if not members or (event.kind not in ("grow", "suspend") and len(members) < 2):
            return False
        first = members.pop(event.ranks[0] % len(members))
        second = members[event.ranks[1] % len(members)] if members else ""
        if event.kind in ("grow", "grow-and-kill"):
            self.start(1)
        if event.kind in ("shrink", "shrink-and-kill"):
            self._hub.remove(second)
            self._members.pop(second)  # it ends well before the others
        time.sleep(event.delay if event.kind.endswith("-and-kill") else 0.0)
        if event.kind == "crash":
            lines = [line for line in self.read() if line["generation"] == self._hub.generation]
            for line in lines[-1:]:
                os.kill(int(line["pid"]), signal.SIGKILL)
        if event.kind == "suspend":
            suspended = [self._members.pop(pod) for pod in list(self._members)]  # also those that have just come
            made = scripts_judge.count_made(self.read(), None if self._is_session else self._find_running())
            self.suspends.append(Suspend(made, self._hub.generation))
            self._hub.suspend()
            for one in suspended:
                one.wait(self._patience)
            self._hub.resume()
            self.start(len(suspended))
        if event.kind == "kill-all":
            for pod in (first, *members):
                self._lose(pod)
            self.start(1 + len(members))
        elif "kill" in event.kind:
            self._lose(first)
            if event.kind == "kill-two" and len(members) > 1:
                self._lose(second)
        return True

    def end(self) -> str:
        """Wait until the pods of the last world have ended, and say which did not end well."""
        deadline = time.monotonic() + self._patience
        while not any(pod.process.poll() == 0 for pod in self._members.values()):
            if time.monotonic() > deadline or all(pod.process.poll() for pod in self._members.values()):
                return f"no pod has come to its end; {self._hub.describe()}"
            time.sleep(0.05)
        last = self._hub.world
        self._hub.stop()  # who has come too late
        codes = {name: pod.wait(self._patience) for name, pod in self._members.items()}
        wrong = {name: code for name, code in codes.items() if code and last is not None and name in last.pods}
        return f"exit codes {wrong}" if wrong else ""


def run(
    text: str,
    folder: Path,
    size: int,
    events: Sequence[tuple[int, float, Event]],
    done: list[str],
    start: Start = Start(),
    steps: int = STEPS,
    is_session: bool = False,
) -> Run:
    """Run the script while its world changes, and wait for its end."""
    (folder / "tmp").mkdir(parents=True)
    (folder / "pods").mkdir()
    script = folder / "train.py"
    script.write_text(text)
    result = Run()
    with FakeHub(size=size) as hub, Pods(folder / "pods", hub.url, warm=start.warm, header=start.header) as pods:
        stage = Stage(hub, pods, script, folder, start.patience, is_session)
        try:
            stage.start(size)
            if stage.wait_for(1):
                hub.set_size(1)
            for step, delay, event in events:
                if stage.wait_for(step):
                    time.sleep(delay)
                    if stage.act(event):
                        done.append(f"{event} at {step}")
            problem = stage.end()
        except AssertionError as error:
            problem = str(error)
        if problem:
            logs = "\n".join(f"{pod.name}: {pod.log[-1500:]}" for pod in pods.pods.values())
            result.error = f"{problem}\n{logs}"
        else:
            result.left = find_left(folder, stage.lost)
        result.suspends = stage.suspends
    # A pod that comes when the others have ended trains on: this hub does not know that the job is complete.
    lines = Steps(folder / "out").read()
    result.lines = [line for line in lines if line.get("step", line.get("at", 0)) <= steps]
    result.finals = scripts_judge.read_finals(folder / "out", first=True)
    result.files = sorted(str(path.relative_to(folder)) for path in (folder / "saved").rglob("*"))
    result.newest = scripts_judge.read_newest(folder / "saved")
    return result
