"""Each size source by itself, and the combination of all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.builders import NOW, make_spec
from elasticjob_operator import api
from elasticjob_operator.sizing import compose
from elasticjob_operator.sizing.values import Answer, Size, Source, View
from elasticjob_operator.times import format_time

LATER = format_time(NOW + 60)


def make_view(min: int = 2, max: int = 8, *, replicas: int | None = None, withdrawn: int = 0, **fields: Any) -> View:
    elastic = {key: fields.pop(key) for key in list(fields) if key.startswith("replica") or key in ("spares", "mesh")}
    retry = LATER if withdrawn else None
    spec = make_spec(min, max, replicas=replicas, elasticPolicy=elastic)
    return View(spec, api.CapacityStatus(withdrawn=withdrawn, retry_time=retry), **fields)


@pytest.mark.parametrize(
    ("source", "view", "size", "expected"),
    [
        pytest.param(compose.ask_replicas, make_view(), 0, 8, id="replicas: maxReplicas by default"),
        pytest.param(compose.ask_replicas, make_view(replicas=3), 0, 3, id="replicas: replicas"),
        pytest.param(compose.ask_policy, make_view(), 12, 8, id="policy: at most maxReplicas"),
        pytest.param(compose.ask_policy, make_view(), 1, 2, id="policy: at least minReplicas"),
        pytest.param(compose.ask_policy, make_view(), 5, 5, id="policy: between"),
        pytest.param(compose.ask_legal_sizes, make_view(), 5, 5, id="legal: every size"),
        pytest.param(
            compose.ask_legal_sizes, make_view(replicaIncrementStep=4), 7, 6, id="legal: steps from minReplicas"
        ),
        pytest.param(
            compose.ask_legal_sizes, make_view(replicaDiscreteValues=[2, 4]), 7, 4, id="legal: the largest that fits"
        ),
        pytest.param(
            compose.ask_legal_sizes, make_view(replicaDiscreteValues=[6]), 4, 4, id="legal: none fits, so the pods wait"
        ),
        pytest.param(compose.ask_room, make_view(), 5, 5, id="room: for all"),
        pytest.param(compose.ask_room, make_view(withdrawn=2), 5, 3, id="room: not for two"),
        pytest.param(compose.ask_room, make_view(withdrawn=9), 5, 2, id="room: what minReplicas asks for is tried on"),
        pytest.param(compose.ask_finishing, make_view(members=4, ended=4), 5, 5, id="finishing: nobody has ended"),
        pytest.param(
            compose.ask_finishing, make_view(members=4, ended=3, is_ending=True), 5, 1, id="finishing: one is left"
        ),
        pytest.param(
            compose.ask_finishing, make_view(members=4, is_ending=True), 2, 4, id="finishing: nobody is sent away"
        ),
    ],
)
def test_what_each_source_makes_of_a_size(source: Source, view: View, size: int, expected: int) -> None:
    assert source(view, size).apply(size) == expected


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        pytest.param(make_view(replicas=3), Size(3, 3, 3), id="as it is wanted"),
        pytest.param(make_view(replicas=3, spares=2), Size(3, 3, 5), id="spares are pods, and train nowhere"),
        pytest.param(
            make_view(replicas=7, mesh=[{"name": "dp"}, {"name": "tp", "size": 3}]),
            Size(
                *(7, 6, 6, "legalSizes"),
                "6 is the largest legal size of at most 7: with elasticPolicy.mesh, 3 pods are needed for whole copies"
                " of the model",
            ),
            id="whole copies of the model",
        ),
        pytest.param(
            make_view(replicaIncrementStep=4, spares=1),
            Size(
                8,
                6,
                7,
                "legalSizes",
                "6 is the largest legal size of at most 8: with elasticPolicy.replicaIncrementStep 4",
            ),
            id="spares are added to a legal size",
        ),
        pytest.param(
            make_view(spares=1, withdrawn=1),
            Size(
                8,
                8,
                8,
                "room",
                "1 pods were not scheduled within scalingTimeoutSeconds and will be retried later",
                NOW + 60,
            ),
            id="spares are given up first",
        ),
        pytest.param(
            make_view(members=4, ended=3, is_ending=True, withdrawn=2),
            Size(8, 8, 1, "finishing", "some members have succeeded and the others are finishing", NOW + 60),
            id="the end has the last word, and the time of the others holds",
        ),
    ],
)
def test_the_size_and_why(view: View, expected: Size) -> None:
    assert compose.compose(view) == expected


def test_the_order_of_the_sources() -> None:
    assert [name for name, _ in compose.OF_WORLD] == [
        "replicas",
        "pool",
        "elasticPolicy",
        "queue",
        "legalSizes",
    ]
    assert [name for name, _ in compose.OF_PODS] == ["queue", "room", "finishing"]


@pytest.mark.parametrize(
    ("answer", "world"),
    [
        pytest.param(Answer(target=4), 4, id="asks for less"),
        pytest.param(Answer(target=100), 8, id="asks for too much"),
        pytest.param(Answer(at_most=1), 2, id="leaves too little"),
        pytest.param(Answer(at_most=100), 8, id="leaves enough"),
        pytest.param(Answer(), 8, id="has nothing to say"),
    ],
)
def test_a_new_source_is_one_line_in_a_list(answer: Answer, world: int) -> None:
    asks, *limits = compose.OF_WORLD
    assert compose.compose(make_view(), (asks, ("new", lambda view, size: answer), *limits)).world == world


@given(
    low=st.integers(1, 6),
    more=st.integers(0, 6),
    part=st.floats(0, 1),
    spares=st.integers(0, 3),
    withdrawn=st.integers(0, 20),
    step=st.none() | st.integers(1, 4),
    foreign=st.none() | st.integers(0, 20),
)
def test_no_source_leads_out_of_the_bounds(
    low: int, more: int, part: float, spares: int, withdrawn: int, step: int | None, foreign: int | None
) -> None:
    extra = {"replicaIncrementStep": step} if step else {}
    view = make_view(low, low + more, replicas=low + round(part * more), spares=spares, withdrawn=withdrawn, **extra)
    asks, *limits = compose.OF_WORLD
    made = compose.compose(view, (asks, ("new", lambda view, size: Answer(target=foreign)), *limits))
    assert low <= made.world <= low + more
    assert low <= made.pods <= made.world + spares
    assert (made.world - low) % (step or 1) == 0
    assert bool(made.limited_by) == bool(made.reason)
    if not made.limited_by:
        assert (made.world, made.pods) == (made.wanted, made.wanted + spares)
