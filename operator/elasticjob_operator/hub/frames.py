"""Encodes messages to text frames, and decodes them. Pure.

A world of a thousand members is sent a thousand times, each time with the same list of members. So the list is encoded
once, and each frame adds only the rank.
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


Message = wire.Hello | wire.State | wire.Progress | wire.Diagnosis


def decode(data: str | bytes) -> Message | Problem:
    """Decode one frame of an agent. Never raises."""
    try:
        message = wire.AGENT_MESSAGE.validate_json(data)
        return finite(message) if isinstance(message, wire.Progress) else message
    except pydantic.ValidationError as error:
        return _explain(data, error)
    except (ValueError, RecursionError) as error:
        return Problem("malformed", f"not JSON: {error}"[:512])


def finite(progress: wire.Progress) -> wire.Progress:
    """Replace NaN and infinities: a loss may be NaN, but JSON, and so the API server, cannot represent it."""
    metrics = {name: value for name, value in progress.metrics.items() if math.isfinite(value)}
    changes: dict[str, object] = {} if len(metrics) == len(progress.metrics) else {"metrics": metrics}
    for name in ("step_seconds", "batch_seconds", "noise_scale"):
        value = getattr(progress, name)
        if value is not None and not math.isfinite(value):
            changes[name] = None
    return progress.model_copy(update=changes) if changes else progress


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
    """Encodes the directives of one job; caches the encoded members of the last world."""

    def __init__(self) -> None:
        self._members: tuple[wire.Member, ...] = ()
        self._listed = b"[]"
        self._sizes = b"[]"

    def encode(self, directive: wire.Directive, *, sizes: bool = False) -> bytes:
        """The frame; with `sizes` for an agent that supports these instead of members."""
        head: dict[str, object] = {"v": wire.PROTOCOL_VERSION, "type": "directive"}
        if not isinstance(directive, wire.World):
            return json.dumps({**head, "directive": directive.dump()}, separators=(",", ":")).encode()
        # Tuple comparison checks identity first, so worlds that share their members cost nothing here.
        if directive.members != self._members:
            listed = [member.dump() for member in directive.members]
            self._listed = json.dumps(listed, separators=(",", ":")).encode()
            self._sizes = json.dumps(sizes_of(directive.members), separators=(",", ":")).encode()
        self._members = directive.members  # even if equal: later directives share these objects
        own = directive.model_dump(by_alias=True, exclude_none=True, mode="json", exclude={"members", "sizes"})
        text = json.dumps({**head, "directive": own}, separators=(",", ":")).encode()
        # `text` ends with the closing braces of the directive and the message.
        if sizes:
            return b'%s,"sizes":%s}}' % (text[:-2], self._sizes)
        return b'%s,"members":%s}}' % (text[:-2], self._listed)


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
