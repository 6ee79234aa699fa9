"""Random histories of MPI worlds: ranks end, fail, abort and are killed at any moment, and the next world begins.

`mpi_worlds.py SEED HISTORIES` takes the place of the agents: it forks the ranks of two or three pods, and ends the
others when one has failed. It writes a line for each thing that is wrong, and one of JSON at the end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from elasticjob.launch import process, standby

SHARED = Path("/dev/shm")
PATIENCE = 90.0
ENDS = ("end", "end", "early", "raise", "exit", "leave", "abort", "kill", "kill", "regroup", "regroup")
HARMLESS = {0, -signal.SIGTERM, -signal.SIGKILL}
CRASHES = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL}


@dataclass(frozen=True)
class World:
    """What happens in one world: which end, of which rank, after how many seconds (from outside) or steps."""

    pods: int
    each: int  # ranks of a pod
    end: str
    rank: int
    seconds: float
    steps: int

    @property
    def size(self) -> int:
        return self.pods * self.each


def draw(chance: random.Random) -> World:
    """A world, small enough that many fit into a minute."""
    pods, each = chance.choice(((1, 2), (2, 1), (2, 2), (3, 1)))
    rank = chance.randrange(pods * each)
    return World(pods, each, chance.choice(ENDS), rank, chance.choice((0.0, 0.1, 0.2, 0.3, 0.5)), chance.randint(1, 5))


def train(world: World, rank: int) -> None:
    """The script of a rank."""
    from elasticjob.mpi import MPI

    whole = MPI.COMM_WORLD
    assert whole.size == world.size
    assert whole.Split_type(MPI.COMM_TYPE_SHARED).size == world.each
    for step in range(world.steps):
        assert whole.allreduce(rank + step) == sum(range(world.size)) + step * world.size
    acts: dict[str, Callable[[], object]] = {
        "raise": lambda: 1 // 0,
        "exit": lambda: sys.exit(3),
        "leave": lambda: os._exit(3),
        "abort": lambda: whole.Abort(3),
        "early": lambda: sys.exit(0),
    }
    if rank == world.rank and world.end in acts:
        acts[world.end]()
    if world.end == "early":
        time.sleep(0.2)
    elif world.end != "end":
        while True:  # until somebody ends it
            whole.allreduce(1)


def run_rank(world: World, generation: int, port: int, rank: int) -> NoReturn:
    """In a process of its own: what an agent's worker is."""
    os.setsid()
    own = {
        "RANK": rank,
        "WORLD_SIZE": world.size,
        "LOCAL_RANK": rank % world.each,
        "LOCAL_WORLD_SIZE": world.each,
        "GROUP_RANK": rank // world.each,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "ELASTICJOB_GENERATION": generation,
        "ELASTICJOB_POD_IP": "127.0.0.1",
    }
    os.environ.update({name: str(value) for name, value in own.items()})
    if world.end not in ("end", "early"):
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)
    script = str(Path(__file__))
    os.environ["MPI_WORLD"] = json.dumps([*vars(world).values(), rank])
    standby.become([script])


def play(world: World, generation: int, store: tuple[int, int]) -> list[str]:
    """Let a world happen. What is wrong with it."""
    before = read_names()
    ranks: dict[int, int] = {}
    for rank in range(world.size):
        pid = os.fork()
        if not pid:
            run_rank(world, generation, store[1], rank)
        ranks[pid] = rank
    began, running, codes = time.monotonic(), dict(ranks), {}
    told = False

    def reap() -> bool:
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
        return not running

    def act() -> None:
        if world.end == "kill":
            end([pid for pid, rank in ranks.items() if rank == world.rank and pid in running], signal.SIGKILL)
        elif world.end == "regroup":
            end(running, signal.SIGTERM)

    while not reap():
        late = time.monotonic() - began
        if world.end in ("kill", "regroup") and not told and late > world.seconds:
            act()
            told = True
        if any(codes.values()):
            time.sleep(random.choice((0, 0, 0.05)))
            end(running, signal.SIGTERM)
        if late > PATIENCE:
            end(running, signal.SIGKILL)
            wait(reap)
            return [f"{world}: ranks did not end: {codes}"]
        time.sleep(0.005)
    wrong = [f"{world}: rank {rank} ended with {code}" for rank, code in codes.items() if code in CRASHES]
    if world.end in ("end", "early"):
        wrong += [f"{world}: rank {rank} ended with {code}" for rank, code in codes.items() if code]
    if not wait(lambda: not find_helpers(store[0])):
        wrong.append(f"{world}: processes are left: {find_helpers(store[0])}")
    if not wait(lambda: not read_names() - before):
        left = read_names() - before
        wrong.append(f"{world}: left in /dev/shm: {left}")
        for name in left:
            (SHARED / name).unlink(missing_ok=True)
    return wrong


def open_store() -> tuple[int, int]:
    """A process that has the store, and its port: a rank that is forked beside a store has a part of it."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        process.die_with_parent(os.getppid())
        store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=PATIENCE), wait_for_workers=False)
        os.write(theirs, b"%d" % store.port)
        signal.pause()
    port = int(os.read(ours, 16))
    os.close(ours)
    os.close(theirs)
    return pid, port


def end(pids: list[int] | dict[int, int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def wait(look: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def read_names() -> set[str]:
    return {one.name for one in SHARED.iterdir() if one.name.startswith("mpich_")}


def find_helpers(store: int) -> list[int]:
    """Processes that ranks have started and that live on: this process is their parent then."""
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if not ended:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            return [int(pid) for pid in children if int(pid) != store]


def main(seed: int, histories: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans become children of this process
    process.die_with_parent(os.getppid())
    began, wrong, played, store = time.monotonic(), [], 0, open_store()
    for number in range(seed, seed + histories):
        chance = random.Random(number)
        for _ in range(chance.randint(1, 3)):
            played += 1
            found = play(draw(chance), played, store)
            wrong += found
            for line in found:
                print(f"history {number}, world {played}: {line}", flush=True)
    print(json.dumps({"worlds": played, "wrong": len(wrong), "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    if "MPI_WORLD" in os.environ:
        *fields, place = json.loads(os.environ["MPI_WORLD"])
        train(World(*fields), place)
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
