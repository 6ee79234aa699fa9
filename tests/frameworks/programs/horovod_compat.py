"""An elastic script of Horovod, with one changed line."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from record import Data, Record, make_model

import elasticjob.compat.horovod as hvd

STEPS, BATCH = int(sys.argv[1]), 48

hvd.init()
record = Record(STEPS)
os.environ.setdefault("ELASTICJOB_CHECKPOINTS", str(record.out / "commits"))
data, model = Data(), make_model()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5), named_parameters=model.named_parameters()
)
sampler = hvd.elastic.ElasticSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=BATCH // hvd.size(), sampler=sampler)


@hvd.elastic.run
def train(state: Any) -> None:
    while state.step < STEPS:
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
            sampler.record_batch(number, BATCH // hvd.size())
            state.step += 1
            record.step(state.step, hvd.allreduce(loss.detach()).item(), sampler.epoch, batch["index"].tolist())
            state.commit()
            if state.step == STEPS:
                return
        sampler.set_epoch(sampler.epoch + 1)


train(hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0))
