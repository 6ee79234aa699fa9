"""What a script cannot know about its session is told where it shows: once, in one sentence, with the remedy.

None of this is an error. A script that does it trains, but not what its author believes. The judgements are pure.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from elasticjob.data.samplers import ElasticDistributedSampler
from elasticjob.errors import ConfigurationError

logger = logging.getLogger("elasticjob")

_OWN = f"{Path(__file__).parents[1]}{os.sep}"
_WAITS = f"{_OWN}torchcompat{os.sep}waits.py"  # which looks who waits
_LAUNCH = f"{_OWN}launch{os.sep}"  # which calls a script, in a process that was forked from the agent
_FOLDERS = (str(Path(torch.__file__).parent), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
_LIBRARIES = (*(f"{one}{os.sep}" for one in _FOLDERS), "<frozen")


def judge_loader(loader: Any, sampler: Any) -> str:
    """What is wrong with the loader of a session with this sampler; "" if nothing is known to be."""
    data = torch.utils.data
    if not isinstance(loader, data.DataLoader):
        return ""
    if isinstance(loader.dataset, data.IterableDataset):
        if sampler is not None and not isinstance(sampler, ElasticDistributedSampler):
            return ""  # the script follows this advice, as far as anybody can see
        return (
            "each rank reads the whole IterableDataset, and after a change of the world begins it again: divide it by"
            " session.rank and session.world_size, pass an object that knows the position as sampler=, and end the"
            " training by session.committed, as a joiner begins with the first epoch; or use a dataset with a length"
            " and ElasticDistributedSampler."
        )
    if sampler is not None and sampler in (loader.batch_sampler, loader.sampler):
        return ""
    if isinstance(loader.sampler, data.DistributedSampler):
        return (
            "the DistributedSampler of this loader divides the data over the ranks of the world in which it was made,"
            " also after a change: use DataLoader(dataset, batch_sampler=ElasticDistributedSampler(...)) and pass the"
            " sampler to the session."
        )
    if sampler is None:
        return (
            "this loader has no sampler that knows the ranks: each of them trains on all samples, and after a change of"
            " the world begins the epoch again. Use DataLoader(dataset, batch_sampler=ElasticDistributedSampler(...)),"
            " and pass the sampler to the session."
        )
    return "this loader does not use the session's sampler: DataLoader(dataset, batch_sampler=sampler)."


def check_sampler(loader: Any, sampler: Any) -> None:
    """Raises ConfigurationError for a loader whose sampler knows of no later world: the session's is another one."""
    theirs = getattr(loader, "batch_sampler", None)
    is_followed = sampler is None or isinstance(sampler, ElasticDistributedSampler)  # else it may lead this one
    if is_followed and isinstance(theirs, ElasticDistributedSampler) and theirs is not sampler:
        raise ConfigurationError(
            "this loader has another ElasticDistributedSampler than the session, and so the shares of the world in"
            " which it was made, also after a change. Give the session the sampler of its loader, Session(...,"
            " sampler=sampler). If the data changes from phase to phase, make a new DataLoader over the same sampler;"
            " for phases with other lengths or batch sizes, use jobs of their own, or a script without a session."
        )


