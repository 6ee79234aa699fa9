"""The same curve at any size: virtual ranks in a session, with dropout, batch norm and augmentation.

Run it in worlds of different sizes and compare the last lines, or let the verifier do it:

    torchrun --standalone --nproc-per-node=1 same_curve.py
    torchrun --standalone --nproc-per-node=3 same_curve.py

Each rank prints one JSON object a line; `event` is step or done. `digest` is of all parameters and buffers, bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elasticjob


class Blobs(Dataset[tuple[torch.Tensor, int]]):
    """Images of noise with a bright quarter, which is the label; each is mirrored at random when it is read."""

    def __len__(self) -> int:
        return 480

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        label = item % 4
        image = torch.randn(1, 12, 12, generator=torch.Generator().manual_seed(item))
        top, left = 6 * (label // 2), 6 * (label % 2)
        image[0, top : top + 6, left : left + 6] += 0.7
        if random.random() < 0.5:
            image, label = image.flip(2), label ^ 1
        return image, label


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(288, 4),
    )


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]


def say(event: str, session: elasticjob.Session, **values: Any) -> None:
    where = {"event": event, "rank": session.rank, "worldSize": session.world_size, "step": session.committed + 1}
    sys.stdout.write(json.dumps(where | values) + "\n")  # one write: the ranks of a node share the output
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--virtual-ranks", type=int, default=8)
    parser.add_argument(
        "--reference-batch", type=int, help="the batch for which the learning rate was chosen, if not 32"
    )
    parser.add_argument("--batch-per-rank", type=int, help="samples of a rank: the batch grows with the world")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    data, model = Blobs(), make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = elasticjob.ElasticDistributedSampler(data, global_batch_size=32, virtual_ranks=args.virtual_ranks)
    loader = DataLoader(data, batch_sampler=sampler)
    growth = None
    if args.reference_batch:  # multiply the learning rate by what the batch is measured to gain
        reference = args.reference_batch
        growth = elasticjob.BatchGrowth(optimizer, sampler, reference_batch_size=reference, rule="adascale")

    def grow(session: elasticjob.Session) -> None:  # then worlds of other sizes have another curve
        sampler.global_batch_size = args.batch_per_rank * session.world_size

    on_world = grow if args.batch_per_rank else None
    session = elasticjob.Session(model=model, optimizer=optimizer, sampler=sampler, growth=growth, on_world=on_world)
    for epoch in range(sampler.epoch, args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in session.batches(loader):
            before = session.committed
            with session.step():
                session.backward(nn.functional.cross_entropy(session.model(images), labels))
                if session.ends_step:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            if session.committed > before:
                say("step", session, loss=session.loss)
                metrics = {"loss": session.loss} | ({"gain": growth.gain} if growth else {})
                elasticjob.report(step=session.committed + 1, **metrics)
    say("done", session, digest=digest(model))
    session.close()


if __name__ == "__main__":
    main()
