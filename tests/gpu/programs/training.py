"""A small training whose result is known: the same model, data and order for a session and for the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import elasticjob

SAMPLES, FEATURES, BATCH = 960, 8, 48


def make_data(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=dtype)
    return x, (x @ torch.randn(FEATURES, 1, generator=generator, dtype=dtype)).tanh()


def make_model(width: int, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(2)
    inner = [nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)]
    return nn.Sequential(*inner).to(dtype)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def make_loader(sampler: Any) -> DataLoader[int]:
    """Batches of indices: the data lie on the device."""
    return DataLoader(range(SAMPLES), batch_sampler=sampler)  # type: ignore[arg-type]


def make_sampler(**more: Any) -> Any:
    return elasticjob.ElasticDistributedSampler(SAMPLES, global_batch_size=BATCH, **more)


def describe(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three numbers of all parameters, still on the device: the norm, a weighted sum, and a digest of the bits."""
    flat = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    index = torch.arange(flat.numel(), device=flat.device)
    bits = flat.view(torch.int64 if flat.dtype == torch.float64 else torch.int32).to(torch.int64)
    wide = flat.double()
    return wide.norm(), (wide * (index % 97)).sum(), (bits * (2 * index + 1)).sum()


def reference(width: int, steps: int, clip: float | None = None) -> Iterator[tuple[float, float]]:
    """The norm and the weighted sum after each step, as one process computes them on the CPU in double precision."""
    x, y = make_data(torch.float64)
    model = make_model(width, torch.float64)
    optimizer = make_optimizer(model)
    sampler = make_sampler(rank=0, world_size=1)
    done = 0
    for epoch in range(steps):
        sampler.set_epoch(epoch)
        for index in make_loader(sampler):
            torch.autograd.backward(nn.functional.mse_loss(model(x[index]), y[index]))
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            norm, weighted, _ = describe(model)
            yield norm.item(), weighted.item()
            done += 1
            if done == steps:
                return
