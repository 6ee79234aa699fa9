"""Counts steps, and saves a state of `--mib` MiB when it is asked to end: `saves_last.py DIRECTORY JOURNAL`.

Rank 0 saves; the first time, also after a few steps. All of a state differs from that of another step, and what is
loaded is checked. The journal, a file that outlives the pods, has a line for each start, save and end: what, rank and
step.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
PIECE = random.Random(7).randbytes(MIB - 16)


def save(directory: Path, step: int, mib: int) -> None:
    temporary = directory / f"step-{step:08d}.tmp"
    with temporary.open("wb") as file:
        for index in range(mib):
            file.write(struct.pack("<QQ", step, index))
            file.write(PIECE)
    temporary.replace(directory / f"step-{step:08d}.pt")
    for old in sorted(directory.glob("step-*.pt"))[:-1]:
        old.unlink()


def load(directory: Path, mib: int) -> int:
    """The step of the newest state; 0 for none."""
    found = sorted(directory.glob("step-*.pt"))
    if not found:
        return 0
    step = int(found[-1].stem.removeprefix("step-"))
    with found[-1].open("rb") as file:
        for index in range(mib):
            if file.read(MIB) != struct.pack("<QQ", step, index) + PIECE:
                raise SystemExit(f"{found[-1].name}: MiB {index} is not of this step")
        if file.read(1):
            raise SystemExit(f"{found[-1].name} is too long")
    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--mib", type=int, default=1)
    args = parser.parse_args()
    rank, ended = int(os.environ["RANK"]), list[int]()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))

    def note(what: str, step: int, **_: Any) -> None:
        with args.journal.open("a") as file:
            file.write(f"{what} {rank} {step} {time.time():.2f}\n")

    first = step = load(args.directory, args.mib)
    note("start", step)
    while not ended:
        time.sleep(0.05)
        step += 1
        if rank == 0 and first == 0 and step == 5:
            save(args.directory, step, args.mib)
            note("save", step)
    note("asked", step)
    if rank == 0:
        save(args.directory, step, args.mib)
        note("save", step)
    sys.exit(0)


if __name__ == "__main__":
    main()
