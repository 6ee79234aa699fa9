"""A small language model: it learns to write English, letter by letter, from texts that come with Python.

The text is Python's own documentation of a few topics (the module `pydoc_data.topics`), so nothing is downloaded. The
model is a transformer of some 200,000 parameters. All of the library is used: `init`, the elastic sampler with a
constant global batch, checkpoints, progress. It may be stopped at any time and started with any number of ranks.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import elasticjob

CONTEXT = 64


class Letters(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of the text; the target is the piece one letter later."""

    def __init__(self, text: str, alphabet: str) -> None:
        index = {letter: number for number, letter in enumerate(alphabet)}
        self._numbers = torch.tensor([index[letter] for letter in text])

    def __len__(self) -> int:
        return (len(self._numbers) - 1) // CONTEXT

    def __getitem__(self, item: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = item * CONTEXT
        return self._numbers[start : start + CONTEXT], self._numbers[start + 1 : start + CONTEXT + 1]


class Writer(nn.Module):
    """A decoder of a few layers."""

    def __init__(self, letters: int, width: int, layers: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        length = numbers.shape[1]
        hidden = self.letters(numbers) + self.places[:length]
        hidden = self.body(hidden, mask=self.mask[:length, :length], is_causal=True)  # type: ignore[index]
        out: torch.Tensor = self.head(hidden)
        return out


def read_text() -> str:
    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics))[:400_000]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32, help="of the whole world")
    parser.add_argument("--micro-batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--checkpoint-dir", type=Path, default=None)
    args = parser.parse_args()
    text = read_text()
    alphabet = "".join(sorted(set(text)))
    with elasticjob.init(threads=1) as world:
        torch.manual_seed(0)
        data = Letters(text, alphabet)
        model = DistributedDataParallel(Writer(len(alphabet), args.width, args.layers).to(world.device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        sampler = elasticjob.ElasticDistributedSampler(
            data, global_batch_size=args.batch_size, micro_batch_size=args.micro_batch_size
        )
        checkpoint, step = None, 0
        if args.checkpoint_dir:
            checkpoint = elasticjob.Checkpointer(
                args.checkpoint_dir, model, optimizer, sampler=sampler, every=50, memory_every=1
            )
            step = checkpoint.restore()
        first = last = 0.0
        total = torch.zeros(1, device=world.device)
        while step < args.steps:
            for micro, (x, y) in sampler.steps(DataLoader(data, batch_sampler=sampler)):
                with micro.sync(model):
                    output = model(x.to(world.device))
                    loss = nn.functional.cross_entropy(output.flatten(0, 1), y.to(world.device).flatten()) * micro.scale
                    torch.autograd.backward(loss)
                total += loss.detach() / world.world_size
                if not micro.ends_step:
                    continue
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                last = elasticjob.all_reduce(total).item()
                first = first or last
                total = torch.zeros(1, device=world.device)
                elasticjob.report(step=step, total=args.steps, loss=last)
                if checkpoint and checkpoint.should_save(step):
                    checkpoint.save(step)
                if step == args.steps:
                    break
            else:
                sampler.set_epoch(sampler.epoch + 1)
        if checkpoint:
            checkpoint.save(step, wait=True)
        size = sum(parameter.numel() for parameter in model.parameters())
        facts = {"rank": world.rank, "worldSize": world.world_size, "step": step, "parameters": size}
        print(json.dumps(facts | {"firstLoss": round(first, 4), "lastLoss": round(last, 4)}), flush=True)


if __name__ == "__main__":
    main()
