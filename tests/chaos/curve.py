"""Random changes of the world over training with virtual ranks: every step must be that of an undisturbed job.

A history is a schedule of `chaos.sessions`, with kills, over the model that its seed names: a CNN with batch norm,
dropout and augmentation, a transformer, or the same sharded by FSDP2. Every rank writes a hash of parameters, buffers
and optimizer after each step, and the loss. The reference is a world of four that runs without an agent.

Here the changes are made by real agents, whose part takes most of the time. `curve_worlds` leaves it out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from chaos.sessions import PATIENCE, Stage, make_schedule
from chaos.trials import Report
from worker.fake_hub import FakeHub
from worker.fake_pods import Pods, Steps
from worker.gang_helper import clean_environment, run_gang

PROGRAM = Path(__file__).resolve().parents[1] / "worker/programs/ej_curve.py"
MODELS = ("cnn", "transformer", "fsdp")
WRONG = 3  # exit code of `curve_worlds`: it came to its end, and a history has violations
State = tuple[str, float]  # a hash of everything, and the loss


def check(lines: Sequence[Mapping[str, Any]], reference: Mapping[int, State]) -> list[str]:
    """The violations in this history; empty if there are none. Pure."""
    wrong = []
    for line in lines:
        expected = reference.get(line["step"])
        # The world may break while a sharded state is gathered for its hash: the step is made all the same.
        state = (line.get("hash", expected and expected[0]), line["loss"])
        if expected != state:
            where = f"step {line['step']}, rank {line['rank']} of {line['world']} in generation {line['generation']}"
            wrong.append(f"{where}: {state}, and undisturbed {expected}")
    made = {line["step"] for line in lines}
    missing = sorted(set(range(max(made, default=0))) - made)
    return [*wrong, *([f"no rank wrote the steps {missing}"] if missing else [])]


class References:
    """The undisturbed curves, as far as they were needed."""

    def __init__(self, folder: Path, size: int = 4) -> None:
        self._folder, self._size = folder, size
        self._known: dict[str, dict[int, State]] = {}

    def find(self, model: str, steps: int) -> dict[int, State]:
        """The first steps of a model, by step."""
        if len(self._known.get(model, ())) < steps:
            folder = self._folder / f"reference-{model}-{steps}"
            arguments = ("--model", model, "--out", str(folder), "--checkpoints", str(folder / "checkpoints"))
            run_gang(PROGRAM, self._size, *arguments, "--steps", str(steps), timeout=600)
            lines = Steps(folder).read()
            self._known[model] = {line["step"]: (line["hash"], line["loss"]) for line in lines}
        return self._known[model]


def run_trial(
    seed: int, length: int, steps: int, references: References, directory: Path, model: str | None = None
) -> tuple[int, list[str]]:
    """The number of faults, and the violations. The history goes on until it has at least this number of steps."""
    model = model or MODELS[seed % len(MODELS)]
    size = 1 + seed % 4
    schedule, done = make_schedule(seed, length, size), []
    out = Steps(directory / f"curve-{seed}")
    folder = directory / f"curve-pods-{seed}"
    folder.mkdir()
    arguments = ("--model", model, "--out", str(out.folder), "--checkpoints", str(folder / "checkpoints"))
    try:
        with FakeHub(size=size) as hub, Pods(folder, hub.url) as pods:
            stage = Stage(hub, pods, out, (str(PROGRAM), *arguments, "--step-seconds", "0.01"))
            world = stage.begin(size)
            for event in schedule:
                done.append(str(event))
                world = stage.act(event, world)
            await_steps(out, steps)
    except Exception:
        logs = "\n".join(f"{pod.name}: {pod.log[-1500:]}" for pod in pods.pods.values())
        return len(done), [f"seed {seed}, {model}, after {done}: {traceback.format_exc()}\n{logs}"]
    lines = out.read()
    wrong = check(lines, references.find(model, max(line["step"] for line in lines) + 1))
    return len(done), [f"seed {seed}, {model}, {done}: {one}" for one in wrong[:5]]


def await_steps(out: Steps, steps: int) -> None:
    """Wait until so many steps are made: with patience for each few of them, not for all."""
    for step in range(0, steps + 1, 5):
        out.wait(partial(_has_reached, step), PATIENCE)


def _has_reached(step: int, lines: Sequence[Mapping[str, Any]]) -> bool:
    return bool(lines) and lines[-1]["step"] >= step


def run_worlds(*arguments: str, module: str = "chaos.curve_worlds") -> Iterator[dict[str, Any]]:
    """What the program says of each history. It is a process of its own because it forks."""
    command = [sys.executable, "-m", module, *arguments]
    before = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []  # of a package with a mistake
    environment = clean_environment()
    environment["PYTHONPATH"] = os.pathsep.join([*before, environment["PYTHONPATH"]])
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
        except BaseException:
            process.kill()  # its children die with it
            raise
    if process.returncode not in (0, WRONG):
        raise RuntimeError(f"{command} ended with {process.returncode}")


def run(seed: int, histories: int, with_agents: int, directory: Path) -> Report:
    """Histories of consecutive seeds, without agents and with them; repeat a run with `--only curve --seed N`."""
    report, began = Report("curve", seed), time.monotonic()

    def note(number: int, what: str, faults: int, wrong: Sequence[str]) -> None:
        report.histories += 1
        report.faults += faults
        report.violations += wrong
        print(f"{'WRONG' if wrong else 'ok':5} seed {number}, {what}: {faults} changes", flush=True)

    for found in run_worlds("--seed", str(seed), "--histories", str(histories)):
        where = f"seed {found['seed']}, {found['model']}, {found['changes']}"
        note(found["seed"], found["model"], len(found["changes"]), [f"{where}: {one}" for one in found["violations"]])
    references = References(directory)
    for number in range(seed, seed + with_agents):
        faults, wrong = run_trial(number, 5, 200, references, directory)
        note(number, f"{MODELS[number % len(MODELS)]} with agents", faults, wrong)
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report
