"""The agent's side of the golden messages in `tests/golden`: it produces one half and parses the other.

The hub's tests read the same files, so a field that only one side knows fails on one of them.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob.protocol import wire
from elasticjob.protocol.preflight import Link, Peer, Preflight, Probe

GOLDEN = Path(__file__).parents[2] / "golden"
OF_THE_HUB = sorted((GOLDEN / "from_hub").glob("*.json"))

STORE = wire.Store("10.0.0.3", 31000)
FAILURE = wire.Failure(
    generation=6,
    rank=5,
    local_rank=1,
    exit_code=-9,
    signal="SIGKILL",
    message="it broke",
    traceback="Traceback (most recent call last)",
    kind=wire.HANG,
    waits=True,
    stalled_seconds=12.5,
    collectives=417,
)
STATE = wire.AgentState(
    phase=wire.READY,
    generation=7,
    store=STORE,
    nproc=2,
    address="10.0.0.3",
    in_process=True,
    step=40,
    failure=FAILURE,
    unsaved=FAILURE,
    blocked=True,
    quiet=6,
    beside=5,
    checkpoint=wire.Checkpoint(
        number=4,
        copies=2,
        restoring=True,
        archive=wire.Archive(
            (
                wire.Archived(1200, "2026-11-27T22:00:00Z", 1 << 30, 12),
                wire.Archived(None, "2026-11-27T21:50:00Z", 5, 1),
            ),
            "StoreUnreachable",
            "the store does not answer",
        ),
        unfit="'step-1/model.pt' (300 bytes): File name too long",
        unfinished="'run/step-1.pt', beside which 'run/metrics.csv' is always being written",
    ),
    preflight=Preflight(
        port=30100,
        links=(Link("uid-2", 0.0002, 4e8, -0.5), Link("uid-3", problem="no connection to 10.0.0.5: timed out")),
        over=True,
    ),
    watches="0123456789ab",
    signs=(wire.Sign("EccError", 7, 3, 40, "Uncorrectable ECC error"),),
    codes=("9f" * 32,),
    devices=("", "cuda:1 GPU-5f3a"),
    shards=(3, 4),
)
PROGRESS = wire.Progress(
    generation=7,
    rank=1,
    step=41,
    total_steps=100,
    step_seconds=0.25,
    checkpoint_seconds=1.5,
    own_seconds=0.2,
    slowest_rank=3,
    batch_size=128,
    batch_seconds=0.3,
    noise_scale=512.5,
    state_bytes=100 << 20,
    state_seconds=0.21,
    samples_per_second=512.0,
    tokens_per_second=262144.0,
    mfu=0.41,
    checkpoint_ages={"File": 61.5, "Copies": 40.0},
    metrics={"loss": 0.5},
    not_finite=["grad_norm"],
    not_finite_at={"accuracy": 3},
)
SAID = {
    "hello": wire.hello("agent-1", {"torch": "2.13.0"}, STATE, peers=True),
    "state": wire.state(STATE),
    "progress": wire.progress(PROGRESS),
    "diagnosis": wire.diagnosis(7, "stall", "rank 1 waits in all_reduce"),
}
CODE = wire.Code(3, "9f" * 32)
WORLD = wire.World(generation=7, rank=1, nprocs=(4, 4, 8), store=STORE, restarts=3, repeats=2, before=812, code=CODE)
HEARD = {
    "welcome": wire.Welcome(
        1.5, 7.5, in_process=True, training=True, probes=True, peer_key="secret", reconnect_seconds=4.5
    ),
    "world_with_sizes": WORLD,
    "world_with_members": dataclasses.replace(WORLD, nprocs=(4, 8)),
    "regroup": wire.Regroup(7, "drain", checkpoint=True, grace_seconds=12.5, fresh=True, code=CODE),
    "stop": wire.Stop("suspended", ok=False, checkpoint=True, grace_seconds=12.5),
    "probe": Probe((Peer("uid-2", "10.0.0.4", 30101),), passed=False, reason="1.0 MiB/s between a and b"),
    "error": wire.Refusal("version", "v: this hub speaks version 1, not 2"),
}
# What the hub says and an agent has no use for: which pods the others are.
IGNORED = {("directive", "members", index, key) for index in (0, 1) for key in ("pod", "address")}


def read(direction: str, name: str) -> Any:
    return json.loads((GOLDEN / direction / f"{name}.json").read_text())


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every field of a message is, those of nested objects included."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*place, key)
            yield from places(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*place, index))


def without(message: Any, place: tuple[Any, ...]) -> str:
    cut = copy.deepcopy(message)
    inner = cut
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    return json.dumps(cut)


def understand(text: str) -> object:
    try:
        return wire.parse(text)
    except wire.WireError as error:
        return error


def test_both_sides_read_the_same_messages() -> None:
    assert {path.stem for path in (GOLDEN / "from_agent").glob("*.json")} == set(SAID)
    assert {path.stem for path in OF_THE_HUB} == set(HEARD)


@pytest.mark.parametrize("name", SAID)
def test_what_the_agent_sends_is_the_golden_message(name: str) -> None:
    assert json.loads(SAID[name]) == read("from_agent", name)


@pytest.mark.parametrize("value", [STORE, FAILURE, STATE, PROGRESS, *HEARD.values()], ids=lambda v: type(v).__name__)
def test_every_field_of_the_agent_is_in_a_golden_message(value: Any) -> None:
    """A field that is left at its default would not show that it is sent, or read."""
    for field in dataclasses.fields(value):
        assert getattr(value, field.name) != field.default, field.name


@pytest.mark.parametrize("name", HEARD)
def test_a_golden_message_is_understood(name: str) -> None:
    assert wire.parse(json.dumps(read("from_hub", name))) == HEARD[name]


@pytest.mark.parametrize("path", OF_THE_HUB, ids=lambda path: path.stem)
def test_the_agent_reads_every_field_that_the_hub_sends(path: Path) -> None:
    """Without it the agent understands something else. One that it may ignore is listed."""
    message = json.loads(path.read_text())
    whole = understand(json.dumps(message))
    unread = {place for place in places(message) if understand(without(message, place)) == whole}
    assert unread == IGNORED & set(places(message))