def judge_schedules(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """Whether schedulers have stepped between two blocks, by how often each has."""
    moved = [name for name, count in now.items() if before.get(name, count) != count]
    if not moved:
        return ""
    return (
        f"{moved[0]!r} was stepped outside of `with session.step()`: a step that is broken by a loss does not take that"
        " back, and a checkpoint of that step misses it. Step it inside the block after the optimizer; for one of"
        " epochs, if sampler.is_over()."
    )


def judge_scheduled(optimizer: torch.optim.Optimizer, extras: Iterable[Any]) -> str:
    """Whether torch's schedulers change the rates of this optimizer, and none of these objects can be one of them."""
    known = (torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler)
    if not hasattr(optimizer.step, "_wrapped_by_lr_sched") or any(not isinstance(one, known) for one in extras):
        return ""
    return (
        f"a scheduler changes the rates of {type(optimizer).__name__}, and the session does not have it: in a process"
        " that joins it begins anew, with other rates than here, and a step broken by a loss does not take it back."
        " Make it before the session, and pass it by name: Session(..., scheduler=scheduler)."
    )


def judge_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """What is wrong with a step of an optimizer that the session does not have."""
    kind = type(optimizer).__name__
    return (
        f"{kind}, which the session does not know, has stepped inside `with session.step()`: a joiner does not get its"
        " state, and a step broken by a loss may be applied twice. Pass it by name: Session(..., second=optimizer)."
    )


def judge_outside(optimizer: torch.optim.Optimizer, *, is_virtual: bool = False) -> str:
    """What is wrong with a step of an optimizer that trains other parameters than the session's model.

    `is_virtual`: with virtual ranks, whose gradients no script can add up itself.
    """
    unless = "" if is_virtual else ", unless the script does that"
    return (
        f"{type(optimizer).__name__} trains parameters that are not of the session's model: nobody adds their gradients"
        f" up over the ranks, so each rank trains others{unless}. Make one model of all modules"
        " that are trained, such as torch.nn.ModuleDict, whose forward() calls them, and call session.model. Parameters"
        " of no module, such as weights of losses, can be attributes of the model."
    )


def judge_groups(groups: Iterable[Iterable[str]]) -> str:
    """Whether groups that an optimizer has got have parameters of no module that the session knows."""
    if all(name for group in groups for name in group):
        return ""
    return (
        "an optimizer has got another parameter group since the session began, with parameters that are not of the"
        " session's model, nor of a module that is passed to it by name: a joiner cannot take its state, and ends with"
        " an error. Make them before the session, with requires_grad=False until they are trained."
    )


def has_gradients(optimizers: Iterable[torch.optim.Optimizer]) -> bool:
    """Whether any of the parameters of these optimizers has a gradient."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return any(one.grad is not None for group in groups for one in group["params"])


def judge_gradients(optimizers: Iterable[torch.optim.Optimizer]) -> str:
    """What is wrong with a step that no optimizer has applied, and no GradScaler has skipped."""
    if not has_gradients(optimizers):
        return ""
    return (
        "a block of `with session.step()` has ended without optimizer.step(), and its gradients are still there. If"
        " they are accumulated over several blocks: its samples count as used, and a loss or a joiner makes the"
        " gradients wrong. Accumulate with ElasticDistributedSampler(micro_batch_size=...) and step if"
        " session.ends_step. If the step was left out on purpose: call optimizer.zero_grad() inside of the block."
    )


UNUSED = (
    "a batch was read, and no step was made of it before the next one was read. If the script leaves it out, its"
    " samples count as used. If it reads ahead, as a prefetcher does, each step has the share and the scale of another"
    " batch: let it read ahead of the loader, session.batches(Prefetcher(loader))."
)


TWICE = (
    "a batch has a second block of `with session.step()`. Each block is a step, and a second one that a loss breaks is"
    " not made again, as its batch counts as used: put all that belongs to a batch into one block. It may have several"
    " backward passes and optimizers."
)


def judge_left(error: str) -> str:
    """What is wrong with a block that an exception has ended, in a script that goes on, where no rank can be asked."""
    return (
        f"a block of `with session.step()` has ended with an exception ({error}), and the script goes on. If"
        " other ranks have made this step, each trains another model from now on: skip a step on all ranks or on none."
    )


def judge_wait(place: str) -> str:
    """What is wrong with a script that waits for other ranks in this line, outside of any block."""
    return (
        f"{place} waits for other ranks outside of any block of the session. A member that is lost meanwhile raises an"
        " error there, which ends this process and the memory that it keeps. Put it into `with session.step()`, or into"
        " `with session.interruptible()`, which ends with the world."
    )


def find_script(files: Iterable[tuple[str, int]]) -> str:
    """The file and line of the script that waits for other ranks; "" if it is not the script that does. Pure.

    `files`: where each function that is called at present is, the innermost first. What the session and a Checkpointer
    ask other ranks for by themselves, also in `on_world`, survives a loss.
    """
    place, calls = "", list(files)
    own = itertools.takewhile(lambda one: one[0].startswith(_OWN), calls)
    looking = [at for at, (file, _) in enumerate(own) if file == _WAITS]
    for file, line in calls[looking[-1] + 1 if looking else 0 :]:
        if file.startswith(_LAUNCH):
            break
        if file.startswith(_OWN):
            return ""
        if not place and not file.startswith(_LIBRARIES):
            place = f"{file}, line {line},"
    return place


def find_here() -> str:
    """The line of the script that is executed now; "" where it is none of the script's own."""
    calls = [(file, line) for file, line in _list_calls() if not file.startswith((_OWN, *_LIBRARIES))]
    return f"{calls[0][0]}, line {calls[0][1]}," if calls else ""


def _list_calls() -> Iterator[tuple[str, int]]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


class Adviser:
    """Looks at what the script of one session does."""

    def __init__(
        self,
        extras: Mapping[str, Any],
        optimizers: Sequence[torch.optim.Optimizer],
        knows: Callable[[Any], bool],
        is_reduced: Callable[[torch.optim.Optimizer], bool],
        is_first: Callable[[], bool],
        read_groups: Callable[[], Mapping[str, Sequence[Iterable[str]]]],
    ) -> None:
        """`optimizers` are those that stay the same in all worlds; `knows` one that the session has at present;
        `is_reduced`: the gradients of all that it trains are those of all ranks; `is_first`: this rank is the one that
        speaks; `read_groups`: the names of the parameters in their groups, by optimizer.
        """
        self._optimizers, self._extras = optimizers, list(extras.values())
        self._groups = self._count_groups()
        self._schedulers = {
            name: one for name, one in extras.items() if isinstance(getattr(one, "last_epoch", None), int)
        }
        self._knows, self._is_reduced, self._is_first, self._read_groups = knows, is_reduced, is_first, read_groups
        self._known = {name: len(found) for name, found in read_groups().items()}
        self._thread = threading.get_ident()  # of the script
        self._inside = False
        self._counts: Mapping[str, int] = {}  # of the schedulers after the last block
        self._world: object = None  # in which that was
        self._here: object = None  # the world of the present block
        self._seen: set[tuple[object, int, int]] = set()  # optimizers that have stepped, by world and number of groups
        self._told: set[str] = set()
        self._hook = register_optimizer_step_post_hook(self._note_step)

    def look_at(self, loader: Any, sampler: Any) -> None:
        """The script reads batches of this loader."""
        self.tell("loader", judge_loader(loader, sampler))

    def look_at_batch(self, is_used: bool) -> None:
        """The script asks for the next batch. `is_used`: a block has begun since it has got the last one."""
        if not is_used:
            self.tell("unused", UNUSED)

    def begin(self, world: object) -> None:
        """A block begins, in this world."""
        self._inside, self._here = True, world
        if self._schedulers and world == self._world:  # in a new one, they may have been loaded
            self.tell("scheduler", judge_schedules(self._counts, self._count()))
        groups, self._groups = self._groups, self._count_groups()
        if groups != self._groups:
            found = self._read_groups()
            self.tell("groups", judge_groups(one for name in found for one in found[name][self._known[name] :]))
            self._known = {name: len(one) for name, one in found.items()}

    def look_at_gradients(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """A step ends without an optimizer."""
        if "gradients" not in self._told:
            self.tell("gradients", judge_gradients(optimizers))

    def look_at_wait(self) -> None:
        """Somebody begins to wait for other ranks outside of any block."""
        if "wait" not in self._told and self.is_of_script():
            place = find_script(_list_calls())
            self.tell("wait", judge_wait(place) if place else "")

    def is_of_script(self) -> bool:
        """Whether the script's thread is here."""
        return threading.get_ident() == self._thread

    def note_left(self, error: str) -> None:
        """An exception has ended a block, on this rank at least, and the script goes on."""
        if "left" not in self._told:
            self._told.add("left")
            logger.warning("Session: %s", judge_left(error))

    def end(self, world: object) -> None:
        """The block has ended."""
        self._inside = False
        if self._schedulers:
            self._counts, self._world = self._count(), world

    def close(self) -> None:
        self._hook.remove()

    def _count_groups(self) -> int:
        return sum(len(one.param_groups) for one in self._optimizers)

    def _count(self) -> dict[str, int]:
        return {name: one.last_epoch for name, one in self._schedulers.items()}

    def _note_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._inside:
            return
        if not self._knows(optimizer):
            self.tell("optimizer", judge_optimizer(optimizer))
        elif (seen := (self._here, id(optimizer), len(optimizer.param_groups))) not in self._seen:
            self._seen.add(seen)
            self.tell("scheduled", judge_scheduled(optimizer, self._extras))
            if not self._is_reduced(optimizer):
                self.tell("outside", judge_outside(optimizer))

    def tell(self, topic: str, text: str) -> None:
        """Once for each topic, on one rank, if there is a text."""
        if text and topic not in self._told:
            self._told.add(topic)
            if self._is_first():
                logger.warning("Session: %s", text)
