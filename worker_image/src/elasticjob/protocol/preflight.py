"""What agent and hub tell each other while the network is checked before a pod's first world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from elasticjob.protocol import fields

MOST_LINKS: Final = 64  # in a message
MAX_PROBLEM: Final = 256  # bytes


@dataclass(frozen=True)
class Peer:
    """A pod of the job that answers probes."""

    uid: str
    address: str
    port: int


@dataclass(frozen=True)
class Probe:
    """Measure the links to these peers. `passed`: None while the hub waits for results of this or other pods."""

    peers: tuple[Peer, ...] = ()
    passed: bool | None = None
    reason: str = ""  # why it has not passed


@dataclass(frozen=True)
class Link:
    """What was measured between this pod and another one; without numbers if there is a problem."""

    uid: str  # of the other pod
    seconds: float | None = None  # a round trip
    bytes_per_second: float | None = None  # both directions together
    clock_seconds: float | None = None  # by which the other clock is ahead
    problem: str | None = None

    def dump(self) -> dict[str, Any]:
        return fields.drop_none(
            uid=self.uid,
            seconds=self.seconds,
            bytesPerSecond=self.bytes_per_second,
            clockSeconds=self.clock_seconds,
            problem=self.problem and fields.fit(self.problem, MAX_PROBLEM),
        )


@dataclass(frozen=True)
class Preflight:
    """The check of the network before the first world of this pod."""

    port: int  # where it answers probes
    links: tuple[Link, ...] = ()
    over: bool = False  # it has passed, or its time is up

    def dump(self) -> dict[str, Any]:
        return {"port": self.port, "links": [link.dump() for link in self.links], "over": self.over}


def parse_probe(value: dict[str, Any]) -> Probe:
    """Raises WireError."""
    raw, passed = value.get("peers", []), value.get("passed")
    if not isinstance(raw, list) or not all(isinstance(one, dict) for one in raw):
        raise fields.WireError("the peers of a probe are objects")
    peers = tuple(
        Peer(fields.read_text(one, "uid"), fields.read_text(one, "address"), fields.read_count(one, "port"))
        for one in raw
    )
    return Probe(peers, passed if isinstance(passed, bool) else None, str(value.get("reason", "")))
