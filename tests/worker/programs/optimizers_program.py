"""Every optimizer of torch, with parameters of every habit: what `save` wrote is restored by objects that are new."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import elasticjob
from elasticjob.checkpoint import Checkpointer
from elasticjob.errors import CheckpointFailedError
from elasticjob.torchcompat import sharding
from worker.programs.phases import run_phase
from worker.programs.saying import say

_STEPS = 4


class Habits(nn.Module):
    """Parameters that are used, shared, frozen, never used, or used late; `sparse`: with sparse gradients only."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6, sparse=sparse)
        self.rare = nn.Embedding(9, 6, sparse=sparse)  # never used
        self.late = nn.Embedding(9, 6, sparse=sparse)
        self.body = nn.Linear(6, 6)
        self.same = self.body
        self.unused = nn.Linear(6, 4)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, step: int) -> torch.Tensor:
        x = self.words(torch.tensor([step, step + 1]))
        if step >= 2:
            x = x + self.late(torch.tensor([step, step]))
        loss: torch.Tensor = self.frozen(self.same(self.body(x))).square().mean()
        return loss


Choose = Callable[[Habits], Any]


def _of_all(model: Habits) -> Any:
    return model.parameters()


def _in_groups(model: Habits) -> Any:
    embeddings = [*model.words.parameters(), *model.rare.parameters(), *model.late.parameters()]
    rest = [*model.body.parameters(), *model.unused.parameters(), *model.frozen.parameters()]
    return [{"params": rest}, {"params": embeddings, "lr": 0.003, "initial": 7}]


def _of_matrices(model: Habits) -> Any:
    return [one for one in model.parameters() if one.dim() == 2]


def _of_embeddings(model: Habits) -> Any:
    return [model.words.weight, model.rare.weight, model.late.weight]


def _with(name: str, choose: Choose = _in_groups, **settings: Any) -> Callable[[Habits], torch.optim.Optimizer] | None:
    kind = getattr(torch.optim, name, None)  # some are not in every version of torch
    return None if kind is None else lambda model: kind(choose(model), **{"lr": 0.01} | settings)


OPTIMIZERS = {
    "sgd": _with("SGD"),
    "momentum": _with("SGD", momentum=0.9, nesterov=True),
    "adam": _with("Adam"),
    "amsgrad": _with("Adam", amsgrad=True),
    "adamw": _with("AdamW", _of_all),
    "tensor-rate": _with("AdamW", _of_all, lr=torch.tensor(0.01), foreach=False),
    "adadelta": _with("Adadelta"),
    "adafactor": _with("Adafactor"),
    "adagrad": _with("Adagrad"),
    "adamax": _with("Adamax"),
    "asgd": _with("ASGD"),
    "lbfgs": _with("LBFGS", _of_all, history_size=3),
    "muon": _with("Muon", _of_matrices),
    "nadam": _with("NAdam"),
    "radam": _with("RAdam"),
    "rmsprop": _with("RMSprop"),
    "centered": _with("RMSprop", centered=True, momentum=0.5),
    "rprop": _with("Rprop"),
    "sparse-adam": _with("SparseAdam", _of_embeddings),
    "sparse-sgd": _with("SGD", _of_embeddings),
}


def names() -> list[str]:
    return [name for name, make in OPTIMIZERS.items() if make is not None]


def build(name: str, seed: int) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Habits(sparse=name.startswith("sparse"))
    make = OPTIMIZERS[name]
    assert make is not None
    optimizer = make(model)
    # DDP needs a gradient of every sparse parameter.
    is_sparse = name.startswith("sparse")
    return model if is_sparse else DistributedDataParallel(model, find_unused_parameters=True), optimizer


