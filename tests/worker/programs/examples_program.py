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
    phases = [
        (2, script("basics/launched.py", env={"TORCHELASTIC_RUN_ID": "x"})),
        (2, script("basics/launched.py")),
        (2, script("same_curve.py", "--epochs=1")),
        # Those of rank 0 come last, so that rank 1 waits for none.
        (1, script("basics/launched.py", alone=True)),
        (1, script("basics/gathering.py", alone=True)),
        (1, script("same_curve.py", "--epochs=1", alone=True)),
    ]
    for number, (size, action) in enumerate(phases):
        run_phase(number, size, action)


if __name__ == "__main__":
    main()
