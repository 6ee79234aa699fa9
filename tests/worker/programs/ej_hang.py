"""Hangs soon after it has begun: rank 1 sleeps, and the others wait for it. Something else may go on meanwhile."""

import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

import elasticjob

BURN = """
import time
while True:
    began = time.process_time()
    while time.process_time() - began < 0.06:
        pass
    time.sleep(0.94)
"""


def write_log() -> None:
    with open("/dev/null", "w") as file:  # noqa: PTH123 - as scripts do
        while True:
            file.write("x" * 400_000)
            file.flush()
            time.sleep(1)


def train(steps: int) -> None:
    """A session that makes so many steps, or hangs in its first one."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = elasticjob.Session(model=model, optimizer=optimizer)
    while True:
        with session.step():
            if session.rank == 1 and session.committed + 1 >= steps:
                time.sleep(3600)
            session.backward(session.model(torch.ones(1, 2)).sum())
            optimizer.step()


def main() -> None:
    aside = sys.argv[1]
    if aside == "thread":
        threading.Thread(target=exec, args=(BURN, {}), daemon=True).start()
    elif aside == "child":
        subprocess.Popen([sys.executable, "-c", BURN])
    elif aside == "log":
        threading.Thread(target=write_log, daemon=True).start()
    if aside.startswith("session"):
        train(0 if aside == "session" else 3)
    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main()