def train(model: Any, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:

        def compute(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(step)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(compute)  # type: ignore[no-untyped-call]
        else:
            compute()
            optimizer.step()


def contents(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": getattr(model, "module", model).state_dict(), "optimizer": optimizer.state_dict()}


def find_difference(found: Any, wanted: Any, where: str = "") -> str:
    """The first place where two states differ; empty if they are equal."""
    if type(found) is not type(wanted):
        return f"{where}: {type(found).__name__} for {type(wanted).__name__}"
    if isinstance(wanted, torch.Tensor):
        return "" if found.dtype == wanted.dtype and torch.equal(found, wanted) else f"{where}: another value"
    if isinstance(wanted, dict):
        if found.keys() != wanted.keys():
            return f"{where}: {list(found)} for {list(wanted)}"
        return next((d for k in wanted if (d := find_difference(found[k], wanted[k], f"{where}.{k}"))), "")
    if isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            return f"{where}: {len(found)} for {len(wanted)}"
        return next((d for i, w in enumerate(wanted) if (d := find_difference(found[i], w, f"{where}.{i}"))), "")
    return "" if found == wanted else f"{where}: {found} for {wanted}"


def _saved(root: Path, name: str, steps: int) -> Any:
    model, optimizer = build(name, 1)
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    train(model, optimizer, range(steps))
    folder = root / f"{name}-{steps}"
    Checkpointer(folder, model, optimizer).save(7, wait=True)
    if dist.get_rank() == 0:
        torch.save(contents(model, optimizer), f"{folder}.pt")
    return len(calls)


def _restored(root: Path, name: str, steps: int) -> Any:
    model, optimizer = build(name, 2)
    folder = root / f"{name}-{steps}"
    checkpoint = Checkpointer(folder, model, optimizer)
    step = checkpoint.restore()
    difference = find_difference(contents(model, optimizer), torch.load(f"{folder}.pt", weights_only=False))
    train(model, optimizer, range(steps, steps + 2))
    return [step, checkpoint.skipped, difference]


def of_all(what: str, action: Callable[[Path, str, int], Any], root: Path) -> None:
    with elasticjob.init(timeout=60):
        for name in names():
            for steps in (0, _STEPS):
                try:
                    found = action(root, name, steps)
                except Exception as error:
                    found = f"{type(error).__name__}: {error}"
                say(f"{name} {what} after {steps}", found)


# A sharded model.


def build_sharded() -> tuple[Any, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model: Any = nn.ModuleDict({"used": nn.Linear(6, 5), "unused": nn.Linear(5, 3)})
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.values():
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def whole(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    def gather(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: gather(one) for key, one in value.items()}
        return value.full_tensor() if hasattr(value, "full_tensor") else value

    return {"model": gather(dict(model.state_dict())), "state": gather(optimizer.state_dict()["state"])}


def save_sharded(root: Path) -> None:
    with elasticjob.init(timeout=60):
        model, optimizer = build_sharded()
        for _ in range(3):
            model["used"](torch.ones(2, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        Checkpointer(root / "sharded", model, optimizer).save(3, wait=True)
        found = whole(model, optimizer)
        if dist.get_rank() == 0:
            torch.save(found, root / "sharded.pt")


def restore_sharded(root: Path) -> None:
    with elasticjob.init(timeout=60):
        model, optimizer = build_sharded()
        checkpoint = Checkpointer(root / "sharded", model, optimizer)
        step = checkpoint.restore()
        difference = find_difference(whole(model, optimizer), torch.load(root / "sharded.pt", weights_only=False))
        say("sharded", [step, checkpoint.skipped, difference])


# What cannot be restored.


def _other(rows: int = 5, *, bias: bool = True, extra: bool = False) -> Any:
    layers: dict[str, nn.Module] = {"a": nn.Linear(6, rows, bias=bias)}
    return nn.ModuleDict(layers | ({"b": nn.Linear(2, 2)} if extra else {}))


class Odd:
    """Keeps something that can be written but must not be unpickled."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def refuse(root: Path) -> None:
    with elasticjob.init(timeout=60):
        model = _other()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        Checkpointer(root / "other", model, optimizer).save(5, wait=True)
        say("without an optimizer", Checkpointer(root / "other", _other()).restore())
        worlds = {
            "shape": _other(4),
            "bias": _other(bias=False),
            "extra": _other(extra=True),
        }
        for name, other in worlds.items():
            _try(name, Checkpointer(root / "other", other, torch.optim.AdamW(other.parameters())).restore)
        parts = [{"params": [model["a"].weight]}, {"params": [model["a"].bias]}]
        _try("groups", Checkpointer(root / "other", model, torch.optim.AdamW(parts)).restore)
        for kind in ("SGD", "Adam"):
            other = _other()
            wrong = getattr(torch.optim, kind)(other.parameters(), lr=0.5)
            before = other["a"].weight.detach().clone()
            _try(kind, Checkpointer(root / "other", other, wrong).restore)
            say(f"{kind} untouched", [torch.equal(before, other["a"].weight), wrong.param_groups[0]["lr"]])
        half = _other().to(torch.bfloat16)
        say("half", [Checkpointer(root / "other", half).restore(), str(half["a"].weight.dtype)])
        alone = root / "alone"
        Checkpointer(alone, model).save(5, wait=True)
        _try("optimizer", Checkpointer(alone, model, optimizer).restore)
        _try("foreign", lambda: Checkpointer(root / "foreign", model, torch.optim.SGD(_other().parameters())))
        odd = Checkpointer(root / "odd", model, odd=Odd({"deep": [Path("x")]}))
        _try("odd", lambda: odd.save(1, wait=True))
        numbers = Odd({"rate": np.float64(0.5), "count": (np.int64(3),)})
        Checkpointer(root / "numbers", model, numbers=numbers).save(1, wait=True)
        numbers.value = None
        say("numbers", [Checkpointer(root / "numbers", model, numbers=numbers).restore(), repr(numbers.value)])


def _try(name: str, action: Callable[[], object]) -> None:
    try:
        say(name, f"no error: {action()}")
    except (CheckpointFailedError, ValueError) as error:
        say(name, f"{type(error).__name__}: {error}")


def main() -> None:
    root = Path(sys.argv[1])
    run_phase(1, 2, lambda: of_all("steps", _saved, root))
    run_phase(2, 1, lambda: of_all("restored", _restored, root))
    if sharding.HAS_FSDP_ON_CPU:
        run_phase(3, 2, lambda: save_sharded(root))
        run_phase(4, 1, lambda: restore_sharded(root))
    run_phase(5, 2, lambda: refuse(root))


if __name__ == "__main__":
    main()
