"""Reports progress, saves at the agent's request, and hangs in a collective on demand."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from elasticjob.channel import progress, signals

out = Path(sys.argv[1])
hang_at = int(sys.argv[2])
dist.init_process_group("gloo")
generation = os.environ["ELASTICJOB_GENERATION"]
rank = dist.get_rank()
for step in range(100_000):
    wish = torch.tensor(float(signals.checkpoint_requested()))
    dist.all_reduce(wish)
    if wish:
        (out / f"saved-{generation}-{rank}").write_text(str(step))
        signals.clear_checkpoint_request()
    progress.report(step=step, total=100_000, loss=1.0 / (step + 1))
    if step == hang_at and rank == 0 and generation == "1":
        time.sleep(3600)
    time.sleep(0.05)
