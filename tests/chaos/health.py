"""Faults of ranks and nodes under the real operator: is the guilty one named, and nobody else, and does the job go on?

Real sessions of three pods train on the devcluster. A trial injects one fault after the other into ranks drawn by its
seed, waits until the operator has named somebody, and compares that with the truth. A control run has only what is no
fault: ranks that pause, and pods that come and go.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chaos.lab import Stage
from chaos.trials import Trial
from elasticjob_devcluster.config import NodeSpec
from elasticjob_operator.api import names
from operator_fixture import ROOT, wait_for

TRAINER = ROOT / "tests/worker/programs/health_program.py"
SLOW_LINK = ROOT / "tests/integration/programs/slow_link.py"
PATIENCE = 180.0
SIZE = 3
FREE = NodeSpec("node-free", gpus=2)
KINDS = ("ranks", "nodes", "controls")
HANG_SECONDS = 15
COMPARE_STEPS = 20


@dataclass
class Score:
    """What the trials have found, of all lanes."""

    injected: Counter[str] = field(default_factory=Counter)
    located: Counter[str] = field(default_factory=Counter)
    controls: int = 0
    false_alarms: int = 0

    def more(self) -> dict[str, Any]:
        total = sum(self.injected.values())
        share = round(sum(self.located.values()) / total, 4) if total else None
        kinds = {kind: f"{self.located[kind]}/{count}" for kind, count in sorted(self.injected.items())}
        return {"located": share, "kinds": kinds, "controls": self.controls, "falseAlarms": self.false_alarms}


class Training:
    """One job of sessions."""

    def __init__(self, stage: Stage, *, program: Sequence[str] = (), **changes: Any) -> None:
        self.stage = stage
        self.folder = stage.directory / "health"
        self.folder.mkdir(exist_ok=True)
        elastic = {"minReplicas": 2, "maxReplicas": SIZE, "maxRestarts": 100, "gracefulShutdownTimeoutSeconds": 5}
        health = {"hangTimeoutSeconds": HANG_SECONDS, "compareEverySteps": COMPARE_STEPS, "stragglers": "Report"}
        health |= changes.pop("health", {})
        spec = stage.spec(replicas=SIZE, elasticPolicy=elastic, health=health)
        pod = spec["template"]["spec"] | changes
        pod["containers"][0]["command"] = [*(program or ["elasticjob-run"]), str(TRAINER), str(self.folder)]
        pod["containers"][0]["env"].append({"name": "ELASTICJOB_STRAGGLER_SECONDS", "value": "5"})
        stage.jobs.create(stage.name, spec | {"template": {"spec": pod}})

    @property
    def status(self) -> dict[str, Any]:
        return self.stage.jobs.status(self.stage.name)

    @property
    def world(self) -> dict[str, Any]:
        return {"generation": 0, "members": [], **self.status.get("rendezvous", {})}

    def lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The steps of all pods (UID)."""
        for file in self.folder.glob("*.jsonl"):
            for text in file.read_text().split("\n")[:-1]:
                yield file.stem, json.loads(text)

    def steps(self, generation: int) -> Counter[str]:
        """How many steps each pod (UID) has made in this generation."""
        return Counter(uid for uid, line in self.lines() if line["generation"] == generation)

    def await_world(self, above: int = 0) -> dict[str, Any]:
        """A whole world that has trained for long enough that it is known what is usual in it."""

        def look() -> dict[str, Any] | None:
            world = self.world
            if world["generation"] <= above or len(world["members"]) != SIZE:
                return None
            made = self.steps(world["generation"])
            return world if all(made[one["uid"]] > COMPARE_STEPS + 1 for one in world["members"]) else None

        found: dict[str, Any] = wait_for(look, f"{SIZE} train above generation {above}: {self.status}", PATIENCE, 0.2)
        return found

    def finish(self) -> None:
        """Let the job end, and wait until it is complete."""
        last = max(line["step"] for _, line in self.lines())
        (self.folder / "done").write_text(str(last + 100))
        self.stage.jobs.await_condition(self.stage.name, "Complete", timeout=PATIENCE)

    def restarts(self) -> int:
        return int(self.status.get("restarts", {}).get("total", 0))

    @contextmanager
    def suffers(self, member: dict[str, Any], fault: str) -> Iterator[None]:
        """This pod has the fault."""
        file = self.folder / member["uid"]
        (self.folder / "next").write_text(fault)
        (self.folder / "next").rename(file)
        yield
        file.unlink(missing_ok=True)


