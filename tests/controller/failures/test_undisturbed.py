"""Trainings that nothing disturbs, and a day of noise: the rules of the example, and stricter ones, find nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml
from sklearn.datasets import load_digits

from controller.builders import NOW, make_agent, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import health_watch, incidents
from elasticjob_operator.model.revise import revise

EXAMPLE = Path(__file__).resolve().parents[3] / "manifests/examples/health.yaml"
STRICT: list[dict[str, Any]] = [
    {"name": "Jump", "when": {"metric": {"name": "loss", "sigma": 12}}, "forSeconds": 5},
    {"name": "Sinks", "when": {"metric": {"name": "samplesPerSecond", "fallsPercent": 30}}},
    {"name": "Large", "when": {"metric": {"name": "loss", "above": 100}}},
]


def train(seed: int, rate: float, batch: int) -> list[float]:
    """The losses of a small classifier of handwritten digits, step by step."""
    chance: Any = numpy.random.default_rng(seed)
    digits: Any = load_digits()
    x, y = digits.data / 16, digits.target
    weights = [chance.normal(0, 0.1, (64, 32)), chance.normal(0, 0.1, (32, 10))]
    losses = []
    for _ in range(400):
        chosen = chance.integers(0, len(x), batch)
        hidden = numpy.maximum(x[chosen] @ weights[0], 0)
        scores = hidden @ weights[1]
        shares = numpy.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        losses.append(float(-numpy.log(shares[range(batch), y[chosen]] + 1e-12).mean()))
        shares[range(batch), y[chosen]] -= 1
        back = (shares @ weights[1].T) * (hidden > 0)
        weights[1] -= rate * hidden.T @ shares / batch
        weights[0] -= rate * x[chosen].T @ back / batch
    return losses


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_found_in_a_training_that_nothing_disturbs(seed: int) -> None:
    rules = yaml.safe_load(EXAMPLE.read_text())["spec"]["health"]["rules"] + STRICT
    spec = make_spec(health={"rules": rules})
    status, memory = api.Status(rendezvous=make_world(1, (0, 1))), dict[str, health_watch.RuleMemory]()
    chance: Any = numpy.random.default_rng(seed)
    losses = train(seed, rate=[0.05, 0.5, 1.0][seed % 3], batch=[8, 32, 128][seed % 3])
    assert losses[-1] < losses[0], "it learns"
    for step, loss in enumerate(losses):
        now = NOW + step
        told = [
            wire.Progress(
                generation=1,
                rank=rank,
                step=step,
                metrics={"loss": loss},
                samples_per_second=100 * chance.normal(1, 0.05),
            )
            for rank in (0, 1)
        ]
        agents = {f"u{i}": make_agent(i, "running", 1, progress=one, progress_since=now) for i, one in enumerate(told)}
        memory = dict(health_watch.look(memory, spec, status, agents, now))
        assert health_watch.find(spec, status, memory, now) == {}, f"at step {step}"


DAY, HOUR = 86_400, 3600


def begin(before: api.Status, generation: int, size: int) -> api.Status:
    """A world of this size that makes steps."""
    goodput = api.GoodputStatus(step_generation=generation)
    return revise(before, rendezvous=make_world(generation, tuple(range(size))), goodput=goodput)


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [(0, HOUR), pytest.param(1, DAY, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
)
def test_nothing_is_found_in_a_day_of_noise(seed: int, seconds: int) -> None:
    """A report a second of each rank: a loss of its own with heavy tails and single outliers, a throughput that swings
    over the day, pauses for checkpoints and evaluations, and now and then another size, at which all is different."""
    chance: Any = numpy.random.default_rng(seed)
    strict = [one | {"forSeconds": 30} if one["name"] == "Sinks" else one for one in STRICT]  # longer than a pause
    rules = yaml.safe_load(EXAMPLE.read_text())["spec"]["health"]["rules"] + strict
    spec, memory = make_spec(health={"rules": rules}), dict[str, health_watch.RuleMemory]()
    tails, jitter = chance.standard_t(3, (seconds, 4)), chance.normal(1, 0.1, seconds)
    generation, size, status = 1, 2, begin(api.Status(), 1, 2)
    for step in range(seconds):
        now = NOW + step
        if chance.random() < 1 / 1200:
            generation, size = generation + 1, int(chance.integers(2, 5))
            status = begin(status, generation, size)
        swing = 1 + 0.1 * math.sin(2 * math.pi * step / DAY)
        pause = 0.2 if step % 300 < 2 or step % 1800 < 3 else 1.0
        agents = {}
        for rank in range(size):
            outlier = 5.0 if chance.random() < 1 / 600 else 1.0
            loss = (1 + 3 / (1 + step / 2000) + 0.05 * tails[step, rank]) * outlier
            told = wire.Progress(
                generation=generation,
                rank=rank,
                step=step,
                metrics={"loss": float(loss)},
                samples_per_second=100 * size * swing * pause * float(jitter[step]),
            )
            agents[f"u{rank}"] = make_agent(rank, "running", generation, progress=told, progress_since=now)
        memory = dict(health_watch.look(memory, spec, status, agents, now))
        status = incidents.update(spec, status, memory, now)
        assert not [one for one in status.incidents if one.count], f"after {step} s"
    assert {one.rule for one in status.incidents} == {"Sinks"}, "its best is known"
