"""Runs the examples in worlds of real processes, each as `python script.py` would: one import of torch for all."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

from worker.programs.phases import run_phase

EXAMPLES = Path(__file__).parents[3] / "worker_image" / "examples"


def script(name: str, *arguments: str, env: dict[str, str] | None = None, alone: bool = False) -> Callable[[], None]:
    def run() -> None:
        if alone:
            for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
                os.environ.pop(variable, None)
            for variable in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"):
                os.environ.pop(variable, None)
        os.environ.update(env or {})
        sys.argv = [str(EXAMPLES / name), *arguments]
        print(f"# {name} {'alone' if alone else os.environ['WORLD_SIZE']}", flush=True)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    return run


def main() -> None:
    folder = sys.argv[1]
    model = (
        "--steps",
        "{}",
        "--width",
        "16",
        "--layers",
        "1",
        "--batch-size",
        "12",
        "--checkpoint-dir",
        f"{folder}/letters",
    )
    phases = [
        (3, script("basics/groups.py")),
        (3, script("basics/gathering.py")),
        (2, script("basics/launched.py", env={"TORCHELASTIC_RUN_ID": "x"})),
        (2, script("basics/launched.py")),
        (1, script("basics/launched.py", alone=True)),
        (2, script("basics/backend.py")),
        (1, script("basics/gathering.py", alone=True)),
        (2, script("fsdp.py", "--checkpoint-dir", f"{folder}/fsdp", "--steps", "10")),
        (3, script("fsdp.py", "--checkpoint-dir", f"{folder}/fsdp", "--steps", "14")),
        (2, script("language_model.py", *(part.format(30) for part in model))),
        (3, script("language_model.py", *(part.format(40) for part in model))),
        (2, script("steps.py", "--steps", "3", "--step-seconds", "0.01", "--out", f"{folder}/steps")),
    ]
    for number, (size, action) in enumerate(phases):
        run_phase(number, size, action)


if __name__ == "__main__":
    main()
