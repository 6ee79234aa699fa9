"""Finds the node that is at fault in a network, from measurements between pairs of nodes. Pure.

A bad measurement accuses both nodes of the pair. Measurements with other partners tell which of them it was: the node
that is common to the bad ones. Whoever has a good measurement is innocent, and the network between the two is at fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_MEGABYTE = 1 << 20
FACTOR = 5.0  # times as slow as a good pair
FAST_ENOUGH = 100.0 * _MEGABYTE  # bytes per second; a faster pair is never slow
SOON_ENOUGH = 0.01  # seconds of a round trip; a shorter one is never long
CLOCK_SECONDS = 30.0  # tokens and certificates fail beyond it
ACCUSERS = 2


@dataclass(frozen=True, slots=True)
class Measure:
    """What was measured between two nodes."""

    first: str
    second: str
    seconds: float = 0.0  # a round trip
    bytes_per_second: float = 0.0  # both directions together
    clock_seconds: float = 0.0  # by which the second clock is ahead
    problem: str = ""

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset((self.first, self.second))


def find_guilty(measures: Sequence[Measure]) -> dict[str, str]:
    """The nodes at fault, each with what was measured.

    None of the measurements of such a node is good, and at least two nodes that have good ones say so. If half of all
    nodes or more would be accused, nobody is: as likely, all others are wrong.
    """
    bad = find_bad(measures)
    nodes = {node for one in measures for node in one.nodes}
    innocent = {node for one in measures if one.nodes not in bad for node in one.nodes}
    accusers_of = _find_accusers(bad)
    accused = {node: sorted(accusers_of[node] & innocent) for node in nodes - innocent}
    guilty = {node: accusers for node, accusers in accused.items() if len(accusers) >= ACCUSERS}
    if 2 * len(guilty) >= len(nodes):
        return {}
    return {node: _describe(node, accusers, bad) for node, accusers in sorted(guilty.items())}


def _describe(node: str, accusers: Sequence[str], bad: Mapping[frozenset[str], str]) -> str:
    first, *others = accusers[:3]
    return f"{bad[frozenset((node, first))]}, and the same with {' and '.join(others)}"


def find_bad(measures: Sequence[Measure]) -> dict[frozenset[str], str]:
    """The pairs of nodes between which something is wrong, with what it is. One good measurement of a pair counts."""
    sound = [one for one in measures if not one.problem]
    rate = _find_usual(sorted((one.bytes_per_second for one in sound), reverse=True), len(measures))
    late = _find_usual(sorted(one.seconds for one in sound), len(measures))
    found: dict[frozenset[str], str] = {}
    good = set()
    for one in measures:
        why = _judge(one, rate, late)
        if why:
            found.setdefault(one.nodes, why)
        else:
            good.add(one.nodes)
    return {pair: why for pair, why in found.items() if pair not in good}


def _find_accusers(bad: Iterable[frozenset[str]]) -> defaultdict[str, set[str]]:
    """For each node the others with which it has a bad measurement."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for pair in bad:
        for node in pair:
            found[node] |= pair - {node}
    return found


def _find_usual(ordered: Sequence[float], count: int) -> float | None:
    """What a good pair has, of values from the best one on.

    If less than half of the nodes are bad, more than a quarter of all pairs are good.
    """
    return ordered[count // 4] if count // 4 < len(ordered) else None


def _judge(one: Measure, rate: float | None, late: float | None) -> str:
    """What is wrong between these two nodes; "" if nothing is."""
    where = f"between {one.first} and {one.second}"
    if one.problem:
        return f"{one.problem} {where}"
    if rate is not None and one.bytes_per_second < min(FAST_ENOUGH, rate / FACTOR):
        return f"{one.bytes_per_second / _MEGABYTE:.1f} MiB/s {where}, {rate / _MEGABYTE:.1f} MiB/s elsewhere"
    if late is not None and one.seconds > max(SOON_ENOUGH, FACTOR * late):
        return f"a round trip of {one.seconds * 1e3:.1f} ms {where}, {late * 1e3:.1f} ms elsewhere"
    if abs(one.clock_seconds) > CLOCK_SECONDS:
        return f"the clocks differ by {abs(one.clock_seconds):.0f} s {where}"
    return ""
