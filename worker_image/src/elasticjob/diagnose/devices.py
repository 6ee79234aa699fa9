"""What the preflight thinks of the devices of a pod, from what was measured on them. Pure.

A device must compute right, hold what is written to it, and be about as fast as its neighbours in the pod, which are
of the same kind. Its counters must show no memory that is broken. Only what makes a result wrong, or a device useless,
keeps a pod out of the world; what is merely slow is told.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elasticjob.diagnose.findings import FAIL, OK, WARN, Finding

_SLOWER = 0.8  # of the usual speed of the neighbours: worth a look
_MUCH_SLOWER = 0.5  # ... and this slow it holds up every step of the others
_LEAST_COPY = 1.0  # GB/s between the host's memory and a device: a quarter of the slowest sound link
LEAST_REDUCE = 0.5  # GB/s of an all_reduce over the devices of a node: less than over the host's memory


@dataclass(frozen=True)
class Measured:
    """One device, as the process has found it that tried it."""

    index: int
    name: str
    uuid: str = ""
    gib: float = 0.0
    error: str = ""  # what the device or its driver said; the rest was not tried then
    computes_right: bool = True
    holds_right: bool = True
    teraflops: float | None = None
    to_device: float | None = None  # GB/s
    from_device: float | None = None


@dataclass(frozen=True)
class Health:
    """What the driver has counted on one device; None: it does not tell."""

    index: int
    uuid: str = ""
    uncorrected: int | None = None  # errors of memory since the driver was loaded
    rows_failed: bool | None = None  # a row of memory could not be replaced
    rows_pending: bool | None = None  # rows or pages are to be replaced by a reset
    slowed: tuple[str, ...] = ()  # why the hardware holds down its clocks: thermal, power brake
    links_down: int | None = None
    links_up: int | None = None


def judge(measured: Sequence[Measured]) -> Finding:
    """One finding for all devices: the worst."""
    problem = _find_broken(measured) or _find_slow(measured)
    return problem or Finding("devices", OK, "; ".join(map(describe, measured)))


def describe(one: Measured) -> str:
    parts = [one.name]
    if one.teraflops is not None:
        parts.append(f"{one.teraflops:.0f} TFLOP/s")
    if one.to_device is not None and one.from_device is not None:
        parts.append(f"{one.to_device:.0f} GB/s to it, {one.from_device:.0f} GB/s from it")
    return ", ".join(parts)


def _find_broken(measured: Sequence[Measured]) -> Finding | None:
    for one in measured:
        where = f"cuda:{one.index} ({one.name})"
        if one.error:
            return Finding("devices", FAIL, f"{where}: {one.error}", "drain the node: the device is broken")
        if not one.computes_right:
            return Finding("devices", FAIL, f"{where} computes a wrong product of matrices", "drain the node")
        if not one.holds_right:
            text = f"{where} does not hold what was written to its memory"
            return Finding("devices", FAIL, text, "drain the node: the device's memory is bad")
    return None


def _find_slow(measured: Sequence[Measured]) -> Finding | None:
    speeds: tuple[tuple[str, str, Callable[[Measured], float | None]], ...] = (
        ("computes", "TFLOP/s", lambda one: one.teraflops),
        ("copies from the host", "GB/s", lambda one: one.to_device),
        ("copies to the host", "GB/s", lambda one: one.from_device),
    )
    worst: Finding | None = None
    for what, unit, read in speeds:
        values = {one.index: value for one in measured if (value := read(one)) is not None}
        for index, value in values.items():
            usual = find_usual([other for where, other in values.items() if where != index])
            text = f"cuda:{index} {what} at {value:.1f} {unit}"
            if usual is not None and value < _SLOWER * usual:
                text += f", its neighbours at {usual:.1f}"
            elif unit != "GB/s" or value >= _LEAST_COPY:
                continue
            is_useless = usual is not None and value < _MUCH_SLOWER * usual and unit == "TFLOP/s"
            remedy = "look at the node's clocks, power and links (nvidia-smi -q)"
            if is_useless:
                return Finding("devices", FAIL, text, f"drain the node, or {remedy}")
            worst = worst or Finding("devices", WARN, text, remedy)
    return worst


def find_usual(others: Sequence[float]) -> float | None:
    """The usual speed of a device's neighbours; None if it has none."""
    return statistics.median(others) if others else None


def judge_health(healths: Sequence[Health], source: str) -> Finding:
    """One finding for the counters of all devices: the worst. `source`: where they were read."""
    name = "device health"
    slow: Finding | None = None
    for one in healths:
        where = f"GPU {one.index} {one.uuid}".strip()
        if one.rows_failed:
            return Finding(name, FAIL, f"{where}: a row of its memory could not be remapped", "replace the device")
        if one.uncorrected:
            text = f"{where}: {one.uncorrected} uncorrected errors of memory"
            return Finding(name, FAIL, text, "drain the node and reset the device")
        if one.rows_pending:
            text = f"{where}: rows of its memory wait to be remapped"
            return Finding(name, FAIL, text, "drain the node and reset the device")
        if one.slowed:
            text = f"{where} is slowed down by the hardware: {', '.join(one.slowed)}"
            slow = slow or Finding(name, WARN, text, "look at the node's cooling and power")
        if one.links_down and one.links_up:
            text = f"{where}: {one.links_down} of {one.links_down + one.links_up} NVLinks are down"
            slow = slow or Finding(name, WARN, text, "look at the node's NVLinks (nvidia-smi nvlink --status)")
    return slow or Finding(name, OK, f"{len(healths)} devices, by {source}")


def judge_sharing(processes: int, devices: int, names: Sequence[str]) -> Finding | None:
    """Whether each process of the pod has a device of its own; None if it has.

    A process sees one part of a divided device (MIG) at most, whatever the pod has.
    """
    if not devices or processes <= devices:
        return None
    divided = any("MIG" in name for name in names)
    why = "a process sees one MIG device only" if divided else "NCCL joins no two processes on one device"
    return Finding(
        "devices",
        FAIL,
        f"{processes} processes have {devices} CUDA device{'s' if devices != 1 else ''}: {why}",
        f"set nprocPerNode: {devices}, and one device in the limits of each pod",
    )
