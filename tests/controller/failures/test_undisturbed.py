"""Ten trainings that nothing disturbs: the rules of the example, and stricter ones, find nothing in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml
from sklearn.datasets import load_digits

from controller.builders import NOW, make_agent, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import health_watch

EXAMPLE = Path(__file__).resolve().parents[3] / "manifests/examples/health.yaml"
STRICT = [
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
