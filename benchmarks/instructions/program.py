"""The program in which `counting` counts: it does the work of each case of a module between two calls of `getppid`.

It imports nothing that a case may import, for then that would not be counted. Valgrind is asked through its command
`vgdb` to watch only around the calls: what it watches takes some forty times as long.
"""

from __future__ import annotations

import gc
import os
import sys
import time


def watch(state: str) -> None:
    process = os.posix_spawnp("vgdb", ["vgdb", f"--pid={os.getpid()}", "instrumentation", state], os.environ)
    ended, status = 0, 0
    while not ended:  # valgrind answers while the program runs, not while it waits
        ended, status = os.waitpid(process, os.WNOHANG)
    if status != 0:
        raise RuntimeError(f"vgdb ended with {os.waitstatus_to_exitcode(status)}")


def main(module: str, packages: str, is_counted: str = "") -> None:
    sys.path.append(packages)
    gc.disable()  # what a collection costs depends on the cases before
    time.monotonic = lambda: 1.0  # what depends on the time would differ from run to run
    found = __import__(f"benchmarks.instructions.{module}", fromlist=["CASES"])
    for prepare in found.CASES.values():
        work = prepare()
        if is_counted:
            watch("on")
        os.getppid()
        work()
        os.getppid()
        if is_counted:
            watch("off")


if __name__ == "__main__":
    main(*sys.argv[1:])
