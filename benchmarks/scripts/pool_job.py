"""A small job of a shared pool: handwritten digits in a session, with the scaling curve that it is told.

It trains for real (gloo, a global batch of 96 that does not change with the size). What an accelerator would compute is
time asleep: `--step-seconds` on one pod, of which the share `--shared` is divided by the pods of the world.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch

import elasticjob
from elasticjob.sessions.session import Session

BATCH = 96


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    parser.add_argument("--shared", type=float, required=True)
    return parser.parse_args()


def draw(images: torch.Tensor, labels: torch.Tensor, seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    chance = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randint(len(images), (BATCH,), generator=chance)
        yield images[rows], labels[rows]


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = Session(model=model, optimizer=optimizer)
    for inputs, wanted in run.batches(draw(images, labels)):
        if run.committed >= args.steps:
            break
        before = run.committed
        with run.step():
            time.sleep(args.step_seconds * (args.shared / run.world_size + 1 - args.shared))
            mine = slice(run.rank, None, run.world_size)
            loss = torch.nn.functional.cross_entropy(run.model(inputs[mine]), wanted[mine])
            loss.backward()  # type: ignore[no-untyped-call]
            if run.ends_step:
                optimizer.step()
                optimizer.zero_grad()
        if run.committed > before:
            elasticjob.report(step=run.committed, total=args.steps, loss=loss.item())


if __name__ == "__main__":
    main()
