"""What arrives: jobs with an arrival, work and a scaling curve; drawn by a seed, or read from a folder of traces.

The numbers are those that the papers publish: 160 jobs in eight hours on 64 devices with a peak in the fourth hour
(Pollux, OSDI 2021, 5.1), GPU time by category as in Microsoft's trace (small 0-1 h 72 %, medium 1-10 h 20 %, large
10-100 h 6 %, very large 100-1000 h 2 %). The curves have the form of Pollux' model of a step: computation that is
divided, and communication that is cheap inside a node and dear between nodes, partly hidden behind computation. Their
parameters are chosen so that the speed-ups resemble the published plots; they are not measurements of those models.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

HOURS: Final = 8.0
# Arrivals of each hour, relative: three times as many in the fourth as in the first.
HOURLY: Final = (1.0, 1.5, 2.0, 3.0, 2.0, 1.5, 1.0, 1.0)
NODE: Final = 4  # devices


@dataclass(frozen=True)
class Application:
    """How a kind of job scales; seconds are relative to one step on one device."""

    name: str
    hours: tuple[float, float]  # of one device, drawn evenly on a logarithmic scale
    local: float  # seconds of communication inside a node
    remote: float  # between nodes
    growth: float  # more with each device
    overlap: float  # 1: nothing is hidden; more: the shorter of the two is hidden ever more
    most: int  # devices


APPLICATIONS: Final = {
    "resnet18": Application("resnet18", (0.05, 1.0), 0.03, 0.07, 0.002, 1.6, 16),
    "neumf": Application("neumf", (0.05, 1.0), 0.12, 0.25, 0.010, 1.3, 8),
    "deepspeech2": Application("deepspeech2", (1.0, 10.0), 0.04, 0.08, 0.002, 1.5, 32),
    "yolov3": Application("yolov3", (10.0, 100.0), 0.02, 0.035, 0.0010, 1.6, 32),
    "resnet50": Application("resnet50", (100.0, 300.0), 0.01, 0.014, 0.0003, 2.0, 64),
}
SHARES: Final = {"resnet18": 0.36, "neumf": 0.36, "deepspeech2": 0.20, "yolov3": 0.06, "resnet50": 0.02}
# The names that the traces of AdaptDL's simulator have for them.
ALIASES: Final = {"cifar10": "resnet18", "ncf": "neumf", "imagenet": "resnet50"}


@cache
def speed(application: str, devices: int) -> float:
    """How many times as fast as on one device."""
    kind = APPLICATIONS[application]
    if devices <= 1:
        return float(max(0, devices))
    compute = 1.0 / devices
    talk = (kind.local if devices <= NODE else kind.remote) + kind.growth * (devices - 2)
    seconds: float = (compute**kind.overlap + talk**kind.overlap) ** (1.0 / kind.overlap)
    return 1.0 / seconds


@dataclass(frozen=True)
class Arrival:
    """One job, as its user knows it."""

    name: str
    application: str
    at: float  # seconds
    work: float  # seconds on one device
    tuned: int  # devices that its user would fix: 50 to 80 % efficient

    @property
    def most(self) -> int:
        return APPLICATIONS[self.application].most

    def speed(self, devices: int) -> float:
        return speed(self.application, min(devices, self.most))


def draw(seed: int, jobs: int = 160) -> list[Arrival]:
    """A day's jobs."""
    chance = random.Random(seed)
    found = []
    for _ in range(jobs):
        hour = chance.choices(range(len(HOURLY)), HOURLY)[0]
        name = chance.choices(list(SHARES), list(SHARES.values()))[0]
        low, high = APPLICATIONS[name].hours
        work = 3600.0 * low * (high / low) ** chance.random()
        found.append((3600.0 * (hour + chance.random()) * HOURS / len(HOURLY), name, work, _tune(name, chance)))
    found.sort()
    return [Arrival(f"job-{i:03d}", name, at, work, tuned) for i, (at, name, work, tuned) in enumerate(found)]


def _tune(application: str, chance: random.Random) -> int:
    most = APPLICATIONS[application].most
    good = [n for n in range(1, most + 1) if 0.5 <= speed(application, n) / n <= 0.8]
    return chance.choice(good) if good else 1


def read_traces(folder: Path, seed: int = 0) -> dict[str, list[Arrival]]:
    """Every *.csv of a folder: `time` in seconds, `application`, and where they are known `num_replicas` and `work`.

    Without `work` (seconds on one device) it is drawn from the application's range.
    """
    found: dict[str, list[Arrival]] = {}
    for path in sorted(folder.glob("*.csv")):
        chance = random.Random(seed)
        with path.open(newline="") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: float(row["time"]))
        arrivals = []
        for i, row in enumerate(rows):
            name = ALIASES.get(row["application"], row["application"])
            if name not in APPLICATIONS:
                raise SystemExit(f"{path}: application {row['application']!r} is not one of {', '.join(APPLICATIONS)}")
            low, high = APPLICATIONS[name].hours
            work = float(row.get("work") or 3600.0 * low * (high / low) ** chance.random())
            tuned = int(row.get("num_replicas") or _tune(name, chance))
            arrivals.append(
                Arrival(
                    row.get("name") or f"job-{i:03d}",
                    name,
                    float(row["time"]),
                    work,
                    min(tuned, APPLICATIONS[name].most),
                )
            )
        found[path.stem] = arrivals
    if not found:
        raise SystemExit(f"{folder}: has no *.csv: give a folder with traces")
    return found
