"""A report never ends a training, whatever its arguments are, and what is wrong with one is said once."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from elasticjob.channel import control, progress


class Agent:
    """The agent's end of the channel, and a reporter at the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: queue.Queue[dict[str, Any]] = queue.Queue()
        self.server = control.Server(lambda _, message: self.heard.put(message or {"type": "hung up"}))
        monkeypatch.setenv("ELASTICJOB_CONTROL", str(self.server.path))
        monkeypatch.setattr(control, "_client", None)
        self.reporter = progress.Reporter(0, None)
        self.now = 1e9

    def hear(self, **arguments: Any) -> dict[str, Any] | None:
        """The message for a report with these arguments; None if there is none."""
        self.now += 2 * progress.INTERVAL
        self.reporter.report(self.now, **arguments)
        self.now += 2 * progress.INTERVAL
        self.reporter.report(self.now, step=1, total=None, metrics={"mark": 1})
        messages = []
        while (message := self.heard.get(timeout=30)).get("metrics") != {"mark": 1.0}:
            messages.append(message)
        return next((one for one in messages if one["type"] == "progress"), None)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    made = Agent(monkeypatch)
    yield made
    made.server.close()
    client = control.connect()
    assert client is not None and client.closed.wait(30)
    client._connection.close()


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(3, 3, id="a number"),
        pytest.param(np.int64(3), 3, id="of NumPy"),
        pytest.param(np.array(3), 3, id="an array"),
        pytest.param(torch.tensor(3), 3, id="a tensor"),
        pytest.param(torch.tensor([3]), 3, id="a tensor of one"),
        pytest.param(3.0, 3, id="a whole float"),
        pytest.param(torch.tensor(3.0), 3, id="a whole tensor"),
        pytest.param(0, 0, id="the first"),
        pytest.param(2**53, 2**53, id="the last"),
    ],
)
def test_a_step_is_any_whole_number(agent: Agent, caplog: pytest.LogCaptureFixture, step: Any, expected: int) -> None:
    message = agent.hear(step=step, total=step, metrics={})
    assert message is not None
    assert (message["step"], message["total"]) == (expected, expected)
    assert not caplog.records


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        pytest.param(1.5, "1.5", id="a half"),
        pytest.param(-1, "-1", id="negative"),
        pytest.param(2**53 + 1, "9007199254740993", id="beyond all counts"),
        pytest.param(10**30, str(10**30), id="far beyond"),
        pytest.param(float("nan"), "nan", id="nan"),
        pytest.param(float("inf"), "inf", id="infinite"),
        pytest.param(None, "None", id="none"),
        pytest.param("3", "'3'", id="a text"),
        pytest.param(torch.ones(2), "tensor([1., 1.])", id="two numbers"),
        pytest.param({}, "{}", id="a dict"),
    ],
)
def test_what_is_no_step_is_said_once(agent: Agent, caplog: pytest.LogCaptureFixture, step: Any, shown: str) -> None:
    caplog.set_level(logging.WARNING)
    assert agent.hear(step=step, total=None, metrics={"loss": 1.0}) is None
    agent.hear(step=step, total=None, metrics={})
    assert [record.getMessage() for record in caplog.records] == [
        f"elasticjob.report: step={shown} is no whole number from 0 to 2**53: such reports are left out."
    ]


def test_what_is_no_total_is_left_out_and_said(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    message = agent.hear(step=3, total=10**20, metrics={"loss": 1.0})
    assert message is not None and (message["step"], message["total"]) == (3, None)
    assert "total=100000000000000000000 is no whole number" in caplog.text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("low", "'low'", id="a text"),
        pytest.param(None, "None", id="none"),
        pytest.param({"a": 1}, "{'a': 1}", id="a dict"),
        pytest.param(10**400, None, id="beyond all floats"),
        pytest.param(torch.ones(2), "tensor([1., 1.])", id="two numbers"),
    ],
)
def test_what_is_no_metric_is_left_out_and_said(
    agent: Agent, caplog: pytest.LogCaptureFixture, value: Any, shown: str | None
) -> None:
    message = agent.hear(step=3, total=None, metrics={"loss": value, "lr": 0.5})
    assert message is not None and message["metrics"] == {"lr": 0.5}
    agent.hear(step=4, total=None, metrics={"loss": value})
    (said,) = [record.getMessage() for record in caplog.records]
    assert len(said) < 300
    assert said.startswith("elasticjob.report: loss=" + (shown or "")) and "is no number" in said


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(torch.tensor(0.5), {"loss": 0.5}, id="a tensor"),
        pytest.param(np.float32(0.5), {"loss": 0.5}, id="of NumPy"),
        pytest.param(float("nan"), {}, id="nan"),
        pytest.param(torch.tensor(float("inf")), {}, id="infinite"),
    ],
)
def test_numbers_of_every_kind(
    agent: Agent, caplog: pytest.LogCaptureFixture, value: Any, expected: dict[str, float]
) -> None:
    message = agent.hear(step=3, total=None, metrics={"loss": value})
    assert message is not None and message["metrics"] == expected
    assert not caplog.records


def test_a_metric_without_a_name_and_too_many_are_said(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    message = agent.hear(step=3, total=None, metrics={"": 1.0} | {f"m{number}": 1.0 for number in range(40)})
    assert message is not None and len(message["metrics"]) == 32 and "" not in message["metrics"]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "elasticjob.report: a metric has no name: it is left out.",
        "elasticjob.report: 40 metrics are more than 32: the first 32 are shown.",
    ]


class Broken:
    """A terminal that is gone."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def flush(self) -> None:
        raise ValueError("I/O operation on closed file")


def test_a_terminal_that_is_gone_ends_no_training() -> None:
    reporter = progress.Reporter(0, Broken())  # type: ignore[arg-type]
    reporter.report(1.0, 1, 2, {})
    reporter.report(2.0, 2, 2, {})
    reporter.close()


def test_a_traced_loss_that_is_no_number_ends_no_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ELASTICJOB_TRACE", str(tmp_path))
    reporter = progress.Reporter(0, None)
    reporter.report(1.0, 1, None, {"loss": None})
    reporter.report(1.0, 2, None, {"loss": 0.5})
    (file,) = tmp_path.iterdir()
    assert file.read_text() == '{"step": 2, "reported": 0.5}\n'
