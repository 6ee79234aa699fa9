"""The source of a state dies anywhere in its transfer: what was trained is never lost to initial weights. The same with
the shards of a model, of which each rank gets its part.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from torch_features import needs_fsdp_on_cpu
from worker.gang_helper import PROGRAMS, run_gang

CALLS = [str(call) for call in range(-1, 11)]  # of the dying rank; -1: it lives
_dice = random.Random(7)
BYTES = [f"{_dice.random():.4f}" for _ in range(5)]  # parts of what it sends
GARBAGE = {"FAKE_NCCL": "leaves=garbage"}  # in whatever a rank has given to a collective that is aborted

Results = dict[str, Any]


@pytest.fixture(scope="module", params=["host", "device"])
def results(request: pytest.FixtureRequest) -> Results:
    points = ",".join([*CALLS, *BYTES])
    (member,) = run_gang(
        PROGRAMS / "dying_source_program.py", 1, request.param, "replicated", points, env=GARBAGE, timeout=300
    )
    return member.results


def test_the_points_reach_from_the_first_message_to_the_end(results: Results) -> None:
    past = [int(call) for call in CALLS if f"{call} past the end" in results]
    assert past and 3 < past[0] <= int(CALLS[-1]), "there are enough points, and they hit the transfer"
    assert any(results[f"{part} {rank}"]["before"] == -1 for part in BYTES for rank in (2, 3))


def test_the_rest_goes_on_with_what_was_trained(results: Results) -> None:
    for point in [*CALLS, *BYTES]:
        for rank in range(0 if point == "-1" else 1, 4):
            said = results[f"{point} {rank}"]
            assert (said["step"], said["trained"]) == (40, True), (point, rank, said)


def test_a_rank_has_a_step_only_with_the_state_of_it(results: Results) -> None:
    for point in [*CALLS[1:], *BYTES]:
        for rank in (1, 2, 3):
            said = results[f"{point} {rank}"]
            assert said["before"] in (-1, said["had"]), (point, rank, said)
            if rank > 1 and said["broke"] and point in CALLS and f"{point} past the end" not in results:
                assert said["before"] == -1, (point, rank, said)


CALLS_OF_SHARDS = [str(call) for call in range(-1, 29)]
SOME = [*CALLS_OF_SHARDS[:3], *CALLS_OF_SHARDS[4:-2:4], *CALLS_OF_SHARDS[-2:]]
LONG = pytest.mark.long


@pytest.fixture(
    scope="module",
    params=[
        ("device", "whole", SOME),
        ("device", "shards", SOME),
        *(
            pytest.param((kind, state, CALLS_OF_SHARDS), marks=LONG)
            for kind in ("host", "device")
            for state in ("whole", "shards")
        ),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}-{len(param[2])}",
)
def shards(request: pytest.FixtureRequest) -> tuple[str, list[str], Results]:
    """What two ranks have kept of a sharded model: the whole of it, or all shards. By points of the exchange."""
    kind, state, calls = request.param
    points = [*calls, *BYTES[:2]]
    (member,) = run_gang(
        PROGRAMS / "dying_source_program.py", 1, kind, state, ",".join(points), env=GARBAGE, timeout=390
    )
    return state, points, member.results


@pytest.mark.timeout(400)
@needs_fsdp_on_cpu
def test_a_source_that_dies_in_the_exchange_of_shards_costs_nobody_the_state(
    shards: tuple[str, list[str], Results],
) -> None:
    """Who has kept the whole model drops it once all have their part; shards are kept until there are copies."""
    state, points, results = shards
    assert f"{CALLS_OF_SHARDS[-1]} past the end" in results, "there are enough points"
    for point in points:
        ranks = range(0 if point == "-1" else 1, 4)
        said = [results[f"{point} {rank}"] for rank in ranks]
        is_lost = said[0]["lost"]
        assert [one["lost"] for one in said] == [is_lost] * len(said), (point, said)
        if is_lost:
            assert state == "whole" and any(one["had"] == 40 for one in said), (point, said)
            continue
        assert [(one["step"], one["trained"]) for one in said] == [(40, True)] * len(said), (point, said)
        assert point == "-1" or f"{point} past the end" in results or any(one["broke"] for one in said)
