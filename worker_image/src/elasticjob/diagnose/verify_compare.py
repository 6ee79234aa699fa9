"""Compares the traces of two runs of a script: whether they are the same bits, and which phase of a step first differs.

Pure: reads lines that `data.traces` and `channel.progress` wrote, and returns values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# In the order in which a step goes through them; `parameters` is what the optimizer made of the step before.
PHASES = {
    "rng": "the random numbers of a virtual rank",
    "data": "the data",
    "parameters": "the parameters, which the optimizer of the step before has changed",
    "compute": "the gradient of a virtual rank: a kernel, or state of the script's own",
    "reduction": "the sum of the gradients",
    "buffers": "the buffers",
    "loss": "the loss",
}

StepKey = tuple[int, ...]  # the epoch and the position in it


@dataclass
class Curve:
    """What a run's processes wrote."""

    name: str
    steps: dict[StepKey, dict[str, set[tuple[int, Any]]]] = field(default_factory=dict)  # by phase: (leaf, digest)
    reported: dict[int, dict[str, float]] = field(default_factory=dict)  # losses by step and process
    restarts: int = 0  # processes that ended with an error after a kill, and were started again

    @property
    def complete(self) -> int:
        """The number of traced steps whose gradients were added up."""
        return sum("buffers" in phases for phases in self.steps.values())


def read_curve(name: str, lines: Iterable[Mapping[str, Any]], restarts: int = 0) -> Curve:
    """Sort the lines of all processes of a run. Each has a `process`."""
    curve = Curve(name, restarts=restarts)
    for line in lines:
        if "reported" in line:
            curve.reported.setdefault(int(line["step"]), {})[str(line["process"])] = float(line["reported"])
            continue
        phases = curve.steps.setdefault(tuple(line["step"]), {})
        for phase in PHASES:
            if line.get(phase) is not None:
                phases.setdefault(phase, set()).add((int(line.get("leaf", -1)), line[phase]))
    return curve


@dataclass(frozen=True)
class Comparison:
    """The comparison of a run with the first one."""

    run: str
    verdict: str  # equal, close, different or unknown
    text: str
    steps: int = 0  # that were compared
    phase: str = ""  # which first differs
    tolerance: float = 0.0  # the greatest relative difference of reported losses


def compare(first: Curve, other: Curve, tolerance: float, steps: int) -> Comparison:
    """Compare the first `steps` steps. Losses that differ relatively by at most `tolerance` are close."""
    common = sorted(key for key in first.steps if "buffers" in first.steps[key] and key in other.steps)[:steps]
    for number, key in enumerate(common):
        ours, theirs = first.steps[key], other.steps[key]
        for phase, meaning in PHASES.items():
            a, b = ours.get(phase, set()), theirs.get(phase, set())
            if (a and b and a != b) or _is_divided(b):
                text = f"differs first in step {number} (epoch {key[0]}, sample {key[1]}): {meaning}"
                leaves = sorted({leaf for leaf, _ in a ^ b if leaf >= 0})
                text += f" (passes {leaves})" if leaves else ""
                text += ", which is not the same on all ranks" if _is_divided(b) else ""
                return Comparison(other.name, "different", text, number, phase)
    if common:
        text = f"the same bits in {len(common)} steps"
        if other.restarts:
            noun, verb = ("process", "was") if other.restarts == 1 else ("processes", "were")
            text += f"; after the kills, {other.restarts} {noun} that ended with an error {verb} started again"
        return Comparison(other.name, "equal", text, len(common))
    return _compare_reported(first, other, tolerance, steps)


def _is_divided(values: set[tuple[int, Any]]) -> bool:
    return len({leaf for leaf, _ in values}) < len(values)


def _compare_reported(first: Curve, other: Curve, tolerance: float, steps: int) -> Comparison:
    common = sorted(first.reported.keys() & other.reported.keys())[:steps]
    if not common:
        return Comparison(other.name, "unknown", "nothing to compare: use virtual ranks, or report(step=, loss=)")
    worst, at = 0.0, common[0]
    for step in common:
        a, b = (sum(one.reported[step].values()) / len(one.reported[step]) for one in (first, other))
        difference = abs(a - b) / max(abs(a), abs(b), 1e-30)
        if difference > worst:
            worst, at = difference, step
    text = f"the mean of the reported losses differs by at most {worst:.2g} in {len(common)} steps (most in step {at})"
    text += "; without virtual ranks, random numbers and sums depend on the world"
    verdict = "close" if worst <= tolerance else "different"
    return Comparison(other.name, verdict, text, len(common), "" if verdict == "close" else "loss", worst)
