"""A loss that is NaN: from the script to all places where a person looks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from controller import client_fixture as given
from controller.builders import NOW, make_agent
from elasticjob.channel import progress as channel
from elasticjob.protocol import steps
from elasticjob.protocol import wire as agents
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.client import history as past
from elasticjob_operator.client.samples import Sample, take_sample
from elasticjob_operator.html_report import Facts, render
from elasticjob_operator.hub import frames
from elasticjob_operator.plan import reporting
from elasticjob_operator.run.metrics import Metrics
from elasticjob_operator.view import details

Reports = Sequence[dict[str, float]]
GOOD, LATER = {"loss": 0.5, "lr": 0.1}, {"loss": 0.25, "lr": 0.1}
NANS = [{"loss": math.nan, "lr": 0.1}, {"loss": math.inf, "lr": 0.1}]


def read_reports(reports: Reports) -> tuple[api.Status, list[Sample]]:
    """The status after these reports of a script, on the way that each takes, and a sample after each."""
    progress, samples, status = None, [], api.Status()
    for number, metrics in enumerate(reports):
        said = json.loads(json.dumps(channel.build_message(0, 10 * number + 10, 100, 0.25, metrics)))
        heard = frames.decode(agents.progress(steps.read_progress(said, 1, None)))
        assert isinstance(heard, wire.Progress)
        now = NOW + 20 * number
        progress = reporting.update_progress(progress, [replace(make_agent(), progress=heard)], now=now)
        status = api.Status(phase=api.Phase.RUNNING, progress=progress)
        assert api.Status.model_validate(json.loads(json.dumps(status.dump(), allow_nan=False))) == status
        samples.append(take_sample(given.job(status.dump()), now))
    return status, samples


def expose(status: api.Status) -> list[str]:
    collected = Metrics()
    collected.update_job(("ml", "digits"), status)
    lines = collected.expose(NOW).decode().splitlines()
    return sorted(line for line in lines if line.startswith("elasticjob_reported_metric{"))


def draw(samples: list[Sample]) -> str:
    facts = Facts("digits", "ml", "Running", NOW)
    return render(facts, past.build_history(samples, []), samples[-1])


@pytest.mark.parametrize("bad", NANS, ids=["NaN", "infinite"])
def test_a_loss_that_is_no_number_is_shown_as_that(bad: dict[str, float]) -> None:
    status, samples = read_reports([GOOD, bad])
    assert expose(status) == [
        'elasticjob_reported_metric{namespace="ml",job="digits",metric="loss"} NaN',
        'elasticjob_reported_metric{namespace="ml",job="digits",metric="lr"} 0.1',
    ]
    console = Console(width=160, force_terminal=False, color_system=None)
    with console.capture() as described:
        console.print(details.describe(given.job(status.dump()), [], [], NOW + 30))
    assert "lr 0.1, loss not finite" in described.get()
    page = draw(samples)
    assert "<b>not finite</b><span>loss</span>" in page
    assert ">loss: not finite at the end</text>" in page
    assert samples[-1].metrics == {"lr": 0.1}  # a recording is JSON


def test_a_loss_that_is_a_number_again_is_shown_as_one() -> None:
    status, samples = read_reports([GOOD, NANS[0], LATER])
    assert expose(status)[0].endswith('metric="loss"} 0.25')
    assert "not finite" not in draw(samples)


def test_an_agent_of_another_make_may_send_nan_itself() -> None:
    text = json.dumps({"v": 1, "type": "progress", "step": 7, "metrics": {"loss": math.nan, "lr": 0.1, "": math.inf}})
    assert frames.decode(text) == wire.Progress(step=7, metrics={"lr": 0.1}, not_finite=["loss"])
