"""What the programs of the matrix share: where they write what they do, and the data that all of them train on.

Every rank writes one line a step. The test reads them: who trained on which samples, how long nobody stepped, what the
loss was. With PRINTS=1 it prints its loss, as many scripts do. A step takes a little while, as a real one does; near
its end the program waits until the test is through.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch

SAMPLES = 960  # divisible by 2 and 3 ranks of every batch that is used here
FEATURES = 16
HOLD = 40  # steps that are left when the program waits for the test


class Record:
    """The lines of one process."""

    def __init__(self, total: int, step_seconds: float = 0.04) -> None:
        self.out = Path(os.environ["OUT"])
        self.out.mkdir(parents=True, exist_ok=True)
        self._total, self._seconds = total, step_seconds
        name = f"{os.environ.get('ELASTICJOB_POD_NAME', 'none')}-{os.getpid()}.jsonl"
        self._lines = (self.out / name).open("a", buffering=1)
        self._finish = self.out / "finish"
        self._prints = os.environ.get("PRINTS") == "1"

    def step(self, step: int, loss: float, epoch: int, samples: Sequence[int] = ()) -> None:
        """This rank has made a step, counted from 1, with these samples of the epoch.

        Call it before a checkpoint of the step: nobody makes a step again that is saved and not written down.
        """
        variables = {
            "rank": "RANK",
            "world": "WORLD_SIZE",
            "generation": "ELASTICJOB_GENERATION",
        }  # they change in a session
        place = {"t": time.time(), **{key: int(os.environ.get(name, "0")) for key, name in variables.items()}}
        made = {"step": step, "loss": loss, "epoch": epoch, "samples": samples, "cpu": time.process_time()}
        self._lines.write(json.dumps({**place, **made}) + "\n")
        if self._prints:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if not self._finish.exists():
            # A machine under load takes long for a change: the later steps are slow, so that some are left for it.
            time.sleep(self._seconds * (1 if step < self._total / 2 else 5 if step < 0.75 * self._total else 12))
        while step >= self._total - HOLD and not self._finish.exists():
            time.sleep(0.05)


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A linear problem with known answers; every sample says its number."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(SAMPLES, FEATURES, generator=generator)
        self.y = self.x @ torch.randn(FEATURES, 1, generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "y": self.y[index], "index": torch.tensor(index)}


def make_model() -> torch.nn.Module:
    """The same in every process."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
