"""Horovod's elastic functions over several worlds: 3 ranks, 2 after a kill, and 3 after an announced change."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import elasticjob.compat.horovod as hvd
from elasticjob.checkpoint import requests
from worker.programs.phases import run_phase

FOLDER = Path(sys.argv[1])
EPOCHS, SAMPLES, BATCH = 3, 24, 2


class Data(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


def say(check: str, result: Any) -> None:
    print(json.dumps({"check": check, "result": result}), flush=True)


def train(phase: int, announced_at: tuple[int, int] | None = None, dies_at: tuple[int, int] | None = None) -> None:
    """Places are an epoch and the number of a batch since the world began."""
    os.environ["ELASTICJOB_CHECKPOINTS"] = str(FOLDER)
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    data = Data()
    sampler = hvd.elastic.ElasticSampler(data, seed=7)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=sampler)
    resets: list[int] = []
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, seen=[])
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def loop(state: Any) -> str:
        say(f"{phase} begins", [state.epoch, len(state.seen), round(model.weight.item(), 5)])
        say(f"{phase} resets", resets)
        for state.epoch in range(state.epoch, EPOCHS):  # noqa: B020 - as in the examples of Horovod
            for number, x in enumerate(loader):
                optimizer.zero_grad()
                torch.autograd.backward((model(x / SAMPLES) - 1).square().mean())
                optimizer.step()
                sampler.record_batch(number, BATCH)
                mine = [int(one) for one in x.flatten()]
                state.seen = [*state.seen, *([state.epoch, one] for part in hvd.allgather_object(mine) for one in part)]
                if (state.epoch, number) == announced_at:
                    requests.requested()
                    os.kill(os.getpid(), signal.SIGUSR1)
                state.commit()
                say(f"{phase} committed", [state.epoch, len(state.seen), round(model.weight.item(), 5)])
                if (state.epoch, number) == announced_at:
                    say(f"{phase} answered", not requests.requested())
                    os._exit(0)
                if (state.epoch, number) == dies_at:
                    while not list(FOLDER.glob("horovod-*.pt")):
                        time.sleep(0.01)
                    os._exit(0)
            sampler.set_epoch(state.epoch + 1)
        say("seen", state.seen)
        return "done"

    say(f"{phase} returns", loop(state))


run_phase(0, 3, lambda: train(0, dies_at=(0, 1)))
run_phase(1, 2, lambda: train(1, announced_at=(1, 2)))
run_phase(2, 3, lambda: train(2))
(FOLDER / "horovod-000000000999.pt").write_bytes(b"damaged")
run_phase(3, 2, lambda: train(3))
