"""Durable checkpoints: atomic, asynchronous, for any world size; damaged ones are skipped, old ones deleted.

    checkpoint = Checkpointer("/checkpoints", model, optimizer, sampler=sampler, every=100)
    step = checkpoint.restore()          # 0 if there is no checkpoint
    ...
        if checkpoint.should_save(step):  # every 100 steps, or if the agent announced a change of the world
            checkpoint.save(step)

Tensors are saved with `torch.distributed.checkpoint`: each rank writes its part, and a world of another size reads the
parts that it needs. Other objects with `state_dict()` and `load_state_dict()` (a sampler, a scheduler) are saved by
rank 0, so their state must not depend on the rank. All ranks need the same directory: a shared volume. Others may read
it meanwhile, with a `Checkpointer` of their own: only `save` removes what an earlier save has left.

`save` copies the state and returns; a thread writes it. The next `save`, `wait` and the end of the process wait for
that thread and raise its error on every rank. A failed save leaves the earlier checkpoints unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from elasticjob.channel import progress, signals
from elasticjob.checkpoint import distrust, files, memory, owed, shelf
from elasticjob.checkpoint.causes import find_culprit, find_root_cause
from elasticjob.checkpoint.state import (
    apply,
    collect,
    collect_others,
    compare_groups,
    compare_kinds,
    find_casts,
    list_names,
    name_whole,
    prepare,
)
from elasticjob.collectives import messages
from elasticjob.context import context, leaving
from elasticjob.errors import CheckpointFailedError, ConfigurationError
from elasticjob.protocol.steps import FILE

_log = logging.getLogger("elasticjob.checkpoint.checkpointer")
_MAKE_ROOM = "Make room on the volume, or check that it can be written."
_ONE_WRITER = "Give each job that saves a directory of its own."
_SHARE = (
    "All ranks need the same directory, on a volume that all pods mount. With spec.checkpoints each pod has its own:"
    " there let rank 0 write files with torch.save, or all ranks with torch.distributed.checkpoint.save."
)
_newest: weakref.WeakValueDictionary[Path, Checkpointer] = weakref.WeakValueDictionary()  # by directory
_named: dict[Path, int] = {}  # the last step that the script has named, by directory: in an earlier world, too


class Checkpointer:
    """Saves and restores a model, its optimizer and other objects with a `state_dict`. Create and call it on all ranks.

    `every` and `memory_every` are in steps: how often to save a file (0: only on request) and a snapshot in memory (0:
    never; see docs/checkpoints.md). `keep` is the number of files to keep (0: all). Raises ConfigurationError without a
    process group and for invalid settings, CheckpointFailedError if rank 0 cannot prepare the directory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        every: int = 0,
        memory_every: int = 0,
        keep: int = 3,
        asynchronous: bool = True,
        **others: Any,
    ) -> None:
        if not dist.is_initialized():
            raise ConfigurationError("Checkpointer needs a process group: call elasticjob.init() first.")
        if min(every, memory_every, keep) < 0:
            raise ConfigurationError(
                "every, memory_every and keep must be 0 or more (0: save only on request; no snapshots; keep all)."
            )
        wrong = [name for name, one in others.items() if not hasattr(one, "load_state_dict")]
        if wrong:
            raise ConfigurationError(f"{', '.join(wrong)}: an object to save needs state_dict() and load_state_dict().")
        self._names = [] if optimizer is None else list_names(model, optimizer)
        self.directory = Path(directory)
        self.skipped: list[str] = []  # checkpoints that restore() skipped, with the reason
        self._model, self._optimizer, self._others = model, optimizer, others
        self._every, self._keep, self._asynchronous = every, keep, asynchronous
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        # A group of its own: the writer thread must not interfere with the collectives of the training, and a rank that
        # reads slowly has as long as torch's default, whatever the timeout of the world.
        self._files = dist.new_group(backend="gloo")
        self._world: Any = dist.group.WORLD
        self._deciders: Any = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        here = context.current()
        self._repeats, self._before = here.repeats, here.before
        self._owed: int | None = None  # the step of a save that the last world did not complete
        self._damaged: set[int] = set()  # found by restore(): they are deleted first
        self._is_requested = False  # the agent of any rank has asked for the next save; the signal may not be here yet
        self._answering = False  # the current save answers the agent's request
        self._memory_every, self._memory_step = memory_every, -1  # the step that should_save wants in memory ...
        self._wants_file = True  # ... and whether it wants a file of it too
        self._memory = self._open_memory() if memory_every else None
        distrust.watch(self.directory, self._memory)
        leaving.wait_for(self)
        _newest[self.directory] = self
        signals.checkpoint_requested()  # installs the signal handler
        self._on_rank_0("prepare the directory", self._prepare)
        self._owed = owed.find(self.directory)

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            complete = files.adopt(self.directory)
        except OSError as error:  # it may only be read
            _log.warning("a complete save in %s keeps its temporary name: %s", self.directory, error)
            return
        for step in complete:
            _log.warning("step %d in %s is complete: only its last rename was missing", step, self.directory)

    def _make_room(self, temporary: Path) -> None:
        for name in files.make_empty(temporary):
            _log.warning(
                "removed %s/%s: the process or the world ended before that save was complete", self.directory, name
            )

    def _open_memory(self) -> memory.Snapshots:
        return memory.Snapshots(
            shelf.find_shelf(self.directory),
            self._model,
            self._optimizer,
            self._others,
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            per_pod=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            world=self._from_rank_0(lambda: uuid.uuid4().hex),
            group=self._files,
        )

    # The decision.

    def should_save(self, step: int) -> bool:
        """Whether to save now: after `every` or `memory_every` steps, if any rank got the checkpoint signal, or if the
        last save was cut off by the loss of its world.

        Equal on all ranks. A snapshot in memory is left out while the one before is still being written.
        """
        step = _named[self.directory] = _count(step)
        is_periodic = bool(self._every and step and step % self._every == 0)
        wanted = signals.checkpoint_requested() and not self._answering
        busy = self._memory is not None and self._memory.is_busy
        flags = torch.tensor([int(wanted), int(busy), int(self._owed is not None)])
        try:
            if self._size > 1:
                dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._deciders)
        except Exception:
            if is_periodic:
                owed.begin(self.directory, step)
            raise
        self._is_requested = bool(flags[0])
        self._wants_file = is_periodic or self._is_requested or bool(flags[2])
        is_due = bool(self._memory_every and step and step % self._memory_every == 0 and not flags[1])
        self._memory_step = step if is_due else -1
        return self._wants_file or is_due

    def steps(self) -> list[int]:
        """The steps of the checkpoints on disk, newest first; those that training has left behind come last.

        These are the steps that were saved before it went back to an earlier one, and those that are not certified.
        """
        return files.list_steps(self._list_names())

    def _list_names(self) -> list[str]:
        return [path.name for path in self.directory.iterdir()] if self.directory.is_dir() else []

    # Saving.

    @progress.saving
    def save(self, step: int, wait: bool = False) -> None:
        """Save the current state. Returns once it is copied, or once it is written if `wait` or not asynchronous.

        `step` is the number of steps that are made, which `restore` returns: inside a session's block, after the
        optimizer, `session.committed + 2`. Where `should_save` has asked for a snapshot in memory, that is taken; and
        no file, unless one is due too.

        Raises CheckpointFailedError on every rank: for the save before this one, and for this one if it waits.
        ConfigurationError if `step` is no whole number from 0.
        """
        step, began = _count(step), time.monotonic()
        _named[self.directory] = step
        if self._memory is not None and step == self._memory_step:
            self._memory.take(step)
            wants_file, self._wants_file, self._memory_step = self._wants_file or wait, True, -1
            if not wants_file:
                return
        self._owed = None
        self.wait()
        owed.begin(self.directory, step)
        self._answering, self._is_requested = signals.checkpoint_requested() or self._is_requested, False
        temporary = self.directory / files.temporary_name(step)
        others = b""
        held = contextlib.ExitStack()

        def begin() -> None:
            nonlocal others
            others = collect_others(self._optimizer, self._others)
            self._make_room(temporary)
            held.enter_context(files.hold(temporary))

        self._on_rank_0(f"save step {step}", begin)
        state = collect(self._model, self._optimizer)
        future = async_save(state, checkpoint_id=temporary, process_group=self._files)

        def finish() -> None:
            try:
                with held:
                    self._finish(step, temporary, future, others)
                progress.saves.note(FILE, began)
                owed.end(self.directory)
            except BaseException as error:
                self._failure = error
                if self._rank == 0:  # nobody may call wait() any more
                    _log.warning("step %d is not saved in %s: %s", step, self.directory, self._find_reason(error))
            if self._answering:  # the agent waits until the save has succeeded or failed
                signals.clear_checkpoint_request()
                self._answering = False

        # Not a daemon thread: the interpreter waits for it at exit, and what leaves the world in order does (`finish`).
        self._thread = threading.Thread(target=finish, name=f"checkpoint-{step}")
        self._thread.start()
        if wait or not self._asynchronous:
            self.wait()

    @progress.saving
    def wait(self) -> None:
        """Wait until the last save is on disk. Raises CheckpointFailedError if it could not be written, also if the
        world was lost meanwhile and no later save has taken its place.
        """
        if self._memory is not None:
            self._memory.wait()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            if isinstance(failure, CheckpointFailedError):
                raise failure
            reason = self._find_reason(failure)
            raise CheckpointFailedError(f"the checkpoint could not be written: {reason}") from failure
        step, self._owed = self._owed, None
        if step is not None and not any(saved >= step for saved in self.steps()):
            raise CheckpointFailedError(
                f"step {step} is not saved in {self.directory}: its world ended before the save was complete. Save"
                " again where should_save() is true, which it is until then, or end with this error: the next start"
                " repeats the steps since the last checkpoint."
            )

    def finish(self, seconds: float | None = None) -> None:
        """Wait until the last save is done or has failed, at most so long; `wait` raises its error later."""
        for thread in (self._thread, None if self._memory is None else self._memory.thread):
            if thread is not None and thread is not threading.current_thread():
                thread.join(seconds)
                if thread.is_alive():
                    _log.warning("%s in %s did not end within %g s: it is lost", thread.name, self.directory, seconds)

    def save_alone(self, found: leaving.Alone) -> None:
        """Save the state of this process, without others: the sessions of all ranks wait for a world that never comes.

        One of those that have all of the state saves, and the others wait until it has.
        """
        step, whole, named = found.step, found.whole, _named.get(self.directory)
        if named is None or _newest.get(self.directory) is not self or dist.is_initialized():
            return  # nothing was trained here
        why = found.lacks
        if abs(named - found.made) > 1:
            why = f"the script calls it {named}, or has not asked should_save about it"
        elif whole is not None and (whole.model is not self._model or self._optimizer not in (None, whole.optimizer)):
            why = "its model or optimizer is not that of the session"
        began, saved = time.monotonic(), list[int]()
        try:
            with files.taking_turns(self.directory):
                saved = files.split_steps(self._list_names())[0]
                if not why and all(one < step for one in saved):
                    self._write_alone(step, whole)
                    progress.saves.note(FILE, began)
        except (Exception, CheckpointException) as error:
            why = find_root_cause(error)
        missing = found.made - max(saved, default=0)
        if why and missing > 0:
            _log.warning(
                "this process does not save step %d in %s: %s. Unless another one does, %d steps since the newest"
                " checkpoint there have to be made again",
                *(found.made, self.directory, why, missing),
            )

    def _write_alone(self, step: int, whole: leaving.Whole | None) -> None:
        temporary = self.directory / files.temporary_name(step)
        if whole is None:
            state, groups = collect(self._model, self._optimizer), None
        else:
            state, groups = name_whole(whole.state, self._names), whole.state["optimizer"]["param_groups"]
        others = collect_others(self._optimizer, self._others, groups)
        self._make_room(temporary)
        with files.hold(temporary):
            save(state, checkpoint_id=temporary)
            own = [*sorted(temporary.glob("__*")), temporary / files.STATE, temporary / ".metadata"]
            (temporary / files.STATE).write_bytes(others)
            manifest = {"version": 1, "step": step, "worldSize": 1, "files": files.seal_files(own)}
            files.publish(temporary, self.directory / files.folder_name(step), manifest)
        files.delete_expired(self.directory, self.steps(), self._keep, step, self._damaged)
        _log.info("step %d is saved in %s, by one rank for all: they were in no world", step, self.directory)

    def _find_reason(self, error: BaseException) -> str:
        if isinstance(error, CheckpointFailedError):
            return str(error)
        cause = find_root_cause(error)
        if dist.is_initialized() and dist.group.WORLD is self._world:
            return cause
        return (
            f"the process groups ended before it was complete ({cause}). The checkpoints before it are untouched. Call"
            " checkpoint.wait() before the script destroys them or ends"
        )

    def _finish(self, step: int, temporary: Path, future: Any, others: bytes) -> None:
        """In the thread, on every rank: write and flush this rank's files; rank 0 publishes if all ranks succeeded."""
        problem: tuple[int, str] | None = None
        entries: dict[str, list[int]] = {}
        try:
            future.result()
            entries = files.seal_files(self._own_files(temporary, others))
        except (Exception, CheckpointException) as error:  # CheckpointException is not an Exception
            problem = find_culprit(error, self._rank)
        reports = messages.all_gather_json([problem, entries], self._files)
        problem = next((found for found, _ in reports if found), None)
        remedy = _MAKE_ROOM
        if self._rank == 0 and problem is None:
            problem, remedy = _find_missing(temporary, [sealed for _, sealed in reports])
        if self._rank == 0 and problem is None:
            try:
                manifest: dict[str, Any] = {"version": 1, "step": step, "worldSize": self._size, "files": {}}
                for _, sealed in reports:
                    manifest["files"] |= sealed
                files.publish(temporary, self.directory / files.folder_name(step), manifest)
                self._damaged.discard(step)
                files.delete_expired(self.directory, self.steps(), self._keep, step, self._damaged)
            except OSError as error:
                problem, remedy = (0, str(error)), _MAKE_ROOM if temporary.is_dir() else _ONE_WRITER
        problem, remedy = messages.broadcast_json([problem, remedy], 0, self._files)
        if problem:
            if remedy != _ONE_WRITER:
                with contextlib.suppress(OSError):
                    files.delete(temporary)  # on a full volume others need its room
            rank, text = problem
            raise CheckpointFailedError(
                f"step {step} could not be saved in {self.directory}: rank {rank}: {text}. "
                f"The checkpoints before it are untouched. {remedy}"
            )

    def _own_files(self, temporary: Path, others: bytes) -> list[Path]:
        own = sorted(temporary.glob(f"__{self._rank}_*"))
        if self._rank == 0:
            state = temporary / files.STATE
            state.write_bytes(others)
            own += [state, temporary / ".metadata"]
        return own

    # Restoring.

    def restore(self) -> int:
        """Load the newest complete checkpoint, from memory or from disk, and return its step; 0 if there is none.

        A damaged or unfinished checkpoint is skipped with a warning and added to `skipped`. Where the same error has
        stopped the training twice without progress, the newest checkpoint is restored last, and one more with each
        further time; where a rule of the job has found it sick, those from that step on. Raises
        CheckpointFailedError if the previous save failed, and if the newest intact checkpoint is of another model or
        optimizer.
        """
        self._owed = None  # training goes on from what there is
        owed.end(self.directory)
        self.wait()
        names = self._from_rank_0(self._list_names)
        steps, behind = files.split_steps(names)
        choices = self._memory.find_choices() if self._memory is not None else []
        newest = self._pass_over(sorted({*steps, *(choice.step for choice in choices)}, reverse=True))
        behind = [step for step in steps if step > newest] + behind
        steps = [step for step in steps if step <= newest]
        for choice in [choice for choice in choices if choice.step <= newest]:
            while steps and steps[0] > choice.step:
                if self._restore_file(step := steps.pop(0)):
                    return int(step)
            problem = self._memory.restore(choice) if self._memory is not None else ""
            if problem is None:
                return choice.step
            self._skip(f"the snapshot of step {choice.step} in memory", problem)
        found = next((step for step in [*steps, *behind] if self._restore_file(step)), 0)
        if not found and self._memory is not None:
            if self._memory.misfit:
                raise CheckpointFailedError(self._explain("the last snapshot in memory", self._memory.misfit))
            self._memory.keep_only("", 0)  # training begins anew
        return found

    def _pass_over(self, steps: Sequence[int]) -> float:
        """The newest of these steps to start from: the newest one may be why the same error has come again."""
        repeats, before = self._repeats, self._before
        self._repeats, self._before = 0, None
        chosen = context.pass_over(steps, repeats, before, lambda step: step)
        if len(chosen) == len(steps):
            return math.inf
        if self._rank == 0:
            left_out = ", ".join(map(str, steps[: len(steps) - len(chosen)]))
            sick = "" if before is None else f"training was sick from step {before} on"
            why = sick or f"the same error {repeats} times without progress"
            _log.warning("%s: the checkpoints of steps %s in %s are restored last", why, left_out, self.directory)
            with contextlib.suppress(OSError):  # it may only be read
                files.distrust(self.directory, chosen[0])
        return chosen[0]

    def _restore_file(self, step: int) -> bool:
        folder = self.directory / files.folder_name(step)
        problem = self._find_problem(folder)
        if problem is not None:
            self._skip(folder.name, problem)
            self._damaged.add(step)
            return False
        self._load(step, folder)
        if self._memory is not None:
            self._memory.keep_only("", 0)  # training goes on from this step: newer ones would be repeated
        return True

    def _skip(self, name: str, problem: str) -> None:
        self.skipped.append(f"{name}: {problem}")
        if self._rank == 0:
            _log.warning("skipped %s of %s: %s", name, self.directory, problem)

    def _find_problem(self, folder: Path) -> str | None:
        """Check the files, distributed over the ranks; the result is the same on all ranks."""
        problem: str | None = None
        try:
            entries = sorted(files.read_manifest(folder)["files"].items())
            problem = files.find_damage(folder, dict(entries[self._rank :: self._size]))
        except (ValueError, OSError) as error:
            problem = str(error)
        return self._first_problem(problem)

    def _load(self, step: int, folder: Path) -> None:
        """Load an intact checkpoint. Raises CheckpointFailedError on every rank if that is not possible.

        The reason will not go away by itself, and an older checkpoint, or none, would silently lose what was trained.
        """
        problem: str | None = None
        state: dict[str, Any] = {}
        others: Any = None
        casts = ""
        try:
            saved = FileSystemReader(folder).read_metadata()
            state, differences = prepare(self._model, self._optimizer, saved)
            if not differences:
                others = torch.load(folder / files.STATE, map_location="cpu", weights_only=True)
                differences = compare_kinds(self._optimizer, others.get("optimizer", ""))
            if not differences:
                casts = find_casts(state["model"], saved)
                load(state, checkpoint_id=folder, process_group=self._files)
                differences = compare_groups(self._model, self._optimizer, state)
            problem = "; ".join(differences) or None
        except (Exception, CheckpointException) as error:
            problem = find_root_cause(error)
        problem = self._first_problem(problem)
        if problem is not None:
            raise CheckpointFailedError(self._explain(f"step {step}", problem))
        if casts and self._rank == 0:
            _log.warning("tensors of step %d are converted to those of the model: %s", step, casts)
        missing = apply(self._model, self._optimizer, self._others, state, others)
        if missing and self._rank == 0:
            _log.warning("the checkpoint has no %s: it starts from its initial state", ", ".join(missing))

    def _explain(self, what: str, problem: str) -> str:
        return (
            f"{what} of {self.directory} is complete, but does not fit this model and optimizer: {problem}."
            " Give Checkpointer those with which it was saved, or another directory to begin anew."
        )

    def _first_problem(self, problem: str | None) -> str | None:
        return next((one for one in messages.all_gather_json(problem, self._files) if one), None)

    # Communication.

    def _on_rank_0(self, what: str, action: Callable[[], None]) -> None:
        """Run the action on rank 0 while the others wait; its error is raised on all ranks."""
        problem: str | None = None
        if self._rank == 0:
            try:
                action()
            except (OSError, ConfigurationError) as error:
                problem = str(error)
        problem = messages.broadcast_json(problem, 0, self._deciders)
        if problem is not None:
            raise CheckpointFailedError(f"rank 0 could not {what} in {self.directory}: {problem}")

    def _from_rank_0(self, question: Callable[[], Any]) -> Any:
        return messages.broadcast_json(question() if self._rank == 0 else None, 0, self._deciders)


def _count(step: Any) -> int:
    """A number of steps, also of NumPy or torch, as one of Python."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigurationError(
            f"the step to save is {step!r}: it is the number of steps that are made, a whole number from 0. In a block"
            " of session.step() it is session.committed + 2 after the optimizer, and afterwards + 1."
        )
    return number


def _find_missing(temporary: Path, parts: list[dict[str, Any]]) -> tuple[tuple[int, str] | None, str]:
    """The first rank whose files are not where this rank's are, and the remedy."""
    if not temporary.is_dir():
        return (0, f"another process has removed {temporary.name}"), _ONE_WRITER
    for rank, sealed in enumerate(parts):
        if any(not (temporary / name).is_file() for name in sealed):
            return (rank, "what it has written is not in the directory of rank 0"), _SHARE
    return None, _MAKE_ROOM
