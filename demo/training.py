"""The training's output: the JSON lines of every pod's log, merged into one history.

The script adds a timestamp to each line, so it does not matter how late a line is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from elasticjob_devcluster.api.kube import Kube, KubeError

TAIL = 400  # log lines per request: some seconds of training


@dataclass(frozen=True)
class Line:
    """One line of one rank."""

    event: str  # start, step, epoch, done
    pod: str
    generation: int
    rank: int
    world_size: int
    step: int
    epoch: int
    time: float
    loss: float | None = None
    accuracy: float | None = None


def read_line(pod: str, text: str) -> Line | None:
    """Parse a line of the script's output; None if it is not a report."""
    try:
        raw = json.loads(text)
        return Line(
            event=raw["event"],
            pod=pod,
            generation=raw["generation"],
            rank=raw["rank"],
            world_size=raw["worldSize"],
            step=raw["step"],
            epoch=raw["epoch"],
            time=raw["time"],
            loss=raw.get("loss"),
            accuracy=raw.get("accuracy"),
        )
    except (ValueError, KeyError, TypeError):
        return None


@dataclass
class History:
    """All lines so far. Pods are read repeatedly; a line counts once."""

    lines: list[Line] = field(default_factory=list)
    _known: dict[str, set[str]] = field(default_factory=dict)

    def read(self, kube: Kube, namespace: str, pods: dict[str, str]) -> None:
        """Add new lines from the logs of these pods (name → UID); only the ends of the logs are requested."""
        for name, uid in pods.items():
            try:
                path = f"/api/v1/namespaces/{namespace}/pods/{name}/log?tailLines={TAIL}"
                text = kube.raw("GET", path).decode(errors="replace")
            except (KubeError, OSError):
                continue
            whole = text[: text.rfind("\n") + 1]  # the last line may be incomplete
            known = self._known.setdefault(uid, set())
            for line in whole.splitlines():
                if line not in known:
                    known.add(line)
                    self._add(read_line(name, line))

    def _add(self, line: Line | None) -> None:
        if line is not None:
            self.lines.append(line)

    def select(self, accept: Callable[[Line], bool]) -> list[Line]:
        """The matching lines, in order of their timestamps."""
        return sorted((line for line in self.lines if accept(line)), key=lambda line: line.time)

    def latest(self) -> Line | None:
        steps = self.select(lambda line: line.event in ("step", "epoch"))
        return steps[-1] if steps else None

    def first_step_of_all(self, after: float, world_size: int, newer_than: int = 0) -> float | None:
        """When every rank of a world of this size had made its first step after this time."""
        firsts: dict[int, float] = {}
        for line in self.select(lambda x: x.event == "step" and x.time > after and x.world_size == world_size):
            if line.generation > newer_than:
                firsts.setdefault(line.rank, line.time)
        return max(firsts.values()) if len(firsts) == world_size else None

    def pause_before(self, moment: float) -> float:
        """Seconds from the last step of the old world to `moment`, the first step of the new one on every rank."""
        steps = self.select(lambda x: x.event == "step" and x.time <= moment)
        old = [x.time for x in steps if x.generation < steps[-1].generation]
        return moment - old[-1] if old else 0.0

    def went_back(self) -> int:
        """The maximum number of steps that a new world repeated."""
        spans: dict[int, tuple[int, int]] = {}  # by generation: first and last step
        for line in self.select(lambda x: x.event == "step"):
            first, last = spans.get(line.generation, (line.step, line.step))
            spans[line.generation] = (min(first, line.step), max(last, line.step))
        furthest, worst = 0, 0
        for _, (first, last) in sorted(spans.items()):
            worst = max(worst, furthest + 1 - first)
            furthest = max(furthest, last)
        return worst


def to_json(summary: dict[str, Any]) -> str:
    return json.dumps(summary, separators=(", ", ": "))
