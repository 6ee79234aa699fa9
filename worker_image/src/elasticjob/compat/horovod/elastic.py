"""`hvd.elastic`: a state that outlives the worlds, as in Horovod's elastic scripts.

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            ...
            state.commit()

Horovod keeps the processes of the ranks that are left. Here a change of the world is a new start of all, which is the
script's usual start: `run` loads the newest commit that any rank has as a file, calls the reset callbacks, gives all
ranks the same state, and calls the function. `commit` keeps the state in memory, and rank 0 writes it as a file: before
an announced change, which so costs no step, and beside the training as often as the disk allows. The folder is
`spec.checkpoints.path` of the job, or another one in ELASTICJOB_CHECKPOINTS that all pods have.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler

from elasticjob.channel import progress
from elasticjob.checkpoint import requests
from elasticjob.collectives import messages
from elasticjob.compat.horovod import calls, objects, world
from elasticjob.context import context
from elasticjob.env import CHECKPOINTS
from elasticjob.errors import ConfigurationError
from elasticjob.integrations import ranks
from elasticjob.protocol.steps import FILE
from elasticjob.torchcompat import optimizers

Result = TypeVar("Result")

KEPT = 2  # files
_NAME = re.compile(r"horovod-(\d{12})\.pt")

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)

_log = logging.getLogger("elasticjob.compat.horovod")


class ElasticSampler(Sampler[int]):
    """What is left of an epoch, divided over the ranks: what a commit has recorded as processed comes no more.

    As in Horovod, samples at the beginning are repeated where the rest does not divide by the number of ranks, and
    `set_epoch` begins an epoch anew: call it when one has ended. The state at a commit is that of all ranks, so all of
    them record a batch before it.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.indices: list[int] = []  # of this rank
        self._processed = self._none()
        self.reset()

    @property
    def processed_indices(self) -> set[int]:
        """What is processed of the epoch, by this rank and before the world began."""
        return set(self._processed.nonzero().flatten().tolist())

    @property
    def num_samples(self) -> int:
        """How many samples are left for each rank."""
        return len(self.indices)

    @property
    def total_size(self) -> int:
        """How many are left for all ranks, with those that are repeated."""
        return len(self.indices) * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch, with all of its samples."""
        self.epoch = epoch
        self._processed = self._none()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """The samples of this batch, counted since the loop over the loader began, are processed."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Sequence[int] | torch.Tensor) -> None:
        """These samples are processed."""
        self._processed[torch.as_tensor(indices, dtype=torch.int64)] = True

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this rank's batch."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def reset(self) -> None:
        """Divide what is left over the ranks of the present world."""
        self.num_replicas, self.rank = (world.size(), world.rank()) if world.is_initialized() else (1, 0)
        order = self._order()
        left = order[~self._processed[order]]
        each = math.ceil(len(left) / self.num_replicas)
        places = torch.arange(each) * self.num_replicas + self.rank
        self.indices = left[places % max(1, len(left))].tolist()

    def _none(self) -> torch.Tensor:
        return torch.zeros(len(self.dataset), dtype=torch.bool)

    def _order(self) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(len(self.dataset))
        return torch.randperm(len(self.dataset), generator=torch.Generator().manual_seed(self.seed + self.epoch))

    def read(self) -> dict[str, Any]:
        """The state of all ranks, which all of them ask for."""
        every = self._processed.to(world.find_device(), torch.uint8)
        calls.allreduce_(every, op=calls.Max)
        return {"epoch": self.epoch, "processed_indices": every.nonzero().flatten().cpu()}

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and what is processed of it by this rank."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.epoch = int(state["epoch"])
        self._processed = self._none()
        given = state["processed_indices"]
        self.record_indices(given if torch.is_tensor(given) else list(given))
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class ObjectState:
    """Values that outlive the worlds: each argument is an attribute.

    They are numbers, texts, tensors, and lists and dictionaries of them, which can be read without running code. Raises
    ConfigurationError for others, and for names that the state itself has.
    """

    def __init__(self, **kwargs: Any) -> None:
        world.require()
        wrong = [name for name in kwargs if name.startswith("_") or hasattr(type(self), name)]
        if wrong:
            raise ConfigurationError(f"{', '.join(wrong)}: a state has this name for itself. Choose another one.")
        self._folder = find_folder()
        self._names = tuple(kwargs)
        self._callbacks: list[Callable[[], None]] = []
        self._commits = 0  # that led to this state, in all worlds
        self._saved: dict[str, Any] = {}
        self._filed: dict[str, Any] | None = None  # the saved state that is a file
        self._writer: threading.Thread | None = None
        for name, one in kwargs.items():
            setattr(self, name, one)
            if not _is_stateful(one):
                _check_plain(name, one)

    # What Horovod's states have.

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Call these in each world but the first one, when its state is loaded: for what depends on `hvd.size()`."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call the reset callbacks."""
        for callback in self._callbacks:
            callback()

    def save(self) -> None:
        """Keep the present state in memory, for `restore`."""
        self._saved = {name: self._read(name) for name in self._names}

    def restore(self) -> None:
        """Go back to the state that was kept last."""
        self._load(self._saved)

    def sync(self) -> None:
        """Give all ranks the state of rank 0."""
        self._sync(0)

    def commit(self) -> None:
        """Keep this state, on all ranks: a later world goes on from it. Writes a file where that costs no time."""
        is_announced = self._is_change_announced()
        self._commit_here()
        if is_announced:
            self._answer()
        elif world.rank() == 0 and not self._is_writing():
            self._write(self._saved)

    def check_host_updates(self) -> bool:
        """Write the present state if a change of the world is announced. All ranks call it; whether it was."""
        is_announced = self._is_change_announced()
        if is_announced:
            self._commit_here()
            self._answer()
        return is_announced

    def _is_change_announced(self) -> bool:
        return ranks.agree(requests.requested(), world.find_device())

    def _commit_here(self) -> None:
        self._commits += 1
        self.save()

    def _answer(self) -> None:
        """The agent waits until the last commit is a file."""
        if world.rank() == 0:
            self._wait()
            self._write(self._saved)
            self._wait()
        calls.barrier()  # the file is there before any rank says so
        requests.clear()

    # Files.

    def _read(self, name: str) -> Any:
        one = getattr(self, name)
        if isinstance(one, ElasticSampler):
            return one.read()
        value = one.state_dict() if _is_stateful(one) else one
        _check_plain(name, value)
        return objects.to_host(value)

    def _load(self, saved: dict[str, Any]) -> None:
        for name in self._names:
            if name not in saved:
                _log.warning("the commit has no %s: it starts from its initial state", name)
                continue
            one = getattr(self, name)
            # Copies, as training changes what it holds. A module makes its own.
            value = saved[name] if isinstance(one, torch.nn.Module) else objects.to_host(saved[name])
            if _is_stateful(one):
                optimizers.load_state(one, value)
            else:
                setattr(self, name, value)

    def _sync(self, root: int) -> None:
        state = {name: self._read(name) for name in self._names}
        self._commits = messages.broadcast_json(self._commits, root)
        state = objects.broadcast_state(state, root)
        if world.rank() != root:
            self._load(state)
        self._saved = state

    def begin_world(self) -> None:
        """Go on from the newest commit that any rank has as a file, and can read."""
        requests.requested()  # from now on the agent may ask for a commit
        here = context.current()
        files = {
            _count(path): path for path in context.pass_over(_find(self._folder), here.repeats, here.before, _count)
        }
        root = 0
        while newest := max(every := messages.all_gather_json(max(files, default=0))):
            root = every.index(newest)
            found = _read_file(files.pop(newest)) if world.rank() == root else None
            if found is not None:
                self._load(found)
                self._commits = newest
                _log.info("goes on from commit %d, in a world of %d ranks", newest, world.size())
            if messages.broadcast_json(found is not None, root):
                self.on_reset()
                break
        self._sync(root)
        if newest and world.rank() == root:
            self._filed = self._saved

    def _is_writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _wait(self) -> None:
        if self._writer is not None:
            self._writer.join()

    def _write(self, state: dict[str, Any]) -> None:
        # Not a daemon thread: the interpreter waits for it at its end.
        self._writer = threading.Thread(target=self._file, args=(self._commits, state), name=f"commit-{self._commits}")
        self._writer.start()

    def _file(self, commits: int, state: dict[str, Any]) -> None:
        if _write_file(self._folder, commits, state):
            self._filed = state

    def end_world(self) -> None:
        """The function has ended: its last state is a file."""
        self._wait()
        if self._commits and world.rank() == 0 and self._filed is not self._saved:
            self._write(self._saved)
            self._wait()


