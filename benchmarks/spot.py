"""`python -m benchmarks.spot [--quick]`: a day of spot interruptions in minutes: the steps lost, and the pauses.

Nodes of a devcluster go and come back as in a trace. The same nodes go twice: of half of them, a taint says so 25
seconds before, the other half goes without notice. On each half, two jobs train, a session and a script with a
`Checkpointer` that is started again in each world. API server, operator, agents and processes are real.

The trace is drawn with a rate of interruptions that Bamboo (NSDI 2023) measured, or read from a folder: CSV files with
`time` (when a machine goes, seconds), `node` (any name), and where it is known `away` (seconds until another one takes
its place). Time in the trace is compressed, the notice is not.
"""

from __future__ import annotations

import argparse
import csv
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import harness, timeline
from benchmarks.goodput import count_repeated
from benchmarks.harness import Options, Report, Result, parse_options, say
from benchmarks.system import JOBS, System
from elasticjob_devcluster import NodeSpec

NODES: Final = 4
NOTICE_SECONDS: Final = 25.0
PER_HOUR: Final = 0.16  # interruptions of a node: the second of Bamboo's three rates (10, 16 and 33 % an hour)
AWAY_SECONDS: Final = 900.0
TAINT: Final = "cloud.google.com/impending-node-termination"
AFTERWARDS_SECONDS: Final = 20.0  # in which the pause of an interruption is looked for
PATIENCE_SECONDS: Final = 120.0
POOL: Final = "benchmark/pool"
SCRIPTS: Final = {"session": "session_loop.py", "restarts with a Checkpointer": "checkpointer_loop.py"}


@dataclass(frozen=True)
class Interruption:
    """A machine goes, and later another one takes its place. Seconds from the start of the trace."""

    at: float
    node: int
    away: float


def draw(seed: int, hours: float, nodes: int = NODES) -> list[Interruption]:
    """Interruptions of each node at random times, never while it is away. At least one. Pure."""
    chance, found = random.Random(seed), []
    for node in range(nodes):
        now = 0.0
        while (now := now + chance.expovariate(PER_HOUR / 3600)) < hours * 3600:
            away = chance.uniform(0.5, 1.5) * AWAY_SECONDS
            found.append(Interruption(now, node, away))
            now += away
    return sorted(found or [Interruption(hours * 1800, 0, AWAY_SECONDS)], key=lambda one: one.at)


def read_traces(folder: Path) -> list[Interruption]:
    """All *.csv of a folder, one after the other. Raises SystemExit with the file, the line and the column."""
    found: list[Interruption] = []
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise SystemExit(f"{folder}: has no *.csv: give a folder with traces")
    for path in paths:
        begin = max((one.at + one.away for one in found), default=0.0)
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        names = list(dict.fromkeys(row.get("node") or "" for row in rows))
        for number, row in enumerate(rows, start=2):
            at, away = (_read_seconds(path, number, row, column) for column in ("time", "away"))
            if not row.get("node"):
                raise SystemExit(f"{path}:{number}: node is empty: name the machine that goes")
            found.append(Interruption(begin + at, names.index(row["node"]) % NODES, away))
    return _without_overlaps(found)


