"""Who gets how many pods. Pure; a page that can be checked with a pencil.

1. Everyone keeps the smallest size; jobs that wait are admitted in their order as far as there is room.
2. Jobs with a deadline get the smallest size that keeps it, the next deadline first.
3. Free devices go, one step in size at a time, to the job whose speed, at its price, grows most a device: the ideal.
4. From what is, towards the ideal: buyers (jobs that would grow) take what is free, then what sellers (jobs that would
   shrink) give up, as long as the buyer gains more than the seller loses and both changes cost. What has to shrink to
   make room shrinks whatever it costs, and what a deadline needs is bought whatever it costs.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from elasticjob_operator.pool.prices import NOTHING, Price, find_prices
from elasticjob_operator.pool.values import HORIZON_SECONDS, Grant, Limit, Objective, Request

# What a job has to gain before it is changed, beside what the change costs.
MARGIN: Final = 0.03  # of its present value
DOUBT: Final = 0.5  # standard deviations of the gain, by its model
EXCHANGE: Final = 0.25  # more than what another job loses that gives up the devices, by its estimate

# Of the time until a deadline: what a job is to need for the rest of its work, and between which it is left alone.
AIM: Final = 0.9
KEEP: Final = (0.8, 0.95)
LATE: Final = 1.25  # a job that would need more than this at its fastest is a job without a deadline


def allocate(
    requests: Sequence[Request],
    capacity: int,
    objective: Objective = Objective.GOODPUT,
    *,
    horizon: float = HORIZON_SECONDS,
) -> dict[Hashable, Grant]:
    """What each job gets of so many devices. The same requests in another order get the same."""
    ordered = sorted(requests, key=lambda one: (one.size == 0, one.order, str(one.key)))
    lines, left = _admit(ordered, capacity)
    admitted = [line for line in lines if line.ideal >= 0]
    if objective is Objective.EQUAL:
        _share(admitted, capacity)
        return {line.request.key: line.grant() for line in lines}
    for line, price in zip(
        admitted, find_prices([line.request for line in admitted], capacity, objective), strict=True
    ):
        line.price = price
    left = _keep_deadlines(admitted, left)
    _fill(admitted, left)
    _trade(admitted, capacity, horizon)
    return {line.request.key: line.grant() for line in lines}


@dataclass(slots=True)
class _Line:
    """A job on the page. `now`, `ideal` and `size` are indices of its sizes; -1 is no pod at all."""

    request: Request
    now: int
    price: Price = NOTHING
    most: int = 0
    need: int = -1  # for its deadline; -1: it has none, or one that it cannot keep
    ideal: int = -1
    size: int = -1

    def devices(self, index: int) -> int:
        return self.request.sizes[index] * self.request.curve.devices if index >= 0 else 0

    def next_devices(self) -> int:
        """Of the next step above the ideal; 0 where there is none."""
        sizes, i = self.request.curve.sizes, self.ideal
        return (sizes[i + 1] - sizes[i]) * self.request.curve.devices if i < self.most else 0

    def slope(self) -> float:
        """What the next step above the ideal adds to the value, a device."""
        curve, i = self.request.curve, self.ideal
        if i >= self.most:
            return 0.0
        more = self.price.value(curve.speeds[i + 1]) - self.price.value(curve.speeds[i])
        return more / ((curve.sizes[i + 1] - curve.sizes[i]) * curve.devices)

    def value(self, index: int) -> float:
        return self.price.value(self.request.curve.speeds[index]) if index >= 0 else 0.0

    def cost(self, horizon: float) -> float:
        """Of a change: training that stands still, spread over the time for which the change is expected to last."""
        rest = self.request.remaining_seconds
        if rest is not None and self.now >= 0:
            horizon = min(horizon, rest / max(self.request.curve.speeds[self.now], 1e-9))
        return self.value(self.now) * self.request.change_seconds / max(horizon, 1e-9)

    def doubt(self, one: int, two: int) -> float:
        """What the model may be off by in the difference of two sizes."""
        model, sizes = self.request.model, self.request.sizes
        if model is None or min(one, two) < 0 or one == two:
            return 0.0
        return self.value(one) * model.fit.doubt(sizes[one], than=sizes[two])

    def grant(self) -> Grant:
        curve, index = self.request.curve, self.size
        if index < 0:
            return Grant(0, 0, Limit.ROOM)
        size, ideal, is_last = curve.sizes[index], curve.sizes[self.ideal], index == len(curve.sizes) - 1
        before = curve.speeds[self.now] if self.now >= 0 else 0.0
        gain = curve.speeds[index] / before - 1.0 if before > 0 else 0.0
        add = 0.0 if is_last else curve.speeds[index + 1] / max(curve.speeds[index], 1e-9) - 1.0
        if size != ideal:
            limit = Limit.CHANGE
        elif index == self.most:
            limit = Limit.NONE if is_last else Limit.DEADLINE
        else:
            limit = Limit.OTHERS
        return Grant(size, ideal, limit, gain, add, is_late=self.is_late(index))

    def is_late(self, index: int, share: float = 1.0) -> bool:
        """Whether the rest takes longer, at this size, than this share of the time until the deadline."""
        rest, due = self.request.remaining_seconds, self.request.due_seconds
        return rest is not None and due is not None and rest > share * due * self.request.curve.speeds[index]


def _admit(ordered: Sequence[Request], capacity: int) -> tuple[list[_Line], int]:
    """The smallest sizes: of jobs that run always, of others in their order as long as they fit."""
    lines, left, is_full = [], capacity, False
    for request in ordered:
        now = bisect_right(request.sizes, request.size) - 1 if request.size else -1
        if request.size and now < 0:
            now = 0
        line = _Line(request, now, most=len(request.sizes) - 1)
        need = request.sizes[0] * request.curve.devices
        if now >= 0 or (need <= left and not is_full):
            left -= need
            line.ideal = 0
        else:
            # Those behind it wait too, or a big job would wait for ever; not for what the pool does not have.
            is_full = is_full or need <= capacity
        lines.append(line)
    return lines, left


def _keep_deadlines(lines: Sequence[_Line], left: int) -> int:
    """What deadlines need, as far as there is room. Returns the devices that are left."""
    for line in lines:
        line.need = _find_need(line)
        if line.request.is_paid and line.need >= 0:
            line.most = line.need
    for line in sorted((line for line in lines if line.need > 0), key=lambda line: line.request.due_seconds or 0.0):
        while line.ideal < line.need and line.next_devices() <= left:
            left -= line.next_devices()
            line.ideal += 1
    return left


def _find_need(line: _Line) -> int:
    """The smallest size that keeps the deadline with some time to spare; the size that it has where that nearly does.

    Where no size keeps it, the fastest one, as the model may be wrong; -1 where it is lost, or where there is none.
    """
    if line.request.remaining_seconds is None or line.request.due_seconds is None:
        return -1
    speeds = line.request.curve.speeds
    fastest = speeds.index(max(speeds))
    if line.is_late(fastest, LATE):
        return -1
    if line.now >= 0 and line.is_late(line.now, KEEP[0]) and not line.is_late(line.now, KEEP[1]):
        return line.now
    return next((index for index in range(fastest) if not line.is_late(index, AIM)), fastest)


def _fill(lines: Sequence[_Line], left: int) -> None:
    """The ideal: the steepest step first, as long as it makes a job faster."""
    heap = [(-slope, i) for i, line in enumerate(lines) if (slope := line.slope()) > 0]
    heapq.heapify(heap)
    while heap and left > 0:
        line = lines[heap[0][1]]
        need = line.next_devices()
        if need <= left:
            left -= need
            line.ideal += 1
            slope = line.slope()
            if slope > 0:
                heapq.heapreplace(heap, (-slope, heap[0][1]))
                continue
        heapq.heappop(heap)


def _share(lines: Sequence[_Line], capacity: int) -> None:
    """Equal shares by weight: the highest level at which what everyone may have of it fits, and the rest in order."""
    low, high = 0.0, float(capacity)
    for _ in range(40):
        level = (low + high) / 2
        if sum(line.devices(_at_level(line, level)) for line in lines) <= capacity:
            low = level
        else:
            high = level
    for line in lines:
        line.ideal = _at_level(line, low)
    left = capacity - sum(line.devices(line.ideal) for line in lines)
    for line in lines:
        need = line.next_devices()
        if 0 < need <= left:
            left -= need
            line.ideal += 1
    for line in lines:
        line.size = line.ideal


def _at_level(line: _Line, level: float) -> int:
    return max(0, _largest(line, int(level * line.request.weight)))


def _largest(line: _Line, devices: int) -> int:
    """The index of the largest size within so many devices."""
    return bisect_right(line.request.sizes, devices // line.request.curve.devices) - 1


def _trade(lines: Sequence[_Line], capacity: int, horizon: float) -> None:
    """From what is towards the ideal, as far as it pays."""
    for line in lines:
        line.size = min(max(line.now, 0), line.most)
    free = capacity - sum(line.devices(line.size) for line in lines)
    sellers = sorted(((_ask(line, horizon), i) for i, line in enumerate(lines) if line.ideal < line.size), reverse=True)
    while free < 0 and sellers:
        _, i = sellers.pop()
        free += _move(lines[i], lines[i].ideal)
    growing = [(i, line) for i, line in enumerate(lines) if line.ideal > line.size]
    buyers = [(math.inf, i, min(line.need, line.ideal)) for i, line in growing if line.need > line.size]
    buyers += [(_bid(line, line.ideal, horizon), i, line.ideal) for i, line in growing]
    for bid, i, wanted in sorted(buyers, key=lambda buyer: (-buyer[0], buyer[1])):
        free = _buy(lines, lines[i], wanted, bid, sellers, free, horizon)


def _buy(
    lines: Sequence[_Line],
    line: _Line,
    wanted: int,
    bid: float,
    sellers: list[tuple[float, int]],
    free: int,
    horizon: float,
) -> int:
    """Let this job grow as far as it can and it pays. Returns the devices that are free then.

    Sellers are taken from the end of the list. Nobody shrinks for devices that the buyer cannot use.
    """
    need, sold = line.devices(wanted) - line.devices(line.size), list[tuple[float, int, int]]()
    while free < need and sellers and sellers[-1][0] < bid:
        ask, i = sellers.pop()
        sold.append((ask, i, lines[i].size))
        free += _move(lines[i], lines[i].ideal)
    target = wanted if need <= free else _largest(line, line.devices(line.size) + free)
    if target > line.size and (bid == math.inf or _bid(line, target, horizon) > 0):
        free += _move(line, target)
    for ask, i, before in reversed(sold):
        kept = min(before, _largest(lines[i], lines[i].devices(lines[i].size) + free))
        if kept > lines[i].size:
            free += _move(lines[i], kept)
            sellers.append((ask, i))
    return free


def _move(line: _Line, index: int) -> int:
    """The devices that this sets free, which are less than none where the job grows."""
    freed = line.devices(line.size) - line.devices(index)
    line.size = index
    return freed


def _ask(line: _Line, horizon: float) -> float:
    """What a seller wants for each device that it gives up, down to its ideal: more than it loses.

    Otherwise jobs that gain about as much would take devices from each other whenever an estimate changes.
    """
    loss = line.value(line.size) - line.value(line.ideal)
    return (1 + EXCHANGE) * (loss + line.cost(horizon)) / (line.devices(line.size) - line.devices(line.ideal))


def _bid(line: _Line, index: int, horizon: float) -> float:
    """What a buyer gains with each device, when its change is paid for. A job that has no pods yet pays nothing."""
    gain = line.value(index) - line.value(line.size)
    if line.now >= 0:
        gain -= MARGIN * line.value(line.size) + DOUBT * line.doubt(index, line.size) + line.cost(horizon)
    return gain / (line.devices(index) - line.devices(line.size))
