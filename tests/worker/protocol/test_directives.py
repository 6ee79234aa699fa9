"""The rules for directives, the wire and the settings: pure, so tables."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from elasticjob import env
from elasticjob.protocol import directives, wire

STORE = wire.Store("10.0.0.1", 4000)
NPROCS = (2, 1, 4)


def world(generation: int = 5, rank: int = 1) -> wire.World:
    return wire.World(generation, rank, NPROCS, STORE)


@pytest.mark.parametrize(
    ("generation", "directive", "expected"),
    [
        pytest.param(5, None, False, id="nothing was said"),
        pytest.param(5, wire.Regroup(4, "x"), False, id="an older one is over"),
        pytest.param(5, wire.Regroup(5, "x"), True, id="ours is over"),
        pytest.param(5, wire.Regroup(7, "x"), True, id="a newer one is over: fenced"),
        pytest.param(5, world(5), False, id="our world, repeated"),
        pytest.param(5, world(6), True, id="a newer world exists"),
        pytest.param(5, world(4), False, id="an older world, late"),
        pytest.param(5, wire.Stop("done"), True, id="stop"),
    ],
)
def test_when_a_generation_is_over(generation: int, directive: wire.Directive | None, expected: bool) -> None:
    assert directives.is_over(generation, directive) is expected


@pytest.mark.parametrize(
    ("generation", "store", "directive", "found"),
    [
        pytest.param(4, None, world(5), True, id="newer"),
        pytest.param(5, None, world(5), False, id="already run"),
        pytest.param(4, STORE, world(5, rank=0), True, id="we host and listen"),
        pytest.param(4, wire.Store("10.0.0.1", 4001), world(5, rank=0), False, id="made for an old store of ours"),
        pytest.param(4, STORE, wire.Regroup(4, "x"), False, id="no world"),
    ],
)
def test_which_world_is_entered(
    generation: int, store: wire.Store | None, directive: wire.Directive, found: bool
) -> None:
    assert (directives.find_world(generation, store, directive) is not None) is found


@pytest.mark.parametrize(
    ("generation", "directive", "expected"),
    [
        pytest.param(4, wire.Regroup(5, "x"), True, id="one that was never entered"),
        pytest.param(5, wire.Regroup(5, "x"), False, id="one that ran here"),
        pytest.param(5, wire.Regroup(4, "x"), False, id="an older one"),
        pytest.param(4, world(5), False, id="a world"),
        pytest.param(4, None, False, id="nothing was said"),
    ],
)
def test_which_generation_is_given_up(generation: int, directive: wire.Directive | None, expected: bool) -> None:
    assert directives.is_given_up(generation, directive) is expected


def test_ranks_follow_the_number_of_workers_of_each_pod() -> None:
    assert [directives.base_rank(world(rank=rank)) for rank in range(3)] == [0, 2, 3]
    assert directives.world_size(world()) == 7


def world_message(**fields: Any) -> dict[str, Any]:
    """A world as the hub says it."""
    world = {"action": "world", "generation": 5, "store": {"address": STORE.address, "port": STORE.port}, **fields}
    return {"v": 1, "type": "directive", "directive": world}


def test_both_ways_to_tell_of_a_world_mean_the_same() -> None:
    listed = [{"pod": f"p-{rank}", "rank": rank, "address": "10.0.0.1", "nproc": n} for rank, n in enumerate(NPROCS)]
    assert wire.parse(json.dumps(world_message(rank=1, members=listed))) == world()
    assert wire.parse(json.dumps(world_message(rank=1, sizes=[[1, 2], [1, 1], [1, 4]]))) == world()
    many = wire.parse(json.dumps(world_message(rank=7, sizes=[[1000, 8]])))
    assert isinstance(many, wire.World) and many.nprocs == (8,) * 1000


def test_back_off_starts_at_once_and_ends_at_five_seconds() -> None:
    assert directives.backoff(0, 0.5) == 0
    delays = [directives.backoff(attempt, 1.0) for attempt in range(1, 20)]
    assert delays[0] == pytest.approx(0.1)
    assert delays == sorted(delays)
    assert delays[-1] == 5.0
    assert directives.backoff(3, 0.0) == pytest.approx(directives.backoff(3, 1.0) / 2)


@pytest.mark.parametrize(
    ("attempt", "spread", "sent_away", "least", "most"),
    [
        pytest.param(0, 4.0, False, 0.0, 0.0, id="one connection broke: at once, however many agents there are"),
        pytest.param(0, 0.003, True, 0.0, 0.003, id="the hub sends a few agents away: practically at once"),
        pytest.param(0, 4.0, True, 0.0, 4.0, id="the hub sends thousands away: over the spread"),
        pytest.param(1, 4.0, False, 0.05, 4.0, id="the hub is gone: over the spread"),
        pytest.param(1, 0.003, False, 0.05, 0.1, id="the hub of a few is gone: as ever"),
        pytest.param(2, 4.0, False, 2.0, 4.0, id="still gone: at most one attempt in half a spread"),
        pytest.param(2, 0.003, False, 0.1, 0.2, id="still gone, a few: as ever"),
        pytest.param(2, 60.0, False, 2.5, 5.0, id="never later than five seconds"),
        pytest.param(30, 4.0, False, 2.5, 5.0, id="the back-off is the longer one"),
        pytest.param(30, 4.0, True, 2.5, 5.0, id="sent away counts for the first attempt only"),
    ],
)
def test_attempts_are_spread_where_all_agents_lost_the_hub(
    attempt: int, spread: float, sent_away: bool, least: float, most: float
) -> None:
    def wait(fraction: float) -> float:
        return directives.backoff(attempt, fraction, spread, sent_away=sent_away)

    assert (wait(0.0), wait(1.0)) == pytest.approx((least, most))


@pytest.mark.parametrize(
    ("attempt", "least", "most"), [(0, 0.5, 1.5), (1, 0.5, 1.5), (2, 1.0, 3.0), (3, 2.0, 5.0), (30, 5.0, 5.0)]
)
def test_a_busy_hub_is_asked_again_in_about_a_second_and_then_later(attempt: int, least: float, most: float) -> None:
    assert directives.backoff(attempt, 0.0, 5.0, sent_away=True, busy=True) == least
    assert directives.backoff(attempt, 1.0, 5.0, sent_away=True, busy=True) == most


def test_ten_thousand_agents_come_back_at_an_even_rate() -> None:
    rng, rate = random.Random(1), 2500.0
    waits = [directives.backoff(0, rng.random(), 10_000 / rate, sent_away=True) for _ in range(10_000)]
    in_a_second = Counter(int(wait) for wait in waits)
    assert set(in_a_second) == {0, 1, 2, 3}
    assert max(in_a_second.values()) < 1.1 * rate


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("no json", id="no json"),
        pytest.param({"v": 2, "type": "welcome"}, id="version"),
        pytest.param({"v": 1, "type": "other"}, id="type"),
        pytest.param({"v": 1, "type": "directive", "directive": {"action": "dance"}}, id="action"),
        pytest.param({"v": 1, "type": "directive", "directive": {"action": "regroup", "reason": "x"}}, id="missing"),
        pytest.param(
            {"v": 1, "type": "directive", "directive": {"action": "regroup", "generation": -1, "reason": "x"}},
            id="negative",
        ),
        pytest.param(
            {
                "v": 1,
                "type": "directive",
                "directive": {
                    "action": "world",
                    "generation": 1,
                    "rank": 1,
                    "members": [{"pod": "a", "rank": 1}, {"pod": "b", "rank": 2}],
                    "store": {"address": "x", "port": 1},
                },
            },
            id="ranks do not count from 0",
        ),
        pytest.param(world_message(rank=0), id="a world of nobody knows whom"),
        pytest.param(world_message(rank=2, sizes=[[2, 1]]), id="not in the world"),
        pytest.param(world_message(rank=0, sizes=[[2]]), id="half a size"),
        pytest.param(world_message(rank=0, sizes=[[-1, 1]]), id="negative size"),
        pytest.param(world_message(rank=0, sizes=[[2**40, 1]]), id="more members than memory"),
    ],
)
def test_a_message_is_understood_or_refused(broken: Any) -> None:
    with pytest.raises(wire.WireError):
        wire.parse(broken if isinstance(broken, str) else json.dumps(broken))


def test_unknown_fields_are_ignored() -> None:
    text = '{"v": 1, "type": "welcome", "heartbeatSeconds": 1, "timeoutSeconds": 3, "news": true}'
    assert wire.parse(text) == wire.Welcome(1.0, 3.0)
    assert wire.parse(text.replace("news", "inProcess")) == wire.Welcome(1.0, 3.0, in_process=True)
    assert wire.parse(text.replace("news", "training")) == wire.Welcome(1.0, 3.0, training=True)


def test_what_is_sent_keeps_to_the_limits() -> None:
    failure = wire.Failure(1, message="m" * 9999, traceback="a line of it\n" * 9999 + "the end")
    dumped = failure.dump()
    assert 0.9 * wire.MAX_TEXT < len(dumped["message"]) <= wire.MAX_TEXT
    assert 0.8 * wire.MAX_TRACEBACK < len(dumped["traceback"]) <= wire.MAX_TRACEBACK
    assert dumped["traceback"].endswith("the end")
    assert len(wire.diagnosis(1, "hang", "x" * 10**6)) < wire.MAX_MESSAGE_BYTES


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    variables = {
        "ELASTICJOB_HUB_URL": "ws://hub:1/",
        "ELASTICJOB_TOKEN_FILE": str(token),
        "ELASTICJOB_POD_IP": "10.0.0.1",
        "ELASTICJOB_HANG_TIMEOUT_SECONDS": "0",
        "ELASTICJOB_IN_PROCESS": "1",
    }
    settings = env.load(variables)
    assert settings.endpoint == "ws://hub:1/v1/agent"
    assert settings.hang_timeout == 0
    assert settings.in_process
    assert env.load(variables, local_addr="10.9.9.9").pod_ip == "10.9.9.9"
    for name, value in (
        ("ELASTICJOB_GRACEFUL_SHUTDOWN_SECONDS", "soon"),
        ("ELASTICJOB_HANG_TIMEOUT_SECONDS", "-1"),
        ("ELASTICJOB_IN_PROCESS", "perhaps"),
        ("ELASTICJOB_HUB_URL", "ws://hub:port"),
    ):
        with pytest.raises(env.SettingsError, match=name):
            env.load({**variables, name: value})
