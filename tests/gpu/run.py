"""Runs one check, in a process that may hang or be killed: `python -m gpu.run NAME FOLDER SECONDS`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from gpu.catalogue import CHECKS
from gpu.report import Report


def main() -> None:
    name, folder, _ = sys.argv[1:]
    module, _, function = CHECKS[name].function.partition(":")
    found = Report(name, Path(folder) / "report.json", dry=os.environ.get("DRY") == "1")
    try:
        getattr(importlib.import_module(module), function)(found, Path(folder))
    except Exception as error:
        found.failures.append(f"{type(error).__name__}: {error}")
        found.output += traceback.format_exc().splitlines()[-6:]
    if found.failures:
        for file in sorted(Path(folder).glob("out-*.txt")):
            lines = file.read_text(errors="replace").splitlines()[-5:]
            found.output += [f"{file.stem}: {line[:240]}" for line in lines]
    found.write()
    sys.stdout.flush()
    os._exit(0)  # a thread of torch that does not end is no result


if __name__ == "__main__":
    main()
