"""A session that trains until the step in the file `done`, and does to itself what a file named like its pod says.

Every step is one JSON line. Faults: `stuck` computes for ever, `killed` dies, `flip` changes a bit of a parameter,
`slow` makes every step longer for as long as the file is there, `pause` lets the others wait once, like an evaluation.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import elasticjob
from elasticjob.data import samplers
from elasticjob.sessions import session

SAMPLES, GLOBAL_BATCH = 960, 48
STEP_SECONDS, SLOW_SECONDS, PAUSE_SECONDS = 0.1, 0.5, 2.0


def find_fault(file: Path) -> str:
    """The fault of this pod, which happens once, except for `slow`."""
    try:
        fault = file.read_text()
    except FileNotFoundError:
        return ""
    if fault != "slow":
        file.unlink()
    return fault


def is_done(folder: Path, step: int) -> bool:
    """Whether the last step is made; whoever writes the file leaves all ranks the time to read it."""
    file = folder / "done"
    return file.exists() and step >= int(file.read_text())


def suffer(fault: str, parameter: torch.Tensor) -> None:
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "flip":
        parameter.data.view(torch.int32)[0, 0] ^= 1 << 20
    elif fault == "pause":
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    folder = Path(sys.argv[1])
    mine = folder / os.environ["ELASTICJOB_POD_UID"]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dataset = TensorDataset(torch.randn(SAMPLES, 8), torch.randn(SAMPLES, 1))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sampler = samplers.ElasticDistributedSampler(SAMPLES, global_batch_size=GLOBAL_BATCH, rank=0, world_size=1)
    loader = DataLoader(dataset, batch_sampler=sampler)
    run = session.Session(model=model, optimizer=optimizer, sampler=sampler)
    steps = (folder / f"{os.environ['ELASTICJOB_POD_UID']}.jsonl").open("a", buffering=1)
    for epoch in range(sampler.epoch, 1_000_000):
        sampler.set_epoch(epoch)
        for inputs, targets in run.batches(loader):
            fault = find_fault(mine)
            suffer(fault, model.weight)
            time.sleep(SLOW_SECONDS if fault == "slow" else STEP_SECONDS)
            with run.step():
                time.sleep(600.0 if fault == "stuck" else 0.0)
                loss = torch.nn.functional.mse_loss(run.model(inputs), targets) * run.scale
                loss.backward()  # type: ignore[no-untyped-call]
                if run.ends_step:
                    optimizer.step()
                    optimizer.zero_grad()
            elasticjob.report(step=run.committed)
            steps.write(json.dumps({"generation": run.generation, "rank": run.rank, "step": run.committed}) + "\n")
            if is_done(folder, run.committed):
                break
        if is_done(folder, run.committed):
            break
    run.close()


if __name__ == "__main__":
    main()
