"""Two ranks train in many worlds. Each world is lost at a random moment, and not at the same one for both ranks."""

from __future__ import annotations

import os
import random
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from elasticjob.channel.place import Place
from elasticjob.sessions.process_groups import ProcessGroups
from worker.programs.saying import say

TIMEOUT = 6.0  # seconds that a rank waits whose send is forgotten


def lose(groups: ProcessGroups, after: float, is_over: threading.Event) -> None:
    """What the session does when its agent tells it that a member is lost."""
    time.sleep(after)
    groups.abort()
    while not is_over.wait(0.05):
        groups.shut_down()


def train() -> None:
    received, gradients = torch.zeros(64), torch.ones(2 * 64)
    while True:
        dist.reduce_scatter_tensor(received, gradients)


def main() -> None:
    rank = int(os.environ["RANK"])
    meeting = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    groups, dice = ProcessGroups("gloo", TIMEOUT), random.Random(3)
    longest = 0.0
    _, *ports = os.environ["GANG_PORTS"].split(",")
    for number, port in enumerate(ports, 1):
        groups.enter(Place(number, rank, 2, "127.0.0.1", int(port), rank, 2, 0), lambda: False)
        losses = [dice.uniform(0, 0.05), dice.uniform(0, 0.05)]
        is_over = threading.Event()
        loss = threading.Thread(target=lose, args=(groups, losses[rank], is_over))
        loss.start()
        try:
            train()
        except RuntimeError:
            pass
        finally:
            is_over.set()
        loss.join()
        groups.leave(broken=True)
        meeting.set(f"left {number} {rank}", str(time.time()))
        both = [float(meeting.get(f"left {number} {one}")) for one in range(2)]
        longest = max(longest, max(both) - min(both))
    say("longest", longest)


if __name__ == "__main__":
    main()
