"""Saves a file, waits until agents have recorded it, writes half of another and fails; then tells what it found.

It needs no torch: any program that saves to the directory is a script of an ElasticJob.
"""

import json
import os
import sys
import time
from pathlib import Path

folder, copies = Path(os.environ["ELASTICJOB_CHECKPOINTS"]), Path(os.environ["ELASTICJOB_CHECKPOINT_COPIES"])
rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
found = {path.name: path.read_text() for path in folder.iterdir()}
print(json.dumps({"rank": rank, "restarts": restarts, "found": found}), flush=True)
if restarts == 0:
    if rank == 0:
        (folder / "a.pt.tmp").write_text("saved")
        (folder / "a.pt.tmp").rename(folder / "a.pt")
    while not list((copies / "records").glob("[0-9]*-[0-9a-f]*")):
        time.sleep(0.05)
    (folder / "b.pt").write_text("half of it")
    sys.exit(1)