def _read_seconds(path: Path, number: int, row: dict[str, str], column: str) -> float:
    text = row.get(column) or ("" if column == "time" else str(AWAY_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise SystemExit(f"{path}:{number}: {column} is {text!r}: give seconds, 0 or more")
    return seconds


def _without_overlaps(trace: Iterable[Interruption]) -> list[Interruption]:
    """Several machines of a trace share a node here, which cannot go while it is away."""
    found: list[Interruption] = []
    back = [0.0] * NODES
    for one in sorted(trace, key=lambda one: one.at):
        if one.at >= back[one.node]:
            found.append(one)
            back[one.node] = one.at + one.away
    return found


def compress(trace: Sequence[Interruption], factor: float) -> list[Interruption]:
    """The same in a shorter time, beginning late enough that there is time for the first notice."""
    return [replace(one, at=NOTICE_SECONDS + one.at / factor, away=one.away / factor) for one in trace]


@dataclass(frozen=True)
class Change:
    """What is done to nodes at a moment of the replay."""

    at: float
    what: str  # "notice", "go" or "come"
    node: int


def plan(trace: Sequence[Interruption]) -> list[Change]:
    """What to do in the order of time. Pure."""
    changes = [Change(one.at - NOTICE_SECONDS, "notice", one.node) for one in trace]
    changes += [Change(one.at, "go", one.node) for one in trace]
    changes += [Change(one.at + one.away, "come", one.node) for one in trace]
    return sorted(changes, key=lambda change: change.at)


class Replay:
    """Two jobs on nodes that give notice, and two on nodes that do not."""

    def __init__(self, system: System, directory: Path) -> None:
        self.cluster = system.cluster
        self.namespace = system.make_namespace()
        self.steps: dict[tuple[str, bool], Path] = {}
        for noticed in (True, False):
            for number, (name, script) in enumerate(SCRIPTS.items()):
                folder = directory / f"{'noticed' if noticed else 'sudden'}-{number}"
                self.steps[name, noticed] = folder
                body = manifest(folder, script, _pool(noticed))
                self.cluster.kube.request("POST", f"{JOBS}/namespaces/{self.namespace}/elasticjobs", body)

    def read(self, name: str, *, noticed: bool) -> list[timeline.Step]:
        tail = timeline.Tail(self.steps[name, noticed])
        tail.read()
        return tail.steps

    def await_worlds(self) -> None:
        """Wait until all jobs train with all pods."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for name, noticed in self.steps:
            while timeline.find_world(self.read(name, noticed=noticed), NODES, 0.0) is None:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name}: no world of {NODES} in {PATIENCE_SECONDS:.0f} s")
                time.sleep(0.2)

    def play(self, changes: Sequence[Change]) -> float:
        """Do all of it. Returns when it began, seconds since the epoch."""
        began = time.time()
        for change in changes:
            time.sleep(max(0.0, began + change.at - time.time()))
            say(f"{change.at:6.0f} s: node {change.node}, {change.what}")
            for noticed in (True, False):
                node = f"{_pool(noticed)}-{change.node}"
                match change.what:
                    case "notice" if noticed:
                        self.cluster.taint(node, TAINT)
                    case "go":
                        self.cluster.kill_node(node)
                        self.cluster.remove_node(node)
                    case "come":
                        self.cluster.add_node(node_spec(noticed, change.node), wait=False)
        time.sleep(AFTERWARDS_SECONDS)
        return began


def _pool(noticed: bool) -> str:
    return "noticed" if noticed else "sudden"


def node_spec(noticed: bool, number: int) -> NodeSpec:
    """Room for one pod of each job."""
    pool = _pool(noticed)
    return NodeSpec(f"{pool}-{number}", gpus=len(SCRIPTS), labels={POOL: pool})


def manifest(folder: Path, script: str, pool: str) -> dict[str, Any]:
    """A job of one pod on each node of a pool, or as many as there are."""
    words = [
        *("elasticjob-run", str(harness.ROOT / "benchmarks/scripts" / script), "--out", str(folder / "0")),
        *("--checkpoint", str(folder / "checkpoints"), "--step-seconds", "0.2"),
    ]
    container = {
        "name": "worker",
        "image": "none",
        "command": ["sh", "-c", f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH exec {shlex.join(words)}"],
        "env": [{"name": "GLOO_SOCKET_IFNAME", "value": "lo"}, {"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    name = f"{pool}-{script.partition('_')[0]}"
    alone = {
        "labelSelector": {"matchLabels": {"elasticjob.dev/job-name": name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    pod = {
        "nodeSelector": {POOL: pool},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}},
        "containers": [container],
    }
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {
            "replicas": NODES,
            "nprocPerNode": 1,
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": NODES, "maxRestarts": 1000},
            "template": {"spec": pod},
        },
    }


def compare(replay: Replay, trace: Sequence[Interruption], began: float) -> Iterator[Result]:
    """The steps that were done again, and the longest time without a step at each interruption."""
    for name in SCRIPTS:
        found = {noticed: replay.read(name, noticed=noticed) for noticed in (True, False)}
        lost = {noticed: float(count_repeated(steps)) for noticed, steps in found.items()}
        case = f"{name}: steps lost by {len(trace)} interruptions, {NOTICE_SECONDS:.0f} s of notice"
        yield Result("spot", case, [lost[True]], "no notice", [lost[False]], "steps")
        pauses = {noticed: list(_find_pauses(found[noticed], trace, began, noticed)) for noticed in found}
        yield Result("spot", f"{name}: longest time without a step", pauses[True], "no notice", pauses[False])


def _find_pauses(
    steps: Sequence[timeline.Step], trace: Sequence[Interruption], began: float, noticed: bool
) -> Iterator[float]:
    for one in trace:
        begin = began + one.at - (NOTICE_SECONDS if noticed else 1.0)
        yield timeline.find_longest_gap(steps, begin, began + one.at + AFTERWARDS_SECONDS)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traces", type=Path, help="a folder of *.csv to replay instead of a drawn day")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hours", type=float, help="of the drawn trace (default: 24, with --quick 4)")
    parser.add_argument("--compress", type=float, default=60.0, help="how many times shorter the replay is")


def read_trace(options: Options) -> list[Interruption]:
    extra = options.extra
    if extra.traces:
        return compress(read_traces(extra.traces), extra.compress)
    hours = extra.hours or (4.0 if options.quick else 24.0)
    return compress(draw(extra.seed, hours), extra.compress)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_options(
        "spot", __doc__ or "", argv, budgets=(600.0, 3600.0), repeats=(1, 1), add_arguments=_add_arguments
    )
    trace = read_trace(options)
    nodes = tuple(node_spec(noticed, number) for noticed in (True, False) for number in range(NODES))
    report = Report("spot", options.out)
    with tempfile.TemporaryDirectory(prefix="elasticjob-bench-spot-") as name:
        directory = Path(name)
        with System(directory / "system", nodes=nodes, operator_flags=("--stable-seconds", "1")) as system:
            replay = Replay(system, directory)
            replay.await_worlds()
            began = replay.play(plan(trace))
        report.add_all(compare(replay, trace, began))


if __name__ == "__main__":
    main()
