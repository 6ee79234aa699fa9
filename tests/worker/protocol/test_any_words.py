"""Whatever a script says, the hub understands the message that carries it: a text or a number is never its end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticjob.protocol import steps, wire
from elasticjob.protocol.preflight import Link, Preflight
from elasticjob_operator.api import wire as hub_wire
from elasticjob_operator.hub import frames

TEXTS = {
    "a file name that is not UTF-8": "caf\udce9.txt",
    "half a pair": "\ud83d\ude80 \ud83d",
    "NUL and escapes": "\x00\x1b[31m\x07",
    "long": "x" * 1_000_000,
    "long, in Chinese": "損失" * 30_000,
    "long, of escapes": "\x1b" * 60_000,
    "long, of quotes": '"\\\n' * 30_000,
    "long, of rockets": "\U0001f680" * 30_000,
    "long, of broken names": "\udce9" * 60_000,
}


def hear(text: str) -> frames.Message:
    assert len(text.encode()) <= hub_wire.MAX_MESSAGE_BYTES
    message = frames.decode(text)
    assert not isinstance(message, frames.Problem), message.message
    return message


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_hub_understands_every_text(text: str) -> None:
    failure = wire.Failure(rank=1, exit_code=1, message=text, traceback=f"Traceback\n{text}")
    preflight = Preflight(port=1, links=(Link("u", problem=text),) * 2)
    state = wire.AgentState(
        phase=wire.FAILED, failure=failure, preflight=preflight, shards=tuple(range(10**9, 10**9 + 3000))
    )
    assert isinstance(hear(wire.state(state)), hub_wire.State)
    hear(wire.hello("agent", {"torch": "2.13"}, state))
    hear(wire.diagnosis(3, "hang", text))
    hear(wire.progress(wire.Progress(step=3, metrics={text: 1.0, f"{text}2": 2.0})))


def test_a_long_message_keeps_its_type_and_its_end() -> None:
    text = "RuntimeError: " + "x" * 1_000_000 + " the end"
    said = hear(wire.state(wire.AgentState(failure=wire.Failure(message=text, traceback=f"Traceback\n  at 1\n{text}"))))
    assert isinstance(said, hub_wire.State) and said.state.failure is not None
    for told in (said.state.failure.message, said.state.failure.traceback):
        assert told is not None
        assert "RuntimeError: xx" in told and told.endswith("x the end")
    assert said.state.failure.traceback is not None and said.state.failure.traceback.startswith("Traceback\n  at 1\n")


@pytest.mark.parametrize("number", [10**30, 2**53 + 1, -1, 1e400, float("nan"), 1.5, True, None, "3", [3]], ids=repr)
@pytest.mark.parametrize(
    "name", ["rank", "step", "total", "stepSeconds", "checkpointSeconds", "batchSize", "noiseScale", "stateBytes"]
)
def test_the_hub_understands_every_number_of_a_report(name: str, number: Any) -> None:
    told = steps.read_progress({"step": 3, name: number, "metrics": {"loss": 1.0}}, 1, None)
    progress = hear(wire.progress(told))
    assert isinstance(progress, hub_wire.Progress) and progress.metrics == {"loss": 1.0}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        pytest.param({"": 1.0, "loss": 2.0}, {"loss": 2.0}, id="no name"),
        pytest.param({"a\udce9": 1.0}, {"a\ufffd": 1.0}, id="a name that is not UTF-8"),
        pytest.param({"loss": 10**400, "lr": -(10**30)}, {"lr": -1e30}, id="beyond all floats"),
        pytest.param({"loss": "low", "lr": None, "x": [1.0], "ok": True}, {"ok": 1.0}, id="no numbers"),
    ],
)
def test_the_metrics_that_the_hub_hears(metrics: dict[str, Any], expected: dict[str, float]) -> None:
    told = steps.read_progress(json.loads(json.dumps({"metrics": metrics})), 1, None)
    progress = hear(wire.progress(told))
    assert isinstance(progress, hub_wire.Progress) and progress.metrics == expected


def test_the_step_of_a_state_is_one_that_the_hub_can_count() -> None:
    said = hear(wire.state(wire.AgentState(step=10**30)))
    assert isinstance(said, hub_wire.State) and said.state.step is None
