"""Messages → text frames and back. Pure.

A world of a thousand members is told a thousand times. What it says of its members is the same every time, so it is
encoded once and each frame only adds the rank.
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
    """Why a message was not understood. `code` is one of those of `wire.Error`."""

    code: str
    message: str


Message = wire.Hello | wire.State | wire.Progress | wire.Diagnosis


def decode(data: str | bytes) -> Message | Problem:
    """One frame of an agent. Never raises."""
    try:
        message = wire.AGENT_MESSAGE.validate_json(data)
        return finite(message) if isinstance(message, wire.Progress) else message
    except pydantic.ValidationError as error:
        return _explain(data, error)
    except (ValueError, RecursionError) as error:
        return Problem("malformed", f"not JSON: {error}"[:512])


def finite(progress: wire.Progress) -> wire.Progress:
    """Without NaN and infinities: a loss may well be NaN, but JSON, and so the API server, has no such number."""
    metrics = {name: value for name, value in progress.metrics.items() if math.isfinite(value)}
    seconds = progress.step_seconds
    if seconds is not None and not math.isfinite(seconds):
        seconds = None
    if len(metrics) == len(progress.metrics) and seconds == progress.step_seconds:
        return progress
    return progress.model_copy(update={"metrics": metrics, "step_seconds": seconds})


def _explain(data: str | bytes, error: pydantic.ValidationError) -> Problem:
    try:
        version = _version(pydantic_core.from_json(data))
    except (ValueError, RecursionError):
        version = None
    if version is not None and version != wire.PROTOCOL_VERSION:
        return Problem("version", f"v: this hub speaks version {wire.PROTOCOL_VERSION}, not {version}")
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    # The first element names the member of the union, not a field.
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
    """The directives of one job → frames; remembers what it encoded of the last world's members."""

    def __init__(self) -> None:
        self._members: tuple[wire.Member, ...] = ()
        self._listed = b"[]"
        self._sizes = b"[]"

    def encode(self, directive: wire.Directive, *, sizes: bool = False) -> bytes:
        """A frame; with `sizes` for an agent that understands these in place of members."""
        head: dict[str, object] = {"v": wire.PROTOCOL_VERSION, "type": "directive"}
        if not isinstance(directive, wire.World):
            return json.dumps({**head, "directive": directive.dump()}, separators=(",", ":")).encode()
        # Comparing tuples looks at identity first, so worlds that share their members cost nothing here.
        if directive.members != self._members:
            listed = [member.dump() for member in directive.members]
            self._listed = json.dumps(listed, separators=(",", ":")).encode()
            self._sizes = json.dumps(sizes_of(directive.members), separators=(",", ":")).encode()
        self._members = directive.members  # even where equal: the next ones share the objects of these
        own = directive.model_dump(by_alias=True, exclude_none=True, mode="json", exclude={"members", "sizes"})
        text = json.dumps({**head, "directive": own}, separators=(",", ":")).encode()
        # `text` ends with the two braces of the directive and of the message.
        if sizes:
            return b'%s,"sizes":%s}}' % (text[:-2], self._sizes)
        return b'%s,"members":%s}}' % (text[:-2], self._listed)


def sizes_of(members: tuple[wire.Member, ...]) -> list[tuple[int, int]]:
    """How many members in a row, in the order of ranks, have how many processes."""
    runs = itertools.groupby(member.nproc for member in sorted(members, key=lambda member: member.rank))
    return [(len(list(run)), nproc) for nproc, run in runs]


def same(left: wire.Directive | None, right: wire.Directive | None) -> bool:
    """Whether sending `right` after `left` would tell the agent nothing.

    A generation is announced only once and never changes, so worlds need no comparison of their members.
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
