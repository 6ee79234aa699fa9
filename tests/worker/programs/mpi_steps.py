"""Steps of an MPI world, written down as steps.py does: `mpi_steps.py FOLDER`, until the world is ended."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from elasticjob.mpi import MPI

world, folder = MPI.COMM_WORLD, Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
generation, step = int(os.environ["ELASTICJOB_GENERATION"]), 0
with (folder / f"{os.environ['ELASTICJOB_POD_NAME']}-{os.getpid()}.jsonl").open("a", buffering=1) as lines:
    while True:
        assert world.allreduce(1) == world.size == int(os.environ["WORLD_SIZE"])
        step += 1
        place = {"rank": world.rank, "world": world.size, "generation": generation}
        lines.write(json.dumps({"t": time.time(), **place, "step": step}) + "\n")
        time.sleep(0.02)
