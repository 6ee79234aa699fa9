"""Runs one check, in a process that may hang or be killed: `python -m gpu.run NAME`.

It reads the folder for its files from its input, when it is its turn: until then it has imported what it needs.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from gpu.catalogue import CHECKS
from gpu.report import Report


def main() -> None:
    name = sys.argv[1]
    module, _, function = CHECKS[name].function.partition(":")
    check = getattr(importlib.import_module(module), function)
    folder = sys.stdin.readline().strip()
    if not folder:
        return  # its turn has not come
    found = Report(name, Path(folder) / "report.json", dry=os.environ.get("DRY") == "1")
    try:
        check(found, Path(folder))
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
