"""Counts the instructions of each case with valgrind's callgrind.

Callgrind writes its counters, and begins anew, whenever the program enters a function that we name. `program` calls one
of libc that nothing else calls, before and after each case. So its start, its imports and the preparation of a case are
not counted, and happen once for all cases.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = (ROOT, ROOT / "operator", ROOT / "worker_image" / "src")
MODULES: Final = ("operator_cases", "runtime_cases", "session_cases")
MARK: Final = "getppid"
SECONDS: Final = 240.0


def is_available() -> bool:
    return shutil.which("valgrind") is not None


def count(module: str) -> dict[str, int]:
    """Case -> instructions, of one of the `MODULES`."""
    # Without `site`, what else is installed here makes no difference.
    program = [sys.executable, "-S", "-P", str(Path(__file__).with_name("program.py"))]
    program += [module, sysconfig.get_path("purelib")]
    _run(program)  # a first run writes the bytecode
    with tempfile.TemporaryDirectory(prefix="elasticjob-instructions-") as folder:
        counters = Path(folder, "counters")
        options = ["-q", "--tool=callgrind", "--instr-atstart=no", f"--dump-before={MARK}"]
        options += [f"--callgrind-out-file={counters}"]
        _run(["valgrind", *options, *program, "counted"])
        dumps = sorted(Path(folder).glob("counters.*"), key=lambda path: int(path.suffix[1:]))
        totals = [_read_total(dump) for dump in dumps][1::2]  # the first one of each pair is what led to the mark
    names = list(importlib.import_module(f"benchmarks.instructions.{module}").CASES)
    return dict(zip(names, totals, strict=True))


def _run(command: list[str]) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(map(str, SOURCES)),
        "PYTHONHASHSEED": "0",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")


def _read_total(counters: Path) -> int:
    with counters.open() as lines:
        return next(int(line.partition(":")[2]) for line in lines if line.startswith("totals:"))
