"""What was measured, from the result lines that the tables of docs/performance.md are made of. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.tables import Line, find_ours

HUB_CASES = {
    "connect, to the last welcome": "connect",
    "form a world, to the last agent": "form",
    "lose a member and form the next world, to the last agent": "change",
    "heartbeats, CPU per second": "heartbeats",
    "memory of an agent": "memory",
}
_HUB = re.compile(r"(\d+) agents, TLS: (.+)")
_CREATION = re.compile(r"(\d+) x (\d+): create to all pods exist")


class MissingError(ValueError):
    """A result that the model is fitted to is not there."""


@dataclass(frozen=True)
class Measured:
    """`hub`: (what, agents) -> seconds of time or CPU, or bytes. `creation`: (jobs, pods of each) -> seconds."""

    hub: Mapping[tuple[str, int], float]
    creation: Mapping[tuple[int, int], float]

    def dump(self) -> dict[str, Any]:
        return {name: [[*key, value] for key, value in vars(self)[name].items()] for name in ("hub", "creation")}

    @classmethod
    def load(cls, raw: Mapping[str, Sequence[Any]]) -> Measured:
        return cls(*({tuple(key): value for *key, value in raw[name]} for name in ("hub", "creation")))


def read(hub: Iterable[Line], controlplane: Iterable[Line]) -> Measured:
    """Ours, of the hub's lines with TLS and the control plane's."""
    found: dict[tuple[str, int], float] = {}
    for line in hub:
        match, value = _HUB.fullmatch(line["case"]), find_ours(line)
        if match and match[2] in HUB_CASES and value is not None:
            found[HUB_CASES[match[2]], int(match[1])] = value
    creation: dict[tuple[int, int], float] = {}
    for line in controlplane:
        match, value = _CREATION.fullmatch(line["case"]), find_ours(line)
        if match and value is not None:
            creation[int(match[1]), int(match[2])] = value
    missing = sorted(set(HUB_CASES.values()) - {what for what, _ in found})
    if missing or not creation:
        what = f"of the hub: {', '.join(missing)}" if missing else "of the control plane"
        raise MissingError(f"benchmarks/results has no result {what}")
    return Measured(found, creation)
