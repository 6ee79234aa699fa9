"""A session that trains on a folder of Parquet files, as Spark writes one."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from record import Data, Record, make_model

import elasticjob

STEPS, BATCH, PARTS = int(sys.argv[1]), 48, 4


def write(folder: Path) -> None:
    """The samples, in the layout of `frame.write.parquet(folder)`: parts, of which each has several row groups."""
    data = Data()
    columns = {f"x{number}": data.x[:, number].tolist() for number in range(data.x.shape[1])}
    table = pa.table({"index": range(len(data)), **columns, "y": data.y.flatten().tolist()})
    unfinished = folder.with_name(f"unfinished-{os.environ.get('ELASTICJOB_POD_NAME')}-{os.getpid()}")
    unfinished.mkdir()
    rows = len(data) // PARTS
    for part in range(PARTS):
        pq.write_table(
            table.slice(part * rows, rows), unfinished / f"part-{part:05d}.snappy.parquet", row_group_size=60
        )
    (unfinished / "_SUCCESS").touch()
    with contextlib.suppress(OSError):  # another worker was first
        unfinished.rename(folder)


def to_sample(row: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    x = torch.stack([row[f"x{number}"] for number in range(16)])
    return {"x": x.float(), "y": row["y"].float()[None], "index": row["index"]}


record = Record(STEPS)
folder = Path(os.environ.get("PARQUET", record.out / "table"))
if not folder.exists():
    write(folder)
data, model = elasticjob.ParquetDataset(folder, window=4, transform=to_sample), make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
sampler = elasticjob.ElasticDistributedSampler(data, global_batch_size=BATCH, micro_batch_size=BATCH)
loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
session = elasticjob.Session(model=model, optimizer=optimizer, sampler=sampler)
for epoch in range(sampler.epoch, STEPS):
    if session.committed + 1 >= STEPS:
        break
    sampler.set_epoch(epoch)
    for batch in session.batches(loader):
        before = session.committed
        with session.step():
            loss = torch.nn.functional.mse_loss(session.model(batch["x"]), batch["y"])
            session.backward(loss)
            if session.ends_step:
                optimizer.step()
                optimizer.zero_grad()
                made = before + 2, float(loss.detach()), sampler.epoch, batch["index"].tolist()
        if session.committed > before:  # the step was not broken by a loss
            record.step(*made)
        if session.committed + 1 >= STEPS:
            break
session.close()