# --- faults of a running job: each returns whether the right one was named ---------------------------------------

Fault = Callable[[Training, dict[str, Any], dict[str, Any]], bool]


def stuck(training: Training, world: dict[str, Any], member: dict[str, Any]) -> bool:
    """A rank computes for ever, and the others wait for it in a collective."""
    with training.suffers(member, "stuck"):
        training.await_world(world["generation"])
    said = training.status.get("diagnosis", {})
    return (said.get("generation"), said.get("rank"), said.get("pod")) == (
        world["generation"],
        member["rank"],
        member["pod"],
    )


def killed(training: Training, world: dict[str, Any], member: dict[str, Any]) -> bool:
    """A worker process is killed, in a pod that lives on."""
    with training.suffers(member, "killed"):
        training.await_world(world["generation"])
    last = training.status.get("lastFailure", {})
    return (last.get("rank"), last.get("pod"), last.get("signal")) == (member["rank"], member["pod"], "SIGKILL")


def lost(training: Training, world: dict[str, Any], member: dict[str, Any]) -> bool:
    """A pod is killed."""
    training.stage.jobs.cluster.kill_pod(training.stage.jobs.namespace, member["pod"], signal.SIGKILL)
    training.await_world(world["generation"])
    last = training.status.get("lastFailure", {})
    said = (last.get("generation"), last.get("rank"), last.get("pod"))
    return said == (world["generation"], member["rank"], member["pod"])


def flip(training: Training, world: dict[str, Any], member: dict[str, Any]) -> bool:
    """A bit flips in a parameter of one rank."""
    with training.suffers(member, "flip"):
        training.await_world(world["generation"])
    last = training.status.get("lastFailure", {})
    said = (last.get("reason"), last.get("rank"), last.get("pod"), last.get("node"))
    return said == ("CorruptState", member["rank"], member["pod"], member["node"])


def slow(training: Training, world: dict[str, Any], member: dict[str, Any]) -> bool:
    """A rank needs several times as long for its steps; it is named for as long as it is slow."""
    with training.suffers(member, "slow"):
        found = wait_for(lambda: training.status.get("stragglers"), "a slow rank is named", PATIENCE, 0.2)
    wait_for(lambda: not training.status.get("stragglers"), "nobody is slow any more", PATIENCE, 0.2)
    return [(one["rank"], one["pod"], one.get("node")) for one in found] == [
        (member["rank"], member["pod"], member["node"])
    ]


FAULTS: tuple[Fault, ...] = (stuck, killed, flip, slow, lost)
CHARGED = (stuck, killed)  # the program's, as far as anybody can know


def suffer(stage: Stage, seed: int, length: int, score: Score) -> None:
    """Faults of a running job, one after the other; the job completes."""
    dice = random.Random(seed)
    training = Training(stage)
    missed = []
    for number in range(length):
        fault = FAULTS[(seed + number) % len(FAULTS)]
        world = training.await_world()
        member, before = dice.choice(world["members"]), training.restarts()
        found = fault(training, world, member)
        stage.proxy.faults[fault.__name__] += 1
        score.injected[fault.__name__] += 1
        score.located[fault.__name__] += found
        if not found:
            seen = {key: training.status.get(key) for key in ("diagnosis", "lastFailure", "stragglers", "nodeFaults")}
            missed.append(f"{fault.__name__} of {member}: {json.dumps(seen)}")
        charged = training.restarts() - before
        assert charged == (fault in CHARGED), f"{fault.__name__} was charged {charged} times"
    training.await_world()
    training.finish()
    assert not missed, "\n".join(missed)


# --- faults of a node before a job starts -----------------------------------------------------------------------


