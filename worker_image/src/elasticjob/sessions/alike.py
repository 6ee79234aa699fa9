"""What a script changes outside of the blocks of its session, so that ranks which look alike are not.

A joiner gets the state of the others in `Session(...)`. What its script does from there to its first batch, the others
have behind them: to lower a rate as an epoch begins, to freeze a part of the model, to load weights or a checkpoint.
The state that it got has that already. So its settings are put back, and weights that it has changed are an error.

Rates that a script computes from counters or schedulers of its own begin anew in a joiner, and nobody would see it: the
losses are alike, and each rank trains another model. So the ranks of a world compare the settings of their optimizers
before they apply the first step, and the second, fourth, eighth, and so on.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from elasticjob.sessions.schedules import Settings
from elasticjob.sessions.spots import view

_EVERY = 1024  # steps between two comparisons, at most
_NOTHING = 1e-12  # what is smaller is as good as that, for a rate that sinks to zero
_CLOSE = 1e-4  # processors differ in the last bits of a cosine
_RATE = "lr"


def is_due(step: int) -> bool:
    """Whether to compare before this step of a world, of which the first is 1. Pure."""
    return step & (step - 1) == 0 or step % _EVERY == 0


def summarize(groups: Iterable[Mapping[str, Any]], names: Iterable[str]) -> list[int]:
    """The settings of these groups in integers, equally many on each rank: rates, other numbers, and the rest. Pure
    but for tensors, which it reads.

    `names` are those of the settings that an optimizer has.
    """
    sums = {True: 0.0, False: 0.0}
    rest = []
    for place, (number, group, name) in enumerate(
        (number, group, name) for number, group in enumerate(groups) for name in sorted(names) if name in group
    ):
        for at, value in enumerate(_flatten(group[name])):
            if isinstance(value, float | int) and not isinstance(value, bool):
                size = max(abs(float(value)), _NOTHING)
                weight = 1.0 + (place * 7 + at * 3) % 31 / 31
                sums[name == _RATE] += weight * math.log(size) if math.isfinite(size) else weight
                rest.append((number, name, value < 0))
            else:
                rest.append((number, name, value))
    rates, others = (int.from_bytes(struct.pack("<d", sums[one]), "little", signed=True) for one in (True, False))
    return [rates, others, zlib.crc32(repr(rest).encode())]


def _flatten(value: Any) -> list[Any]:
    """What can be compared between ranks; nothing of other objects."""
    if isinstance(value, torch.Tensor):
        return [float(value)] if value.numel() == 1 and not value.is_complex() else []
    if isinstance(value, (tuple, list)):
        return [part for one in value for part in _flatten(one)]
    return [value] if isinstance(value, (bool, int, float, str, type(None))) else []


def judge(rows: Sequence[Sequence[int]], rank: int) -> str:
    """What is wrong with the settings of this rank; "" if they are those of the others. Pure.

    A row has whether the rank was in an earlier world, and what `summarize` gives. Those that were are right, and else
    rank 0 is.
    """
    source = next((one for one, (was_there, *_) in enumerate(rows) if was_there), 0)
    (_, *mine), (_, *theirs) = rows[rank], rows[source]
    differing = []
    if not _is_close(mine[0], theirs[0]):
        differing.append("'lr'")
    if not _is_close(mine[1], theirs[1]) or mine[2] != theirs[2]:
        differing.append("others than 'lr'")
    if not differing:
        return ""
    return (
        f"an optimizer of rank {rank} trains with other settings ({' and '.join(differing)}) than rank {source}, so"
        " that each would train a model of its own. A process that joins begins with counters and schedulers of its"
        " own: compute settings from session.committed or sampler.epoch, make schedulers before the session and pass"
        " them by name, as in Session(..., scheduler=scheduler)."
    )


def _is_close(mine: int, theirs: int) -> bool:
    one, other = (struct.unpack("<d", value.to_bytes(8, "little", signed=True))[0] for value in (mine, theirs))
    return math.isclose(one, other, rel_tol=0.0, abs_tol=_CLOSE)


class Entered:
    """What a rank has as it enters its first world, until its script reads the first batch or begins the first step."""

    def __init__(
        self,
        optimizers: Iterable[torch.optim.Optimizer],
        parameters: Mapping[str, torch.nn.Parameter],
        is_joiner: bool,
    ) -> None:
        """`is_joiner`: it got the state of ranks that train already."""
        self.is_joiner = is_joiner
        self._settings = [Settings(one, number) for one in optimizers for number in range(len(one.param_groups))]
        self._parameters = dict(parameters)
        self._trainable = {name: one.requires_grad for name, one in parameters.items()}
        self._words = {name: _read(one) for name, one in parameters.items()}

    def put_back(self) -> list[str]:
        """In a joiner, the settings that the script has changed since, which are put back."""
        if not self.is_joiner:
            return []
        names = {name for one in self._settings for name in one.find_changed()}
        for one in self._settings:
            one.apply()
        for name, parameter in self._parameters.items():
            if parameter.requires_grad is not self._trainable[name]:
                names.add("requires_grad")
                parameter.requires_grad_(self._trainable[name])
        return sorted(names)

    def find_changed(self) -> str:
        """The name of a parameter that the script has changed since; "" if there is none."""
        for name, before in self._words.items():
            now = _read(self._parameters[name])
            if before is not None and now is not None and not torch.equal(before, now):
                return name
        return ""


def _read(parameter: torch.Tensor) -> torch.Tensor | None:
    """Some of its words, from the memory that it has now: a script may give it other memory."""
    words = view(parameter)
    return None if words is None else words.clone()


def tell_together(place: str, *, is_joiner: bool) -> str:
    """The sentence about what a script does with all ranks between `Session(...)` and its first step."""
    done = f"{place or 'the script'} speaks to other ranks between Session(...) and its first step"
    remedy = (
        "Let the session do it in its on_world, which all ranks call together in each world, also to make a"
        " Checkpointer or a group; or do it inside of a block."
    )
    if is_joiner:
        return f"{done}, and those that train already will not answer. {remedy}"
    return f"{done}. A process that joins later would do so alone, and ends with an error. {remedy}"


def tell_put_back(names: Sequence[str]) -> str:
    return (
        f"the script has changed {', '.join(map(repr, names))} since Session(...), where this rank has got the state of"
        " those that train already. They have that behind them: this rank goes on with what they have."
    )


def tell_changed(name: str, *, is_joiner: bool) -> str:
    """The sentence about a parameter that was changed behind the session's back."""
    remedy = "Load weights and checkpoints before Session(...), or in its on_world if session.committed is -1."
    if is_joiner:
        return (
            f"the script has changed {name!r} since Session(...), where this rank has got the state of those that train"
            f" already: it would train another model than they do. {remedy}"
        )
    return (
        f"the script has changed {name!r} since Session(...). A process that joins later would do so with the state"
        f" that it has got from the others, and end with an error. {remedy}"
    )
