"""Runs scenarios under faults on several lanes concurrently, and prints one JSON line of results."""

from __future__ import annotations

import json
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.lab import Lane, Stage

Tell = Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: a name that allows repeating it, and the actions on the stage."""

    name: str
    tell: Tell
    flags: tuple[str, ...] = ()


@dataclass
class Report:
    suite: str
    seed: int
    histories: int = 0
    faults: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)  # what else this suite says of itself

    def line(self) -> str:
        said = {"suite": self.suite, "histories": self.histories, "faults": self.faults}
        said |= {"violations": len(self.violations), "seed": self.seed, "seconds": round(self.seconds)}
        return json.dumps(said | self.more)


def run_trials(
    suite: str, seed: int, lanes: Sequence[Lane], trials: Sequence[Trial], score: Callable[[], dict[str, Any]] = dict
) -> Report:
    """Every trial once, each on the next free lane. A failed trial is a violation, and the others continue.

    `score`: what else the trials have found, asked at the end.
    """
    report, todo, lock = Report(suite, seed), queue.SimpleQueue[Trial](), threading.Lock()
    for trial in trials:
        todo.put(trial)

    def work(lane: Lane) -> None:
        while True:
            try:
                trial = todo.get_nowait()
            except queue.Empty:
                return
            started = time.monotonic()
            faults, wrong = run_trial(lane, trial)
            with lock:
                took = time.monotonic() - started
                print(f"{'WRONG' if wrong else 'ok':5} {took:5.1f} s {faults:3} faults  {trial.name}", flush=True)
                if wrong:
                    print(wrong, flush=True)  # at once: a run of hours may not reach its end
                report.histories += 1
                report.faults += faults
                report.violations += [wrong] if wrong else []

    began = time.monotonic()
    threads = [threading.Thread(target=work, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report.seconds = time.monotonic() - began
    report.more = score()
    print(report.line(), flush=True)
    return report


def run_trial(lane: Lane, trial: Trial) -> tuple[int, str]:
    """The number of faults, and the violations."""
    faults = 0
    try:
        with lane.open(*trial.flags) as stage:
            try:
                trial.tell(stage)
            except Exception as error:
                tail = stage.operator.log[-3000:]
                requests = "\n".join(
                    f"{r.number} w{r.write} {r.verb} {r.path} {r.status} {r.fault}" for r in stage.proxy.requests[-25:]
                )
                error.add_note(f"operator:\n{tail}\nrequests:\n{requests}\nevents: {stage.jobs.events(stage.name)}")
                raise
            finally:
                faults = sum(stage.proxy.faults.values())
    except Exception:
        return faults, f"{trial.name}: {traceback.format_exc()}"
    return faults, ""
