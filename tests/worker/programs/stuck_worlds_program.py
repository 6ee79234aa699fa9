"""One rank goes on from world to world, each of which loses its other rank in the middle of a message of gloo's.

    stuck_worlds_program.py KIND WORLDS

KIND is `host`, where the session's collectives are gloo's, or `device`, with `worker.fake_nccl`. It says how many of
the worlds have kept a thread of gloo's, and whether the rank has as few threads and files as after the first of them
when it has entered further ones, alone, and gloo has given up.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]

from elasticjob.channel.place import Place
from elasticjob.collectives import messages
from elasticjob.sessions.process_groups import ProcessGroups
from elasticjob.torchcompat import waits
from worker import fake_nccl
from worker.programs.saying import say
from worker.programs.sending import die_after

BACKEND = fake_nccl.NAME if sys.argv[1] == "device" else "gloo"
WORLDS = int(sys.argv[2])
PORTS = [int(port) for port in os.environ["GANG_PORTS"].split(",")]
MEETING = 60.0  # seconds within which two ranks enter a world, on a busy machine ...
TIMEOUT = datetime.timedelta(seconds=6)  # ... and after which gloo itself gives up a message in it, long after its loss
TEXT = "x" * (32 << 20)  # more than the buffers of a connection
waits._LOOK_SECONDS = waits._PATIENCE_SECONDS = 0.1


def enter(groups: ProcessGroups, number: int, port: int, rank: int, size: int) -> None:
    groups.enter(Place(number, rank, size, "127.0.0.1", port, rank, size, 0), lambda: False)


def die(number: int) -> None:
    groups = ProcessGroups(BACKEND, MEETING)
    enter(groups, number, PORTS[number], 0, 2)
    die_after(len(TEXT) / 4)
    messages.broadcast(TEXT, 0, groups.flags)


def count() -> list[int]:
    return [len(list(Path("/proc/self", name).iterdir())) for name in ("task", "fd")]


def is_flat(counts: list[list[int]]) -> bool:
    return all(last <= first for last, first in zip(counts[-1], counts[0], strict=True))


def go_on(pipe: int) -> None:
    groups, counts, stuck = ProcessGroups(BACKEND, MEETING), [], 0
    for number in range(1, WORLDS + 1):
        enter(groups, number, PORTS[number], 1, 2)
        distributed_c10d._set_pg_timeout(TIMEOUT, groups.flags)

        def lose() -> None:
            os.read(pipe, 1)
            groups.abort()

        loss = threading.Thread(target=lose)
        loss.start()
        with contextlib.suppress(RuntimeError):  # WorldLostError is one
            messages.broadcast("", 0, groups.flags)
        loss.join()
        stuck += groups._world.is_stuck
        groups.leave(broken=True)
        counts.append(count())
    deadline = time.monotonic() + MEETING
    while not is_flat(counts) and time.monotonic() < deadline:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        enter(groups, WORLDS + 1, store.port, 0, 1)
        groups.leave(broken=False)
        del store
        counts.append(count())
        time.sleep(0.1)
    say("stuck", stuck)
    say("is flat", is_flat(counts))
    say("counts", counts)


def main() -> None:
    torch.set_num_threads(1)
    reading, writing = os.pipe()
    if (survivor := os.fork()) == 0:
        go_on(reading)
        sys.stdout.flush()
        os._exit(0)
    for number in range(1, WORLDS + 1):
        if (child := os.fork()) == 0:
            die(number)
            os._exit(1)
        os.waitpid(child, 0)
        os.write(writing, b"x")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(survivor, 0)[1]))


if __name__ == "__main__":
    main()
