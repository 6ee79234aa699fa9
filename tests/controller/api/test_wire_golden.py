"""The hub's side of the golden messages in `tests/golden`: each is parsed or produced, with every field set.

The agent's tests read the same files, so a field that only one side knows fails on one of them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from elasticjob_operator.api import wire
from elasticjob_operator.hub import frames

GOLDEN = Path(__file__).parents[2] / "golden"
OF_AGENTS = sorted((GOLDEN / "from_agent").glob("*.json"))
OF_THE_HUB = sorted((GOLDEN / "from_hub").glob("*.json"))
MESSAGES = (
    wire.Hello,
    wire.State,
    wire.Progress,
    wire.Diagnosis,
    wire.AgentState,
    wire.Archived,
    wire.Archive,
    wire.Checkpoint,
    wire.Failure,
    wire.Link,
    wire.Preflight,
    wire.Sign,
    wire.Store,
    wire.Welcome,
    wire.DirectiveMessage,
    wire.World,
    wire.Code,
    wire.Member,
    wire.Regroup,
    wire.Peer,
    wire.Probe,
    wire.Stop,
    wire.Error,
)


def read(path: Path) -> BaseModel:
    if path in OF_AGENTS:
        return wire.AGENT_MESSAGE.validate_json(path.read_text())
    return wire.HUB_MESSAGE.validate_json(path.read_text())


def models_in(value: Any) -> Iterator[BaseModel]:
    """The message and every model in it."""
    if isinstance(value, BaseModel):
        yield value
        value = [getattr(value, name) for name in type(value).model_fields]
    if isinstance(value, list | tuple):
        for one in value:
            yield from models_in(one)


@pytest.mark.parametrize("path", [*OF_AGENTS, *OF_THE_HUB], ids=lambda path: path.stem)
def test_a_golden_message_is_understood_whole(path: Path) -> None:
    """A field of the file that the model does not have would be missing here."""
    told = read(path).model_dump(by_alias=True, exclude_unset=True, mode="json")
    assert told == json.loads(path.read_text())


def test_the_golden_messages_have_every_field_of_every_model() -> None:
    seen: dict[type[BaseModel], set[str]] = defaultdict(set)
    for path in (*OF_AGENTS, *OF_THE_HUB):
        for model in models_in(read(path)):
            seen[type(model)] |= model.model_fields_set
    assert seen == {model: set(model.model_fields) for model in MESSAGES}


def test_every_model_of_the_protocol_is_listed() -> None:
    declared = {value for value in vars(wire).values() if isinstance(value, type) and issubclass(value, BaseModel)}
    assert {model for model in declared if model.model_fields and model.__module__ == wire.__name__} == set(MESSAGES)


@pytest.mark.parametrize("path", OF_THE_HUB, ids=lambda path: path.stem)
def test_what_the_hub_sends_is_the_golden_message(path: Path) -> None:
    """As the encoder writes it, which for worlds does not go through the model."""
    message, golden = read(path), json.loads(path.read_text())
    if not isinstance(message, wire.DirectiveMessage):
        assert isinstance(message, wire.Welcome | wire.Error)
        assert json.loads(frames.encode(message)) == golden
        return
    directive, sizes = message.directive, golden["directive"].pop("sizes", None)
    if isinstance(directive, wire.World) and sizes is not None:
        nprocs = [nproc for count, nproc in sizes for _ in range(count)]
        members = tuple(wire.Member(pod=f"p-{rank}", rank=rank, nproc=nproc) for rank, nproc in enumerate(nprocs))
        directive, golden["directive"]["sizes"] = directive.model_copy(update={"members": members}), sizes
    assert json.loads(frames.DirectiveEncoder().encode(directive, sizes=sizes is not None)) == golden
