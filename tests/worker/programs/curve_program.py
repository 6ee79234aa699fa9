"""The program of `ej_curve` in worlds of several sizes, and stopped and started again: one import of torch for all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from elasticjob.torchcompat import sharding
from worker.programs import ej_curve
from worker.programs.phases import run_phase


def run(folder: str, checkpoints: str, *arguments: str) -> Callable[[], None]:
    """One world; its lines are written below `folder`."""

    def act() -> None:
        root = Path(os.environ["CURVE_OUT"])
        sys.argv = ["ej_curve", "--out", str(root / folder), "--checkpoints", str(root / checkpoints), *arguments]
        ej_curve.main()

    return act


def main() -> None:
    phases: list[tuple[int, Callable[[], None]]] = []
    for model in ("cnn", "fsdp") if sharding.has_custom_reduce() else ("cnn",):
        phases += [(size, run(f"{model}-{size}", f"c-{model}-{size}", "--model", model, "--steps", "11"))
                   for size in (1, 2, 3, 4)]  # fmt: skip
    restarted = ("restarted", "c-restarted", "--restarts", "--model", "cnn", "--save-at", "3", "8", "--steps")
    phases += [
        (2, run("whole", "c-whole", "--restarts", "--model", "cnn", "--steps", "11")),
        (4, run(*restarted, "5")),
        (3, run(*restarted, "9")),
        (1, run(*restarted, "11")),
    ]
    phases.sort(key=lambda phase: -phase[0])  # no rank waits for phases that it does not take part in
    for number, (size, action) in enumerate(phases):
        run_phase(number, size, action)


if __name__ == "__main__":
    main()
