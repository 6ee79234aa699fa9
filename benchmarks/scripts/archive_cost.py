"""What an archive costs, in a directory: `python benchmarks/scripts/archive_cost.py train|restore`.

`train`: steps of about 100 ms of one thread, beside what two agents run for `spec.checkpoints`, each in a process of
its own: one of a job with an archive, and one of a job without. Before each 50 steps the script saves 64 MiB, of which
16 MiB have changed, for one or the other; each save is archived: 3 MiB a second, where 1 GiB in the default 600 s is
less than 2. One JSON line: for each of the two the mean time of a step and the CPU of its agent in it, in seconds; the
bytes in the archive, and those that have changed from save to save.

`restore`: a pod that has nothing enters a world: seconds until the files are there, and those of a plain copy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from elasticjob import env
from elasticjob.archive import commands, reading
from elasticjob.archive.archive import Archive
from elasticjob.archive.storage import Storage
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.directory import Workers
from elasticjob.peers.entering import Place
from elasticjob.peers.folder import read_chunk
from elasticjob.peers.keeper import Keeper

STEP_SECONDS = 0.1
EVERY = 50  # steps
ALL, CHANGED = 64 * 2**20, 16 * 2**20
PATIENCE = 60.0


def make_keeper(folder: Path, pid: int, *, archive: bool) -> Keeper:
    """What an agent has for the checkpoints of its pod. A line on stdout for each save that is safe."""

    def tell() -> None:
        print("saved", flush=True)

    wanted = env.Archive(f"file://{folder}/store", "uid", every_seconds=1.0, keep=1000) if archive else None
    return Keeper(
        env.Checkpoints(folder / "files", folder / "copies", archive=wanted),
        "127.0.0.1",
        lambda: "secret",
        lambda: (Workers.RUN, [pid] if pid else []),
        lambda number, copies: tell() if number and not archive else None,  # 0: there is none yet
        None if wanted is None else partial(Archive, wanted, tell=lambda told: None, on_saved=tell),
        lambda: None,
    )


def run_agent(folder: Path, *, archive: bool) -> None:
    """Until stdin ends."""
    keeper = make_keeper(folder, os.getppid(), archive=archive)
    keeper.enter(HashStore(), Place(1, 0, 1), lambda: False)
    print("entered", flush=True)
    sys.stdin.read()
    keeper.close()


def compute(rounds: int) -> None:
    """Work of one thread: as much each time, so that it takes longer if something else runs."""
    left = torch.ones(256, 256)
    for _ in range(rounds):
        left = torch.mm(left, left).clamp(0, 1)


def calibrate() -> int:
    """How much of that is a step."""
    began = time.perf_counter()
    compute(300)
    return round(300 * STEP_SECONDS / (time.perf_counter() - began))


class Side:
    """One job: its directory, its agent, and what its steps took."""

    def __init__(self, folder: Path, *, archive: bool) -> None:
        self.folder, self.steps, self.seconds = folder, 0, 0.0
        (folder / "files").mkdir(parents=True)
        words = [sys.executable, __file__, "agent", "--folder", str(folder), *(["--archive"] if archive else [])]
        self._agent = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._await_line("entered")
        (folder / "files" / "base.pt").write_bytes(os.urandom(ALL - CHANGED))
        self._save()
        self._await_line("saved")  # all of it: what is measured begins afterwards
        self._before = self._used()

    def train(self, steps: int, rounds: int) -> None:
        began = time.perf_counter()
        self._save()
        for _ in range(steps):
            compute(rounds)
        self.steps, self.seconds = self.steps + steps, self.seconds + time.perf_counter() - began

    def close(self) -> dict[str, float]:
        found = {"step": self.seconds / self.steps, "cpu": (self._used() - self._before) / self.steps}
        assert self._agent.stdin is not None
        self._agent.stdin.close()
        self._agent.wait(PATIENCE)
        return found

    def _save(self) -> None:
        part = self.folder / "files" / "model.pt.tmp"
        part.write_bytes(os.urandom(CHANGED))
        part.rename(part.with_suffix(""))

    def _await_line(self, wanted: str) -> None:
        assert self._agent.stdout is not None
        said = self._agent.stdout.readline().strip()
        if said != wanted:
            raise RuntimeError(f"the agent has said {said!r}, and not {wanted!r}")

    def _used(self) -> float:
        """CPU seconds of the agent so far."""
        fields = Path(f"/proc/{self._agent.pid}/stat").read_text().rpartition(")")[2].split()
        return (float(fields[11]) + float(fields[12])) / os.sysconf("SC_CLK_TCK")


def train(blocks: int, folder: Path) -> dict[str, float]:
    """In turn, first one and then the other: so that what else a machine does counts for both."""
    plain, ours = Side(folder / "plain", archive=False), Side(folder / "ours", archive=True)
    rounds = calibrate()
    for number in range(blocks):
        for side in (plain, ours) if number % 2 else (ours, plain):
            side.train(EVERY, rounds)
    store = folder / "ours" / "store"
    await_archived(store, folder / "ours" / "files" / "model.pt")
    without, found = plain.close(), ours.close()
    saves = len(list(reading.find_saves(Storage(f"file://{store}"))))
    sent = sum(one.stat().st_size for one in store.rglob("*") if one.is_file())
    of_plain = {f"{key}Without": value for key, value in without.items()}
    return found | of_plain | {"sent": sent, "changed": ALL + (saves - 1) * CHANGED, "saves": saves}


def await_archived(store: Path, file: Path) -> None:
    """The last save of this file is complete: what is sent of one that is not counts for none."""
    digest, deadline = digest_of(read_chunk(file, 0)), time.monotonic() + PATIENCE
    while True:
        ((_, newest),) = reading.find_saves(Storage(f"file://{store}"), most=1)
        if newest.record.files[file.name].chunks[0] == digest:
            return
        if time.monotonic() > deadline:
            raise RuntimeError("the last save is not archived")
        time.sleep(0.1)


def restore(megabytes: int, folder: Path) -> dict[str, float]:
    source = folder / "source"
    source.mkdir()
    for number in range(4):
        (source / f"{number}.bin").write_bytes(os.urandom(megabytes * 2**20 // 4))
    commands.push(Storage(f"file://{folder}/store"), source, 1)
    os.sync()  # nobody pays for what was written before
    began = time.perf_counter()
    shutil.copytree(source, folder / "copied")
    copied = time.perf_counter() - began
    (folder / "files").mkdir()
    os.sync()
    began = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        keeper = make_keeper(folder, 0, archive=True)
        entered = keeper.enter(HashStore(), Place(1, 0, 1), lambda: False)
        took = time.perf_counter() - began
        keeper.close()
    sizes = [one.stat().st_size for one in (folder / "files").iterdir()]
    assert entered and sum(sizes) == megabytes * 2**20, sizes
    return {"mb": megabytes, "restore": took, "copy": copied}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("do", choices=("train", "restore", "agent"))
    parser.add_argument("--blocks", type=int, default=6, help="of 50 steps, for each of the two")
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--archive", action="store_true")
    parser.add_argument("--folder", type=Path, help="of the agent")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.do == "agent":
        run_agent(args.folder, archive=args.archive)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.do == "restore":
            print(json.dumps(restore(args.mb, folder)))
            return
        print(json.dumps(train(args.blocks, folder)))


if __name__ == "__main__":
    main()
