"""The program in which `counting` counts: it does the work of each case of a module between two calls of `getppid`.

It imports nothing that a case may import, for then that would not be counted.
"""

from __future__ import annotations

import gc
import os
import sys
import time


def main(module: str, packages: str) -> None:
    sys.path.append(packages)
    gc.disable()  # what a collection costs depends on the cases before
    time.monotonic = lambda: 1.0  # what depends on the time would differ from run to run
    found = __import__(f"benchmarks.instructions.{module}", fromlist=["CASES"])
    for prepare in found.CASES.values():
        work = prepare()
        os.getppid()
        work()
        os.getppid()


if __name__ == "__main__":
    main(*sys.argv[1:])
