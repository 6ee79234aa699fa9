"""What a check of the device writes down: what it expects and whether that held, its goals, what it measured.

The file is written anew after every line, so that a check that hangs or is killed loses nothing of what it has found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A number that is wanted. A goal that is missed fails no check: it is shown."""

    name: str
    value: float | None
    limit: float
    most: bool = True  # the limit is the most that is wanted; else the least

    @property
    def is_met(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.limit if self.most else self.value >= self.limit


@dataclass
class Report:
    """The results of one check. `dry`: there is no device, and what only NCCL does is not expected."""

    check: str
    file: Path | None = None
    dry: bool = False
    held: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)  # the last lines of its processes, where something failed

    def expect(self, holds: bool, what: str, found: object = None, *, device_only: bool = False) -> bool:
        """Something that must hold. `device_only`: it is about NCCL, and gloo is not asked."""
        if device_only and self.dry:
            return holds
        if holds:
            self.held.append(what)
        else:
            self.failures.append(what if found is None else f"{what}: found {found}")
        self.write()
        return holds

    def goal(self, name: str, value: float | None, limit: float, *, most: bool = True) -> None:
        self.goals.append(Goal(name, None if value is None else round(value, 4), limit, most))
        self.write()

    def measure(self, **values: Any) -> None:
        self.measured.update(values)
        self.write()

    def dump(self) -> dict[str, Any]:
        goals = [asdict(goal) | {"met": goal.is_met} for goal in self.goals]
        found = {"check": self.check, "failures": self.failures, "held": self.held, "goals": goals}
        return found | {"measured": self.measured, "output": self.output}

    def write(self) -> None:
        if self.file is not None:
            write_json(self.file, self.dump())


def read(check: str, file: Path) -> dict[str, Any]:
    """What a check has written before its end, or before it was ended."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return Report(check).dump()
    return found if isinstance(found, dict) else Report(check).dump()


def write_json(file: Path, value: object) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1) + "\n")
    new.replace(file)


def join(facts: Mapping[str, Any], checks: Iterable[Mapping[str, Any]], dry: bool, date: str) -> dict[str, Any]:
    """The file of a whole run."""
    return {"date": date, "dry": dry, "facts": dict(facts), "checks": [dict(one) for one in checks]}
