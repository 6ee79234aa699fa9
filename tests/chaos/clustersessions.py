"""Sessions under the full operator: real workers on the devcluster keep their memory under all faults.

The checker of `sessions` reads the ranks' output. Here the operator replaces lost pods, so a world that lost a member
shrinks and grows again, and the operator itself may die.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from chaos.lab import Stage
from chaos.sessions import check
from chaos.trials import Trial
from operator_fixture import wait_for
from worker.fake_pods import Steps

PROGRAM = Path(__file__).resolve().parents[1] / "worker/programs/ej_session.py"
PATIENCE = 120.0
SIZES = (2, 3, 4)
Fault = Callable[["Training", random.Random], None]


class Training:
    """One job of sessions, and the output of its ranks."""

    def __init__(self, stage: Stage, size: int) -> None:
        self.stage, self.size = stage, size
        self.steps = Steps(stage.directory / "steps")
        spec = stage.spec(replicas=size, elasticPolicy={"minReplicas": 1, "maxReplicas": max(SIZES)})
        command = ["elasticjob-run", str(PROGRAM), "--out", str(self.steps.folder)]
        arguments = ["--step-seconds", "0.05", "--epochs", "100000"]
        spec["template"]["spec"]["containers"][0]["command"] = command + arguments
        stage.jobs.create(stage.name, spec)

    @property
    def world(self) -> dict[str, Any]:
        found: dict[str, Any] = self.stage.jobs.status(self.stage.name).get("rendezvous", {})
        return {"generation": 0, "members": [], **found}

    def trains_wholly(self, above: int) -> bool:
        """Whether every rank of a newer world of the wanted size has made a step in it."""
        world = self.world
        if world["generation"] <= above or len(world["members"]) != self.size:
            return False
        made = {line["rank"] for line in self.steps.read() if line["generation"] == world["generation"]}
        return len(made) == self.size

    def await_world(self, above: int = 0) -> None:
        wait_for(lambda: self.trains_wholly(above), f"{self.size} train above generation {above}", PATIENCE, 0.1)

    def signal(self, rank: int, number: int) -> str:
        """Signal a pod; return its name."""
        members = self.world["members"]
        pod: str = members[rank % len(members)]["pod"]
        self.stage.jobs.cluster.kill_pod(self.stage.jobs.namespace, pod, number)
        return pod

    def scale(self, dice: random.Random) -> None:
        self.size = dice.choice([size for size in SIZES if size != self.size])
        self.stage.jobs.scale(self.stage.name, self.size)


def kill(training: Training, dice: random.Random) -> None:
    training.signal(dice.choice((0, 0, 1, 2)), signal.SIGKILL)


def kill_two(training: Training, dice: random.Random) -> None:
    if training.size > 2:  # somebody has to keep the memory
        training.signal(0, signal.SIGKILL)
    training.signal(1, signal.SIGKILL)


def scale(training: Training, dice: random.Random) -> None:
    training.scale(dice)


def kill_while_scaling(training: Training, dice: random.Random) -> None:
    training.scale(dice)
    time.sleep(dice.uniform(0.0, 4.0))  # any moment will do
    training.signal(dice.randrange(3), signal.SIGKILL)


def operator_dies_with_a_member(training: Training, dice: random.Random) -> None:
    training.stage.operator.kill()
    time.sleep(dice.uniform(0.0, 1.0))
    training.signal(dice.randrange(3), signal.SIGKILL)


def pause(training: Training, dice: random.Random) -> None:
    """Silent for longer than the heartbeat timeout; it resumes in a world that has ended."""
    above, number = training.world["generation"], dice.randrange(3)
    pod = training.signal(number, signal.SIGSTOP)
    wait_for(lambda: training.world["generation"] > above, "the others go on", PATIENCE)
    training.stage.jobs.cluster.kill_pod(training.stage.jobs.namespace, pod, signal.SIGCONT)


FAULTS: tuple[Fault, ...] = (kill, kill_two, scale, kill_while_scaling, operator_dies_with_a_member, pause)


def tell(stage: Stage, seed: int, length: int) -> None:
    dice = random.Random(seed)
    training = Training(stage, 3)
    training.await_world()
    for number in range(length):
        fault = FAULTS[(seed + number) % len(FAULTS)] if number < len(FAULTS) else dice.choice(FAULTS)
        above = training.world["generation"]
        fault(training, dice)
        stage.proxy.faults[fault.__name__] += 1
        training.await_world(above)
    stage.jobs.delete(stage.name)
    wait_for(lambda: not stage.jobs.pods(stage.name), "the pods are gone", PATIENCE)
    wrong = check(training.steps.read())
    assert not wrong, "\n".join(wrong)


def make_trials(seed: int, count: int, length: int = 6) -> list[Trial]:
    tells = ((number, partial(tell, seed=number, length=length)) for number in range(seed, seed + count))
    return [Trial(f"clustersessions {number}", story) for number, story in tells]
