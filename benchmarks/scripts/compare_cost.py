"""What `health.compareEverySteps` costs: `python benchmarks/scripts/compare_cost.py [--every 100] [--sharded]`.

One process trains small transformers with AdamW on one thread, and does what a comparison does besides its message of
eight bytes: the digest of the parameters and of the optimizer's state, and the copy. One JSON line for each size:
medians of the CPU time in milliseconds, and the share of all time that a comparison every so many steps takes.
`--sharded` measures FSDP2 instead; this rank has the only shard, so its state is as large as that of the other one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.sessions import replicas
from elasticjob.sessions.memory import Copy, Memory
from elasticjob.sessions.model_state import ModelState, ReplicatedModelState
from elasticjob.sessions.sharded.model import ShardedModelState


def build(width: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def build_sharded(width: int, mesh: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    model, _ = build(width)
    for layer in model.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def make_state(width: int, sharded: bool) -> ModelState:
    hooks = (lambda *_: None, lambda *_: None)
    if not sharded:
        return ReplicatedModelState(*build(width), hooks)
    state = ShardedModelState(lambda mesh: build_sharded(width, mesh), hooks, least=1)
    state.connect(width)
    state.bind(width)
    state.settle(-1)
    return state


def spend(work: Callable[[], object]) -> float:
    """The CPU time of this work, in milliseconds."""
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)


def measure(width: int, every: int, repeats: int, sharded: bool) -> dict[str, Any]:
    """Steps of eight sequences of 64 tokens: few for the size of the model, so that a comparison costs much."""
    state = make_state(width, sharded)
    model, optimizer, memory = state.model, state.optimizer, Memory(state, None, {})
    batch = torch.randn(8, 64, width)
    kept: Copy | None = None

    def train() -> None:
        torch.autograd.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    def copy() -> None:
        nonlocal kept
        kept = memory.copy(kept)

    times: dict[str, list[float]] = {"step": [], "digest": [], "copy": []}
    for _ in range(repeats + 2):
        times["step"].append(spend(train))
        times["digest"].append(spend(lambda: replicas.digest(memory)))
        times["copy"].append(spend(copy))
    found = {name: statistics.median(one[2:]) for name, one in times.items()}
    share = (found["digest"] + found["copy"]) / (every * found["step"] + found["digest"] + found["copy"])
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    rounded = {f"{name}Ms": round(one, 2) for name, one in found.items()}
    return {"parametersMillions": round(millions, 1), **rounded, "every": every, "sharePercent": round(100 * share, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="*", default=[128, 256, 512])
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--sharded", action="store_true", help="a model of FSDP2")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.sharded:
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    for width in args.widths:
        print(json.dumps(measure(width, args.every, args.repeats, args.sharded)), flush=True)


if __name__ == "__main__":
    main()