def start_on_bad_node(stage: Stage, kind: str, score: Score) -> None:
    """A job whose pods start on three nodes, one of which is bad; a fourth one is free (`FREE`, of the caller)."""
    stage.proxy.faults[kind] += 1
    score.injected[kind] += 1
    training, bad = _start(stage, kind)
    world = training.await_world()
    status = training.status
    accused = [fault["node"] for fault in status.get("nodeFaults", [])]
    found = accused == [bad] and status["lastFailure"]["reason"] == "PreflightFailed"
    score.located[kind] += found
    assert bad not in {member["node"] for member in world["members"]}, "its pod was replaced elsewhere"
    assert training.restarts() == 0, "the budget is not touched"
    training.finish()
    assert found, f"{bad} has a fault, accused is {accused}: {status.get('lastFailure')}"


def _start(stage: Stage, kind: str) -> tuple[Training, str]:
    bad = "node-1"
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [bad]}
    alone = {"labelSelector": {"matchExpressions": [{"key": names.LABEL_JOB, "operator": "Exists"}]}}
    affinity = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 10, "preference": {"matchExpressions": [node]}}
            ]
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**alone, "topologyKey": "kubernetes.io/hostname"}]
        },
    }
    folder = stage.directory / "bad"
    folder.mkdir()
    (folder / bad).touch()
    if kind == "disk":
        # No file may become larger than this: its disk takes no more.
        spoil = f'if [ -e "{folder}/$ELASTICJOB_NODE_NAME" ]; then ulimit -f 256; fi; exec elasticjob-run "$@"'
        return Training(stage, program=["sh", "-c", spoil, "sh"], affinity=affinity, health={"preflight": "Node"}), bad
    program = [sys.executable, str(SLOW_LINK), str(folder)]
    return Training(stage, program=program, affinity=affinity, health={"preflight": "Network"}), bad


# --- without faults ---------------------------------------------------------------------------------------------


def control(stage: Stage, seed: int, seconds: float, score: Score) -> None:
    """Ranks pause, as in an evaluation, and the job is scaled: nobody is accused of anything."""
    dice = random.Random(seed)
    training = Training(stage)
    training.await_world()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        world = training.world
        with training.suffers(dice.choice(world["members"]), "pause"):
            wait_for(
                partial(_has_moved, training, sum(training.steps(world["generation"]).values())), "it trains", PATIENCE
            )
    stage.jobs.scale(stage.name, 2)
    stage.jobs.await_world(stage.name, 2, timeout=PATIENCE)
    stage.jobs.scale(stage.name, SIZE)
    training.await_world()
    status = training.status
    wrong = {
        key: status[key]
        for key in ("diagnosis", "lastFailure", "failures", "stragglers", "nodeFaults")
        if status.get(key)
    }
    score.controls += 1
    score.false_alarms += bool(wrong)
    training.finish()
    assert not wrong, f"accused without a fault: {wrong}"
    assert training.restarts() == 0


def _has_moved(training: Training, before: int) -> bool:
    made = sum(training.steps(training.world["generation"]).values())
    return made > before + 5 * SIZE


def make_trials(seed: int, faults: int, score: Score, kinds: Sequence[str] = KINDS, length: int = 10) -> list[Trial]:
    """So many faults, a tenth of them of nodes before a start; and a control run for each twenty. Of these `kinds`."""
    at_start = max(2, faults // 10)
    found = {}
    found["ranks"] = [
        Trial(
            f"health {seed + i}",
            partial(suffer, seed=seed + i, length=min(length, faults - at_start - i * length), score=score),
        )
        for i in range((faults - at_start + length - 1) // length)
    ]
    found["nodes"] = [
        Trial(f"health {kind} {i}", partial(start_on_bad_node, kind=kind, score=score))
        for i, kind in zip(range(at_start), itertools.cycle(("network", "disk")), strict=False)
    ]
    found["controls"] = [
        Trial(f"health control {seed + i}", partial(control, seed=seed + i, seconds=60.0, score=score))
        for i in range(max(1, faults // 20))
    ]
    return [trial for kind in kinds for trial in found[kind]]
