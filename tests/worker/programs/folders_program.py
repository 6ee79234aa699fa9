"""Who else uses the folder of a training: a reader, a second writer; or each rank has a folder of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import elasticjob
from elasticjob.checkpoint import Checkpointer, files
from worker.programs.saying import say


def build(value: float = 0.0) -> nn.Module:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, value)
    return model


class Slowly:
    """The first save from now on stays under way until `end`."""

    def __init__(self) -> None:
        self._goes_on, self._is_first, self._seal = threading.Event(), True, files.seal_files

    def __call__(self, paths: Iterable[Path]) -> dict[str, list[int]]:
        waits, self._is_first = self._is_first, False
        if waits:
            self._goes_on.wait(60)
        return self._seal(paths)

    def end(self) -> None:
        self._goes_on.set()


def beside(name: str, directory: Path, other: Callable[[], object]) -> None:
    """Something else happens in the folder while step 2 is written."""
    training = Checkpointer(directory, build(1.0))
    training.save(1, wait=True)
    slowly = Slowly()
    with mock.patch.object(files, "seal_files", slowly):
        training.save(2)
        found = other()
        slowly.end()
        _try(name, lambda: [found, training.wait(), sorted(training.steps())])


def read(directory: Path) -> Any:
    model = build()
    return [Checkpointer(directory, model).restore(), model.state_dict()["weight"][0, 0].item()]


def write(directory: Path) -> Any:
    second = Checkpointer(directory, build(3.0))
    second.save(3, wait=True)
    return second.steps()


def save_as(directory: Path, number: Any) -> None:
    checkpoint = Checkpointer(directory, build(), every=2)
    name = f"step {type(number).__name__} {number}"
    _try(name, lambda: [checkpoint.should_save(number), checkpoint.save(number, wait=True), checkpoint.steps()[0]])


def _try(name: str, action: Callable[[], object]) -> None:
    try:
        say(name, action())
    except Exception as error:
        say(name, f"{type(error).__name__}: {error}")


def main() -> None:
    root = Path(sys.argv[1])
    with elasticjob.init(timeout=60):
        beside("reader", root / "reader", lambda: read(root / "reader"))
        beside("writer", root / "writer", lambda: write(root / "writer"))
        own = root / f"rank{dist.get_rank()}"
        _try("own", lambda: Checkpointer(own, build()).save(1, wait=True))
        say("own folders", Checkpointer(own, build()).restore())
        for number in (np.int64(3), torch.tensor(4), -1, 1.5):
            save_as(root / "numbers", number)


if __name__ == "__main__":
    main()
