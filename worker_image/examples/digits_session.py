"""The digits of `digits.py` again, in a session: the process keeps its memory when the world changes.

Run it with `python digits_session.py`, `torchrun --standalone --nproc-per-node=2 digits_session.py`, or in an
ElasticJob. A pod that joins or leaves costs no step, a lost one at most one, and no
process of a survivor is started again.

Each rank prints one JSON object a line. `event` is start (of a process), step, epoch or done. `step` counts what the
whole run has made: the same on all ranks, whatever happened to the world.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elasticjob


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 real images of 8x8 and their labels, from the file that comes with scikit-learn."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the data comes with scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(numpy.loadtxt(path, delimiter=",", dtype=numpy.float32))
    return table[:, :-1] / 16, table[:, -1].long()


def report(event: str, session: elasticjob.Session, **values: Any) -> None:
    where = {"event": event, "generation": session.generation, "rank": session.rank, "worldSize": session.world_size}
    line = where | {"pid": os.getpid(), "step": session.committed + 1} | values | {"time": round(time.time(), 3)}
    sys.stdout.write(json.dumps(line) + "\n")  # one write: the ranks of a node share the output
    sys.stdout.flush()


def accuracy_on(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Every rank tests the whole of it: a world that breaks here would not be mended."""
    with torch.no_grad():
        return round((model(x).argmax(1) == y).float().mean().item(), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=48, help="of the whole world, whatever its size")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least time of a step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = load_digits()
    is_test = torch.arange(len(x)) % 5 == 0
    test_x, test_y = x[is_test], y[is_test]
    data = TensorDataset(x[~is_test], y[~is_test])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sampler = elasticjob.ElasticDistributedSampler(data, global_batch_size=args.batch_size)
    loader = DataLoader(data, batch_sampler=sampler)

    session = elasticjob.Session(model=model, optimizer=optimizer, sampler=sampler)
    report("start", session, epoch=sampler.epoch)
    accuracy = accuracy_on(model, test_x, test_y)
    for epoch in range(sampler.epoch, args.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in session.batches(loader):
            started, before = time.monotonic(), session.committed
            with session.step():
                loss = nn.functional.cross_entropy(session.model(inputs), labels)
                session.backward(loss)
                if session.ends_step:
                    optimizer.step()
                    optimizer.zero_grad()
            if session.committed > before:
                report("step", session, epoch=epoch, loss=round(loss.item(), 5))
                elasticjob.report(step=session.committed + 1, loss=loss)
            time.sleep(max(0.0, args.step_seconds - (time.monotonic() - started)))
        accuracy = accuracy_on(model, test_x, test_y)
        report("epoch", session, epoch=epoch, accuracy=accuracy)
    report("done", session, epoch=args.epochs, accuracy=accuracy)
    session.close()


if __name__ == "__main__":
    main()
