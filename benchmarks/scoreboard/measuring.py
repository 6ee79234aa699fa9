"""Runs the launchers and makes cells of what they did."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import cases, goodput, harness, peers, plots
from benchmarks.launchers.catalogue import Contestant
from benchmarks.scoreboard import cells as values
from benchmarks.scoreboard import costs, planning

TOO_LATE = "not run: the time of this run was over (--budget)"
NOT_QUICK = "not run with --quick: half a minute or more for each event"
NO_CONTROLLER = "no controller here: whoever scales it writes to the API server"
AT_ONCE = 8  # systems of a goodput series side by side: each mostly sleeps
SERIES_SECONDS = 40.0  # a goodput series takes so much longer than its minutes, at most
BYTES = "rescale, 2 to 3: bytes to and from the hub, store, lighthouse or master"
WRITES = "rescale, 2 to 3: writes of the operator to the API server"


@dataclass
class Measuring:
    """One run of the scoreboard. After each measurement, `path` has everything so far."""

    board: values.Board
    path: Path
    deadline: float  # of time.monotonic()
    contestants: Sequence[Contestant]

    def has_time(self, seconds: float) -> bool:
        return time.monotonic() + seconds < self.deadline

    def add(self, one: Contestant, row: str, unit: values.Unit, *samples: values.Sample, **more: object) -> None:
        """Add a sample of this system to a row, or without one the reason: `note`."""
        name = one.make().name.removeprefix("ours: ")
        blank = values.Cell(row, unit, f"ElasticJob: {name}" if one.ours else name, one.settings, one.script, one.ours)
        new = replace(blank, samples=samples, **more)  # type: ignore[arg-type]
        loads = (*self.board.loads, round(os.getloadavg()[0], 1)) if samples else self.board.loads
        self.board = replace(self.board, cells=values.add(self.board.cells, new), loads=loads)
        self.path.write_text(json.dumps(self.board.dump(), indent=1) + "\n")
        shown = "never" if samples == (None,) else f"{samples[0]:.4g} {unit}" if samples else ""
        harness.say(f"{row} | {new.system}: {shown} {new.note}")

    def run_events(self, tasks: Sequence[planning.Task]) -> None:
        for task in tasks:
            row = f"{task.case.name}: recovery"
            if self.has_time(planning.estimate_seconds(task)):
                self.attempt(task.contestant, row, "s", lambda task=task: self.run_event(task))  # type: ignore[misc]
            else:
                self.add(task.contestant, row, "s", note=TOO_LATE)

    def attempt(self, one: Contestant, row: str, unit: values.Unit, measure: Callable[[], None]) -> None:
        """A system that cannot be measured does not end the run."""
        try:
            measure()
        except (OSError, RuntimeError) as error:
            self.add(one, row, unit, note=f"failed: {(str(error).splitlines() or [''])[0][:160]}")

    def run_event(self, task: planning.Task) -> None:
        case, one = task.case, task.contestant
        with tempfile.TemporaryDirectory(prefix="elasticjob-bench-") as directory:
            outcome = cases.perform(case, one.make(), Path(directory))
        self.add(one, f"{case.name}: recovery", "s", outcome.recovery, note=outcome.note, phases=outcome.phases)
        if case.pause_counts and case.act is not None:
            self.add(one, f"{case.name}: pause", "s", outcome.pause)

    def run_goodput(self, seconds: float, every: float) -> None:
        """Series of all systems side by side, in groups."""
        row, repeated = f"goodput, one kill in {every:.0f} s", f"steps repeated a kill, one kill in {every:.0f} s"
        able = []
        for one in self.contestants:
            reason = one.lacks.get("goodput") or (NOT_QUICK if one.is_slow and self.board.quick else "")
            if reason:
                self.add(one, row, "share", note=reason)
            else:
                able.append(one)
        for number, at in enumerate(range(0, len(able), AT_ONCE), 1):
            group = able[at : at + AT_ONCE]
            if not self.has_time(seconds + SERIES_SECONDS):
                for one in group:
                    self.add(one, row, "share", note=TOO_LATE)
                continue
            found = goodput.run_side_by_side({one.name: one.make for one in group}, seconds, every, self.board.seed)
            for one in group:
                series = found[one.name]
                self.add(one, row, "share", series.share)
                if series.kills:
                    self.add(one, repeated, "steps", series.repeated / len(series.kills))
            path = self.path.with_name(f"goodput-{every:.0f}s-{number}.png")
            plots.draw_goodput(path, list(found.values()), every)

    def run_costs(self) -> None:
        """Bytes and writes of one rescale."""
        for one in self.contestants:
            reason = one.lacks.get("bytes") or (NOT_QUICK if one.is_slow and self.board.quick else "")
            self.run_cost(one, BYTES, "bytes", reason, lambda one=one: costs.measure_bytes(one))  # type: ignore[misc]
        for one in self.contestants:
            make = one.on_cluster
            reason = "" if make else "not behind the whole operator" if one.ours else NO_CONTROLLER
            self.run_cost(one, WRITES, "writes", reason, lambda make=make: costs.count_writes(make()))  # type: ignore[misc]

    def run_cost(self, one: Contestant, row: str, unit: values.Unit, reason: str, measure: Callable[[], float]) -> None:
        reason = reason or ("" if self.has_time(planning.estimate_rescale(one)) else TOO_LATE)
        if reason:
            self.add(one, row, unit, note=reason)
        else:
            self.attempt(one, row, unit, lambda: self.add(one, row, unit, measure()))

    def run(
        self,
        chosen: Sequence[cases.Case],
        *,
        missing: Collection[str],
        parts: Collection[str],
        repeats: int,
        minutes: float,
        kill_every: Sequence[float],
    ) -> None:
        """Events, goodput, costs; then the events of the slow systems. `missing` packages are not installed."""
        for one in self.contestants:
            absent = f"not installed: {peers.COMMAND}" if one.package in missing else ""
            for case in chosen if "events" in parts else ():
                if absent or case.name in one.lacks:
                    self.add(one, f"{case.name}: recovery", "s", note=absent or one.lacks[case.name])
        self.contestants = [one for one in self.contestants if one.package not in missing]
        rounds, once = planning.plan_events(chosen, self.contestants, repeats, random.Random(self.board.seed))
        if "events" in parts:
            self.run_events(rounds)
        for every in kill_every if "goodput" in parts else ():
            self.run_goodput(minutes * 60, every)
        if "costs" in parts:
            self.run_costs()
        if "events" in parts:
            self.run_events(once)
