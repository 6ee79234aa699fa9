"""Encodes messages to text frames, and decodes them. Pure.

A world of a thousand members is sent a thousand times, and only the rank differs. So the rest is encoded once, and each
frame adds its rank.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass

import pydantic
import pydantic_core

from elasticjob_operator.api import wire


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a message is invalid. `code` is one of those of `wire.Error`."""

    code: str
    message: str


LONG = 2**12  # bytes: the items of a longer message are counted before they are read
_MOST_ITEMS = 2600  # of all lists and objects of a message: 2,048 shards, and everything else at its most
_BY_AGENT = {"members", "sizes", "rank"}  # of a world

Message = wire.Hello | wire.State | wire.Progress | wire.Diagnosis


def decode(data: str | bytes) -> Message | Problem:
    """Decode one frame of an agent. Never raises."""
    try:
        if len(data) > LONG and has_too_many_items(pydantic_core.from_json(data)):
            return Problem("malformed", f"message: its lists and objects may have at most {_MOST_ITEMS} items")
        message = wire.AGENT_MESSAGE.validate_json(data)
        return with_known_metrics(message) if isinstance(message, wire.Progress) else message
    except pydantic.ValidationError as error:
        return _explain(data, error)
    except (ValueError, RecursionError) as error:
        return Problem("malformed", f"not JSON: {error}"[:512])


def has_too_many_items(value: object) -> bool:
    """Whether it has so many that an error for each wrong one would take long."""
    count, left = 0, [value]
    while left and count <= _MOST_ITEMS:
        one = left.pop()
        if isinstance(one, (list, dict)):
            count += len(one)
            left += () if count > _MOST_ITEMS else one.values() if isinstance(one, dict) else one
    return count > _MOST_ITEMS


def with_known_metrics(progress: wire.Progress) -> wire.Progress:
    """Leave out metrics without a name. Of NaN and infinities, keep the names: no status can hold them."""
    metrics = {name: value for name, value in progress.metrics.items() if name and math.isfinite(value)}
    if len(metrics) == len(progress.metrics):
        return progress
    wrong = [name for name in progress.metrics if name and name not in metrics and name not in progress.not_finite]
    names = (progress.not_finite + wrong)[: wire.MOST_METRICS]
    return progress.model_copy(update={"metrics": metrics, "not_finite": names})


def without_tracebacks(state: wire.AgentState) -> wire.AgentState:
    """The state without the texts that are long and that nothing depends on."""
    kept = {
        name: failure.model_copy(update={"traceback": None})
        for name in ("failure", "unsaved")
        if (failure := getattr(state, name)) is not None and failure.traceback
    }
    return state.model_copy(update=kept) if kept else state


def _explain(data: str | bytes, error: pydantic.ValidationError) -> Problem:
    try:
        version = _version(pydantic_core.from_json(data))
    except (ValueError, RecursionError):
        version = None
    if version is not None and version != wire.PROTOCOL_VERSION:
        return Problem("version", f"v: this hub speaks version {wire.PROTOCOL_VERSION}, not {version}")
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    # The first element is the member of the union, not a field.
    field = ".".join(str(part) for part in first["loc"][1:])[:256]
    return Problem("malformed", f"{field or 'message'}: {first['msg']}"[:1024])


def _version(value: object) -> int | None:
    if not isinstance(value, dict):
        return None
    version = value.get("v")
    return version if isinstance(version, int) and abs(version) < 2**31 else None


def encode(message: wire.Welcome | wire.Error) -> bytes:
    return json.dumps(message.dump(), separators=(",", ":")).encode()


class DirectiveEncoder:
    """Encodes the directives of one job. What the agents of a world, or of a regroup, share is encoded once."""

    def __init__(self) -> None:
        self._shared: wire.Directive | None = None  # the last directive ...
        self._frame = b""  # ... and its frame; of a world only what is before the rank
        self._members: tuple[wire.Member, ...] | None = None
        self._listed = self._sizes = b""

    def measure(self, directive: wire.Directive, *, sizes: bool = False) -> int:
        """About how many bytes a frame has; 0 for those that are never long."""
        return len(self._list(directive.members, sizes)) if isinstance(directive, wire.World) else 0

    def encode(self, directive: wire.Directive, *, sizes: bool = False) -> bytes:
        """The frame; with `sizes` for an agent that supports these instead of members."""
        if not isinstance(directive, wire.World):
            if directive != self._shared:
                self._frame = _encode_directive(directive.dump())
                self._shared = directive
            return self._frame
        if not self._shares_all_but_rank(directive):
            own = directive.model_dump(by_alias=True, exclude_none=True, mode="json", exclude=_BY_AGENT)
            self._frame = _encode_directive(own)[:-2]  # without the closing braces of the directive and the message
            self._shared = directive
        return b'%s,"rank":%d,%s}}' % (self._frame, directive.rank, self._list(directive.members, sizes))

    def _shares_all_but_rank(self, world: wire.World) -> bool:
        known = self._shared
        return isinstance(known, wire.World) and (world.generation, world.restarts, world.store) == (
            known.generation,
            known.restarts,
            known.store,
        )

    def _list(self, members: tuple[wire.Member, ...], sizes: bool) -> bytes:
        # Equal tuples are compared member by member even if they are the same: for a world that is a square.
        if members is not self._members:
            if members != self._members:
                self._listed = self._sizes = b""
            self._members = members
        if sizes:
            self._sizes = self._sizes or b'"sizes":' + _dump(sizes_of(members))
            return self._sizes
        self._listed = self._listed or b'"members":' + _dump([member.dump() for member in members])
        return self._listed


def _encode_directive(value: dict[str, object]) -> bytes:
    return _dump({"v": wire.PROTOCOL_VERSION, "type": "directive", "directive": value})


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def sizes_of(members: tuple[wire.Member, ...]) -> list[tuple[int, int]]:
    """Run lengths in rank order: (number of members, processes of each)."""
    runs = itertools.groupby(member.nproc for member in sorted(members, key=lambda member: member.rank))
    return [(len(list(run)), nproc) for nproc, run in runs]


def same(left: wire.Directive | None, right: wire.Directive | None) -> bool:
    """Whether sending `right` after `left` would give the agent no new information.

    A generation is announced only once and never changes, so the members of worlds are not compared.
    """
    if left is right:
        return True
    if isinstance(left, wire.World) and isinstance(right, wire.World):
        return (left.generation, left.rank, left.store, left.restarts, len(left.members)) == (
            right.generation,
            right.rank,
            right.store,
            right.restarts,
            len(right.members),
        )
    return left == right
