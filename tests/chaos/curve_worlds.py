"""Random changes over training with virtual ranks, in worlds without agents: real processes, groups and kills, cheaply.

The processes are forked with their imports made, and the verifier's `Worlds` ends, kills and calls them as agents do. A
schedule has joins, announced leaves, kills of one or two ranks and of all, also in the middle of a change, at random
steps. Every step must be that of an undisturbed world of four: parameters, buffers, optimizer, loss, learning rate,
gradient scaler and averaged weights.

python -m chaos.curve_worlds --seed N --histories M prints a JSON object for each history.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.curve import MODELS, PROGRAM, WRONG, State, check
from chaos.sessions import Event, make_schedule
from elasticjob.diagnose.verify import start_server
from elasticjob.diagnose.verify_worlds import Lines, WorldFailedError, Worlds
from elasticjob.launch.fork_server import ForkServer

PATIENCE = 240.0  # seconds without a step, on a busy machine


@dataclass(frozen=True)
class History:
    """What happens in a run: a first size, and events before which so many steps are made."""

    model: str
    size: int
    events: tuple[tuple[int, Event], ...]


def plan(seed: int, steps: int, changes: int = 5) -> History:
    """A history of this many steps. In every third one, all ranks are killed at once. Pure."""
    chance, size = random.Random(seed), 1 + seed % 4
    schedule = make_schedule(seed, changes, size)
    if chance.random() < 1 / 3:
        schedule.insert(chance.randrange(changes + 1), Event("kill-all"))
    at = sorted(chance.sample(range(1, steps - 5), len(schedule)))
    return History(MODELS[seed % len(MODELS)], size, tuple(zip(at, schedule, strict=True)))


def act(worlds: Worlds, event: Event) -> None:
    """Carry out an event of `chaos.sessions`; those of agents become the same for their ranks."""
    size = worlds.size
    first, second = (rank % size for rank in event.ranks)
    match event.kind:
        case "grow":
            worlds.change(size + 1)
        case "shrink":
            worlds.change(size - 1, leave=[second])
        case "kill":
            worlds.change(size - 1, kill=[first])
        case "kill-two":
            worlds.change(size - 2, kill={first, second})
        case "crash":
            worlds.change(size, kill=[first])
        case "grow-and-kill":
            worlds.change(size, kill=[first], notice=event.delay)
        case "shrink-and-kill":
            worlds.change(size - 2, leave=[second], kill=[first], notice=event.delay)
        case "kill-all":
            worlds.change(size, kill=range(size))
        case other:
            raise ValueError(f"no such event: {other}")


class Runs:
    """Runs histories below a folder, and keeps the undisturbed curves."""

    def __init__(self, server: ForkServer, folder: Path, steps: int) -> None:
        self._server, self._folder, self._steps = server, folder, steps
        self._references: dict[str, dict[int, State]] = {}

    def check(self, name: str, history: History) -> dict[str, Any]:
        """What was done, and what was wrong."""
        done: list[str] = []
        lines, restarts, error = self._run(name, history, done)
        wrong = [error] if error else check(lines, self._find_reference(history.model))
        made = len({line["step"] for line in lines})
        if not error and made != self._steps:
            wrong.append(f"{made} steps were made, and {self._steps} asked for")
        worlds = len({line["generation"] for line in lines})
        found = {"model": history.model, "changes": done, "worlds": worlds, "restarts": restarts}
        return found | {"lines": len(lines), "violations": wrong[:5]}

    def _find_reference(self, model: str) -> dict[int, State]:
        if model not in self._references:
            lines, _, error = self._run(f"reference-{model}", History(model, 4, ()), [])
            assert error is None, error
            self._references[model] = {line["step"]: (line["hash"], line["loss"]) for line in lines}
            assert not check(lines, self._references[model])
        return self._references[model]

    def _run(self, name: str, history: History, done: list[str]) -> tuple[list[dict[str, Any]], int, str | None]:
        folder = self._folder / name
        lines = Lines(folder / "out")
        arguments = ("--model", history.model, "--out", str(folder / "out"), "--checkpoints", str(folder / "saved"))
        command = (str(PROGRAM), *arguments, "--steps", str(self._steps), "--save-every", "40")

        def count() -> int:
            return max((line["step"] + 1 for line in lines.read()), default=0)

        with Worlds(self._server, command, folder, count, PATIENCE) as worlds:
            try:
                worlds.start(history.size)
                for step, event in history.events:
                    if worlds.wait_for(step) and not worlds.is_ending:
                        done.append(f"{event} at {step}")
                        act(worlds, event)
                worlds.wait_for(self._steps + 1)  # they end by themselves
            except WorldFailedError as failure:
                said = (folder / "output").read_text(errors="replace")[-3000:]
                return lines.read(), worlds.restarts, f"after {done}: {failure}\n{said}"
        return lines.read(), worlds.restarts, None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.curve_worlds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--changes", type=int, default=5)
    args = parser.parse_args(argv)
    failed = False
    with start_server([str(PROGRAM)]) as server, tempfile.TemporaryDirectory(prefix="curve-") as name:
        runs = Runs(server, Path(name), args.steps)
        for seed in range(args.seed, args.seed + args.histories):
            found = runs.check(str(seed), plan(seed, args.steps, args.changes))
            failed = failed or bool(found["violations"])
            sys.stdout.write(json.dumps({"seed": seed} | found) + "\n")
            sys.stdout.flush()
    return WRONG if failed else 0


if __name__ == "__main__":
    sys.exit(main())