class TorchState(ObjectState):
    """A state with a model and an optimizer; further models, optimizers, schedulers and samplers are arguments too."""

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        given = {"model": model, "optimizer": optimizer}
        super().__init__(**{name: one for name, one in given.items() if one is not None}, **kwargs)


def run(function: Callable[..., Result]) -> Callable[..., Result]:
    """Makes `function(state, ...)` go on from the newest commit, in a world of any size."""

    @functools.wraps(function)
    def begin(state: ObjectState, *args: Any, **kwargs: Any) -> Result:
        state.begin_world()
        result = function(state, *args, **kwargs)
        state.end_world()
        return result

    return begin


def find_folder() -> Path:
    """The folder of the commits. Raises ConfigurationError if the job has none."""
    folder = os.environ.get(CHECKPOINTS)
    if not folder:
        raise ConfigurationError(
            "hvd.elastic has no folder for the commits: give the job spec.checkpoints.path, or set"
            f" {CHECKPOINTS} to a folder that all pods have."
        )
    return Path(folder)


def _is_stateful(one: Any) -> bool:
    return hasattr(one, "state_dict") and hasattr(one, "load_state_dict")


def _check_plain(name: str, one: Any) -> None:
    kind = type(one)
    if kind in (dict, OrderedDict, Counter):
        for part in (*one.keys(), *one.values()):
            _check_plain(name, part)
    elif kind in (list, tuple, set, torch.Size):
        for part in one:
            _check_plain(name, part)
    elif not (
        kind in _PLAIN
        or torch.is_tensor(one)
        or objects.is_of_numpy(one)
        or kind in torch.serialization.get_safe_globals()
    ):
        raise ConfigurationError(
            f"{name} of the state has a {type(one).__name__}, which cannot be read back without running code. Give"
            " numbers, texts, tensors, lists and dictionaries of them, or an object with state_dict() and"
            " load_state_dict()."
        )


def _find(folder: Path) -> list[Path]:
    """The files, the newest commit first."""
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, reverse=True)


def _count(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def _read_file(path: Path) -> dict[str, Any] | None:
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch has no class of its own for what a damaged file does
        _log.warning("skipped %s: %s", path, str(error).partition("\n")[0])
        return None


def _write_file(folder: Path, commits: int, state: dict[str, Any]) -> bool:
    """Write a commit; whether that is done. An earlier one stays where it fails; a later one tries again."""
    began = time.monotonic()
    unfinished = folder / "horovod.unfinished"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(folder / f"horovod-{commits:012d}.pt")
        progress.saves.note(FILE, began)
        counts = {path: _count(path) for path in _find(folder)}
        behind = [path for path, count in counts.items() if count > commits]  # training has gone back
        expired = [path for path, count in counts.items() if count <= commits][KEPT:]
        for path in [*behind, *expired]:
            with contextlib.suppress(OSError):
                path.unlink()
        return True
    except Exception as error:  # torch makes another one of the disk's
        said = error if isinstance(error, OSError) else error.__context__ or error
        _log.warning("commit %d is not saved in %s: %s", commits, folder, str(said).partition("\n")[0])
        with contextlib.suppress(OSError):
            unfinished.unlink()
        return False
