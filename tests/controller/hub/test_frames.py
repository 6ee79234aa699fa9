"""Messages and frames: every valid message survives a round trip, and anything else is rejected."""

from __future__ import annotations

import json
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticjob_operator import ratelimit
from elasticjob_operator import text as texts
from elasticjob_operator.api import wire
from elasticjob_operator.hub import frames, limits
from elasticjob_operator.membership import member_health

T = TypeVar("T")

# Text as JSON can carry it: surrogates are not characters.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
COUNT = st.integers(0, 2**53)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0, max_value=2**53, allow_nan=False, allow_infinity=False)
STORE = st.builds(wire.Store, address=TEXT.filter(bool), port=st.integers(1, 65535))
SIGNED = st.integers(-(2**31), 2**31)


def maybe(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none() | strategy


FAILURE = st.builds(
    wire.Failure,
    generation=COUNT,
    rank=maybe(COUNT),
    local_rank=maybe(COUNT),
    exit_code=maybe(SIGNED),
    signal=maybe(TEXT),
    message=maybe(TEXT),
    traceback=maybe(TEXT),
)
AGENT_STATE = st.builds(
    wire.AgentState,
    phase=st.sampled_from(wire.AgentPhase),
    generation=COUNT,
    store=maybe(STORE),
    nproc=st.integers(1, 1024),
    address=maybe(TEXT),
    in_process=st.booleans(),
    step=maybe(COUNT),
    failure=maybe(FAILURE),
)
FROM_AGENT: st.SearchStrategy[frames.Message] = st.one_of(
    st.builds(wire.Hello, agent=TEXT, runtime=st.dictionaries(TEXT, TEXT, max_size=16), state=AGENT_STATE),
    st.builds(wire.State, state=AGENT_STATE),
    st.builds(
        wire.Progress,
        generation=COUNT,
        rank=COUNT,
        step=maybe(COUNT),
        total_steps=maybe(COUNT),
        step_seconds=maybe(POSITIVE),
        batch_size=maybe(COUNT),
        batch_seconds=maybe(POSITIVE),
        noise_scale=maybe(POSITIVE),
        samples_per_second=maybe(POSITIVE),
        tokens_per_second=maybe(POSITIVE),
        checkpoint_ages=maybe(st.dictionaries(TEXT, POSITIVE, max_size=8)),
        metrics=st.dictionaries(TEXT.filter(bool), FLOAT, max_size=32),
    ),
    st.builds(wire.Diagnosis, generation=COUNT, kind=TEXT, text=TEXT),
)
MEMBER = st.builds(wire.Member, pod=TEXT, rank=COUNT, address=maybe(TEXT), nproc=st.integers(1, 16))
DIRECTIVE: st.SearchStrategy[wire.Directive] = st.one_of(
    st.builds(
        wire.World,
        generation=COUNT,
        rank=COUNT,
        members=st.lists(MEMBER, max_size=4).map(tuple),
        store=STORE,
        restarts=COUNT,
    ),
    st.builds(wire.Regroup, generation=COUNT, reason=TEXT, checkpoint=st.booleans(), grace_seconds=FLOAT),
    st.builds(wire.Stop, reason=TEXT, ok=st.booleans(), checkpoint=st.booleans(), grace_seconds=FLOAT),
)


@given(FROM_AGENT)
def test_what_an_agent_says_comes_through(message: frames.Message) -> None:
    assert frames.decode(json.dumps(message.dump())) == message
    assert frames.decode(json.dumps(message.dump(), ensure_ascii=False).encode()) == message


@given(st.lists(DIRECTIVE, min_size=1, max_size=4))
def test_what_the_hub_directs_comes_through_whatever_it_said_before(directives: list[wire.Directive]) -> None:
    encoder = frames.DirectiveEncoder()
    for directive in directives:
        message = wire.HUB_MESSAGE.validate_json(encoder.encode(directive))
        assert message == wire.DirectiveMessage(directive=directive)


@given(st.lists(st.integers(1, 16), max_size=8))
def test_sizes_say_how_many_processes_each_rank_has(nprocs: list[int]) -> None:
    members = tuple(wire.Member(pod=f"p-{rank}", rank=rank, nproc=nproc) for rank, nproc in enumerate(nprocs))
    world = wire.World(generation=3, rank=0, members=members, store=wire.Store(address="a", port=1), restarts=2)
    said = wire.HUB_MESSAGE.validate_json(frames.DirectiveEncoder().encode(world, sizes=True))
    assert isinstance(said, wire.DirectiveMessage) and isinstance(said.directive, wire.World)
    told = said.directive
    assert [nproc for count, nproc in told.sizes or () for _ in range(count)] == nprocs
    assert told.model_copy(update={"sizes": None, "members": members}) == world


@given(
    st.builds(wire.Welcome, heartbeat_seconds=FLOAT, timeout_seconds=FLOAT)
    | st.builds(wire.Error, code=TEXT, message=TEXT)
)
def test_the_other_messages_come_through(message: wire.Welcome | wire.Error) -> None:
    assert wire.HUB_MESSAGE.validate_json(frames.encode(message)) == message


def test_of_a_loss_that_is_nan_the_name_is_kept() -> None:
    """Python writes NaN into JSON; the API server would refuse the job's status for it."""
    text = json.dumps({"v": 1, "type": "progress", "step": 7, "metrics": {"loss": float("nan"), "lr": 0.1}})
    assert "NaN" in text
    assert frames.decode(text) == wire.Progress(step=7, metrics={"lr": 0.1}, not_finite=["loss"])
    learned = {"type": "progress", "step": 7, "batchSize": 64, "batchSeconds": 1e999, "noiseScale": float("inf")}
    assert frames.decode(json.dumps({"v": 1} | learned)) == wire.Progress(step=7, batch_size=64)
    endless = json.dumps({"type": "progress", "step": 7, "stepSeconds": float("inf"), "metrics": {"a": 1e999}})
    assert frames.decode(endless) == wire.Progress(step=7, not_finite=["a"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_a_message_or_a_problem(data: bytes | str) -> None:
    assert isinstance(frames.decode(data), frames.Problem)


@given(JSON)
def test_any_json_is_a_message_or_a_problem(value: object) -> None:
    found = frames.decode(json.dumps(value))
    assert isinstance(found, frames.Problem) and len(found.message) <= 1024


@pytest.mark.parametrize(
    "lists",
    [
        {"type": "hello", "agent": "a", "state": {"phase": "ready"}}
        | {"runtime": dict.fromkeys(map(str, range(7_000)), 1)},
        {"type": "state", "state": {"phase": "ready", "preflight": {"port": 1, "links": [1] * 30_000}}},
        {"type": "state", "state": {"phase": "ready", "shards": [""] * 20_000}},
        {"type": "progress", "metrics": dict.fromkeys(map(str, range(6_500)), "")},
        {"type": "progress", "checkpointAges": dict.fromkeys(map(str, range(6_500)), "")},
        {"type": "state", "state": [[[[]]]] * 1_000},
    ],
    ids=["runtime", "links", "shards", "metrics", "checkpointAges", "nested"],
)
def test_a_list_that_is_too_long_is_refused_before_its_items_are_read(lists: dict[str, object]) -> None:
    """An error for each item makes a message of 64 KB cost thirty milliseconds of the event loop."""
    data = json.dumps({"v": 1} | lists, separators=(",", ":"))
    assert len(data) < wire.MAX_MESSAGE_BYTES
    told = "message: its lists and objects may have at most 2600 items"
    assert frames.decode(data) == frames.Problem("malformed", told)


def test_the_longest_lists_are_read() -> None:
    link = {"uid": "u" * 36, "seconds": 0.1, "bytesPerSecond": 1e9, "clockSeconds": 0.1, "problem": "p"}
    preflight = {"port": 1, "links": [link] * 64}
    state = {"phase": "ready", "nproc": 8, "preflight": preflight, "shards": list(range(2048))}
    runtime = {str(number): "1" for number in range(16)}
    message = {"v": 1, "type": "hello", "agent": "a", "runtime": runtime, "state": state}
    assert isinstance(frames.decode(json.dumps(message)), wire.Hello)


@given(FROM_AGENT, st.data())
@settings(max_examples=200)
def test_a_message_with_one_value_replaced_is_a_message_or_a_problem(
    message: frames.Message, data: st.DataObject
) -> None:
    """Random JSON rarely comes near a message; a spoilt message does."""
    dumped = message.dump()
    place = dumped
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    found = frames.decode(json.dumps(dumped))
    if isinstance(found, frames.Problem):
        assert found.code in ("malformed", "version") and found.message
    else:
        assert found == frames.decode(json.dumps(found.dump())) or "metrics" in dumped


@given(DIRECTIVE, DIRECTIVE)
def test_only_what_is_equal_is_the_same(left: wire.Directive, right: wire.Directive) -> None:
    assert frames.same(left, left) and frames.same(left, left.model_copy())
    if isinstance(left, wire.World) and isinstance(right, wire.World):
        if left.generation != right.generation or left.rank != right.rank:
            assert not frames.same(left, right)
    else:
        assert frames.same(left, right) is (left == right)
    assert not frames.same(None, left)


@pytest.mark.parametrize(
    ("connections", "heartbeat"), [(0, 1.0), (1, 1.0), (500, 1.0), (1000, 2.0), (3000, 6.0), (100_000, 6.0)]
)
def test_heartbeats_are_rarer_where_there_are_many(connections: int, heartbeat: float) -> None:
    settings = limits.HubSettings()
    assert limits.heartbeat_seconds(connections, settings) == heartbeat
    assert limits.timeout_seconds(heartbeat, settings) == max(5.0, 4 * heartbeat)


@pytest.mark.parametrize(
    ("agents", "spread"), [(0, 0.0), (9, 0.006), (1500, 1.0), (6000, 4.0), (7500, 5.0), (100_000, 5.0)]
)
def test_the_more_agents_there_are_the_longer_they_take_to_come_back(agents: int, spread: float) -> None:
    assert limits.reconnect_seconds(agents, limits.HubSettings()) == pytest.approx(spread)


def test_every_agent_is_back_before_it_counts_as_lost() -> None:
    """An attempt at the end of the spread that fails is repeated once, within the grace of a new operator."""
    assert 2 * limits.HubSettings().reconnect_max <= member_health.Settings().restart_grace


@given(st.lists(st.floats(0, 10), max_size=60), st.floats(0.1, 10), st.integers(1, 10))
def test_a_bucket_never_gives_more_than_its_rate(waits: list[float], rate: float, burst: int) -> None:
    bucket, now, given = ratelimit.Bucket(burst, 0.0), 0.0, 0
    for wait in waits:
        now += wait
        given += bucket.take(rate, burst, now)
        assert given <= burst + rate * now + 1e-6


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 29)), max_size=60), st.floats(0.01, 0.5), st.integers(1, 5))
def test_nor_does_it_where_some_were_kept_waiting(waits: list[tuple[float, float]], rate: float, burst: int) -> None:
    """They come with the time at which they began to wait."""
    bucket, now, given = ratelimit.Bucket(burst, 0.0), 0.0, 0
    for wait, late in waits:
        now += wait
        given += bucket.take(rate, burst, max(0.0, now - late))
        assert given <= burst + rate * now + 1e-6


def test_a_bucket_survives_a_clock_that_goes_back() -> None:
    bucket = ratelimit.Bucket(1, 100.0)
    assert bucket.take(1, 1, 100.0) and not bucket.take(1, 1, 50.0) and bucket.take(1, 1, 52.0)


@given(st.text())
def test_cleaned_text_is_one_printable_line(text: str) -> None:
    cleaned = texts.clean(text)
    assert len(cleaned) <= 256 and len(cleaned.splitlines()) <= 1
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in cleaned)
    cleaned.encode()
    assert all(line.startswith("  | ") for line in texts.clean_block(text).splitlines())
