"""What scripts ask of Horovod, in three ranks: with our module, or with Horovod itself if HVD=horovod.torch."""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch

hvd: Any = importlib.import_module(os.environ.get("HVD", "elasticjob.compat.horovod"))
hvd.init()
ME = hvd.rank()


def say(check: str, result: Any) -> None:
    print(json.dumps({"check": check, "result": result}), flush=True)


def mine(*values: float) -> torch.Tensor:
    return torch.tensor(values).mul(ME + 1)


def find_gradient(compute: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
    x = mine(1.0, 2.0).requires_grad_()
    y = compute(x)
    (y * torch.arange(1.0, y.numel() + 1)).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return [round(one, 4) for one in x.grad.tolist()]


def digest(module: torch.nn.Module) -> list[float]:
    return [round(float(one.double().sum()), 4) for one in module.parameters()]


class Net(torch.nn.Module):
    """The second half is used by some ranks only, and the table has few rows in a batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(ME)
        self.table = torch.nn.Embedding(10, 4)
        self.first = torch.nn.Linear(4, 8)
        self.extra = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, all_of_it: bool = True) -> torch.Tensor:
        h = torch.tanh(self.first(self.table(x)))
        h = torch.tanh(self.extra(h)) if all_of_it else h
        return self.last(h)  # type: ignore[no-any-return]


def train(make: Callable[[Any], torch.optim.Optimizer], clip: bool = False, passes: int = 1, **options: Any) -> Any:
    net = Net()
    optimizer: Any = make(net.parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=net.named_parameters(), backward_passes_per_step=passes, **options
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    generator = torch.Generator().manual_seed(ME)
    for step in range(6):
        optimizer.zero_grad()
        for _ in range(passes):
            x = torch.randint(0, 10, (5,), generator=generator)
            net(x, ME != 1 or step % 2 == 0).pow(2).mean().backward()
        if clip:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        scheduler.step()
    return digest(net)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1 * (ME + 1), momentum=0.5)  # rank 1 gives its own to all


def adam(parameters: Any) -> torch.optim.Optimizer:
    # Not AdamW: Horovod makes a step without gradients to send the state, in which weights decay.
    return torch.optim.Adam(parameters, lr=0.05)


if "HVD" not in os.environ:  # Horovod itself refuses tensors that are not contiguous
    say("transposed", hvd.allreduce(mine(1.0, 2.0, 3.0, 4.0).view(2, 2).t(), op=hvd.Sum).tolist())
    turned = mine(1.0, 2.0, 3.0, 4.0).view(2, 2).t()
    hvd.synchronize(hvd.allreduce_async_(turned, op=hvd.Sum, name="turned"))
    say("in place, transposed", turned.tolist())
say("size", [hvd.size(), hvd.is_initialized(), hvd.local_size() * hvd.cross_size() == hvd.size()])
say("average", hvd.allreduce(mine(1.5, 2.0), name="a").tolist())
say("sum", hvd.allreduce(mine(1.5, 2.0), op=hvd.Sum).tolist())
say("not average", hvd.allreduce(mine(1.5, 2.0), average=False).tolist())
say("min", hvd.allreduce(mine(1.5, 2.0), op=hvd.Min).tolist())
say("max", hvd.allreduce(mine(1.5, 2.0), op=hvd.Max).tolist())
say("product", hvd.allreduce(mine(1.5, 2.0), op=hvd.Product).tolist())
say("whole numbers", hvd.allreduce(torch.tensor([3 + ME]), op=hvd.Sum).tolist())
say("scaled", hvd.allreduce(mine(1.0), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5).tolist())
say("compressed", hvd.allreduce(mine(1.5, 2.0), compression=hvd.Compression.fp16).tolist())
scalar = torch.tensor(float(ME))
say("scalar", hvd.allreduce(scalar).item())
say("unchanged", scalar.item() == ME)
own = mine(1.0)
say("in place", [hvd.allreduce_(own, op=hvd.Sum).tolist(), own.tolist()])
handle = hvd.allreduce_async(mine(2.0), name="later")
say("later", hvd.synchronize(handle).tolist())
say("grouped", [one.tolist() for one in hvd.grouped_allreduce([mine(1.0), mine(2.0, 3.0)], op=hvd.Sum)])
say("gather", hvd.allgather(torch.arange(ME + 1)).tolist())
say("gather rows", hvd.allgather(torch.full((ME, 2), float(ME))).tolist())
say("gather later", hvd.synchronize(hvd.allgather_async(torch.tensor([ME]))).tolist())
say("broadcast", hvd.broadcast(mine(1.0, 2.0), root_rank=2).tolist())
say("broadcast in place", hvd.broadcast_(mine(1.0), root_rank=1).tolist())
say("broadcast later", hvd.synchronize(hvd.broadcast_async(mine(3.0), root_rank=1)).tolist())
say("object", hvd.broadcast_object({"rank": ME, "of": [1, "a"]}, root_rank=1))
say("objects", hvd.allgather_object({"rank": ME}))
hvd.barrier()
say("gradient of allreduce", find_gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)))
say("gradient of average", find_gradient(hvd.allreduce))
say("gradient of allgather", find_gradient(hvd.allgather))
say("gradient of broadcast", find_gradient(lambda x: hvd.broadcast(x, root_rank=1)))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    say("trained", train(sgd))
    say("trained, clipped", train(adam, clip=True))
    say("trained, two passes", train(sgd, passes=2))
    say("trained, compressed", train(sgd, compression=hvd.Compression.fp16))
    say("trained, by sums", train(sgd, op=hvd.Sum))
    say("trained, divided before", train(sgd, gradient_predivide_factor=2.0))

model = Net()
model.table = torch.nn.Embedding(10, 4, sparse=True)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters(), sparse_as_dense=True
)
model(torch.tensor([ME, 5])).sum().backward()
optimizer.step()
say("trained, a sparse table", digest(model))
hvd.shutdown()
