"""What is asked for and what is given back, for every state that the Workloads of a job can be in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.builders import make_pod, make_spec
from elasticjob_operator.integrations.kueue.asking import (
    MOST_INCREMENTS,
    Adopt,
    Ask,
    Create,
    Delete,
    Set,
    Wish,
    Write,
    decide,
    find_next_size,
)
from elasticjob_operator.integrations.kueue.names import FINALIZER
from elasticjob_operator.integrations.kueue.values import Workload
from elasticjob_operator.model.observe import Pod

SPEC = make_spec(2, 6)


def make_workload(first: int = 0, count: int = 2, state: str = "admitted", **fields: Any) -> Workload:
    """States: pending, reserved, admitted, evicted (holds its quota still) and released (evicted, and back in the
    queue)."""
    reserves = state in ("reserved", "admitted", "evicted")
    conditions: tuple[dict[str, str], ...] = ({"type": "PodsReady", "status": "True", "reason": "Started"},)
    if state in ("evicted", "released"):
        conditions = (*conditions, {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "for a/b"})
    fields = {
        "queue": "gpus",
        "template_hash": SPEC.template_hash,
        "finalizers": (FINALIZER,),
        "evicted": "Preempted" if state in ("evicted", "released") else "",
        "conditions": conditions,
        **fields,
    }
    return Workload(
        f"digits-{first}",
        f"w{first}",
        "7",
        "digits",
        "job-uid",
        first,
        count,
        reserves=reserves,
        is_admitted=state == "admitted",
        **fields,
    )


def run(*indices: int) -> tuple[Pod, ...]:
    return tuple(make_pod(i) for i in indices)


def say(writes: Sequence[Write]) -> list[str]:
    """One word and the indices for each write."""
    told = []
    for write in writes:
        if isinstance(write, Create):
            told.append(f"create {write.first}+{write.count}")
        elif isinstance(write, Adopt):
            told.append(f"adopt {write.name}")
        elif isinstance(write, Set):
            what = [f"{type}={truth}" for type, truth, _, _ in write.conditions]
            what += [f"reclaim {write.reclaimed}"] if write.reclaimed is not None else []
            told.append(f"set {write.workload.first} {' '.join(what)}" + (" release" if write.is_released else ""))
        else:
            told.append(f"{'delete' if isinstance(write, Delete) else 'let go'} {write.workload.first}")
    return told


BASE, PENDING = make_workload(), make_workload(state="pending")
THIRD, FOURTH = make_workload(2, 1), make_workload(3, 1)
RELEASE = "QuotaReserved=False Admitted=False Requeued=True PodsReady=False release"


@pytest.mark.parametrize(
    ("asks", "workloads", "pods", "expected"),
    [
        pytest.param(2, [], (), ["create 0+2"], id="the base comes first"),
        pytest.param(4, [], (), ["create 0+2"], id="and nothing else until it is admitted"),
        pytest.param(4, [PENDING], (), [], id="it is waited for"),
        pytest.param(4, [make_workload(state="reserved")], (), [], id="reserved is not admitted: checks come first"),
        pytest.param(4, [BASE], run(0, 1), ["create 2+1", "create 3+1"], id="growth by increments"),
        pytest.param(4, [BASE, THIRD], run(0, 1, 2), ["create 3+1"], id="only what is not asked for yet"),
        pytest.param(4, [BASE, make_workload(2, 1, "pending"), FOURTH], run(0, 1, 3), [], id="an increment waits"),
        pytest.param(3, [BASE, THIRD, FOURTH], run(0, 1, 2, 3), [], id="a shrink waits for the pod"),
        pytest.param(3, [BASE, THIRD, FOURTH], run(0, 1, 2), ["delete 3"], id="and gives back what nobody uses"),
        pytest.param(3, [BASE, make_workload(2, 2)], run(0, 1, 2, 3), [], id="part of an increment: in use"),
        pytest.param(3, [BASE, make_workload(2, 2)], run(0, 1, 2), ["set 2 reclaim 1"], id="part of one is given back"),
        pytest.param(3, [BASE, make_workload(2, 2, reclaimed=1)], run(0, 1, 2), [], id="once"),
        pytest.param(
            4, [BASE, make_workload(2, 2, reclaimed=1)], run(0, 1, 2), ["create 3+1"], id="and is asked for anew"
        ),
        pytest.param(3, [BASE, make_workload(2, 2, "pending")], run(0, 1), ["delete 2"], id="one that is too big"),
        pytest.param(4, [BASE, make_workload(2, 1, "evicted"), FOURTH], run(0, 1, 2, 3), [], id="evicted, in use"),
        pytest.param(
            4,
            [BASE, make_workload(2, 1, "evicted"), FOURTH],
            run(0, 1, 3),
            [f"set 2 {RELEASE}"],
            id="evicted: released when its pod is gone",
        ),
        pytest.param(
            4,
            [BASE, make_workload(2, 2, "evicted", reclaimed=1), FOURTH],
            run(0, 1, 3),
            ["delete 2"],
            id="evicted, and a part of it was given back and asked for anew",
        ),
        pytest.param(4, [BASE, make_workload(2, 1, "released"), FOURTH], run(0, 1, 3), [], id="and queued again"),
        pytest.param(
            4,
            [make_workload(state="evicted"), THIRD],
            run(0, 1, 2),
            [],
            id="an evicted base: all of it is in use",
        ),
        pytest.param(
            2,
            [make_workload(state="evicted"), THIRD],
            (),
            [f"set 0 {RELEASE}", "delete 2"],
            id="an evicted base takes the increments with it",
        ),
        pytest.param(0, [BASE, THIRD], run(0), ["delete 2"], id="suspended: from what is not in use"),
        pytest.param(0, [BASE], (), ["delete 0"], id="suspended: all of it"),
        pytest.param(None, [BASE, THIRD], run(0, 2), [], id="a job that is left alone keeps what its pods use"),
        pytest.param(None, [BASE, THIRD], run(0, 1), ["delete 2"], id="and nothing else"),
        pytest.param(None, [make_workload(state="evicted")], run(0), [], id="its pods have to go first"),
        pytest.param(None, [make_workload(state="evicted")], (), ["delete 0"], id="then it gives its quota back"),
        pytest.param(
            2, [replace(BASE, is_deleting=True)], run(0, 1), [], id="somebody deletes the base: its pods first"
        ),
        pytest.param(2, [replace(BASE, is_deleting=True)], (), ["let go 0"], id="then it may go"),
        pytest.param(2, [replace(PENDING, queue="old")], (), ["delete 0"], id="another queue"),
        pytest.param(2, [replace(PENDING, priority_class="old")], (), ["delete 0"], id="another class"),
        pytest.param(2, [replace(BASE, priority_class="old")], run(0, 1), [], id="an admitted base has been ordered"),
        pytest.param(2, [replace(PENDING, count=3)], (), ["delete 0"], id="another minReplicas"),
        pytest.param(2, [replace(PENDING, template_hash="old")], (), ["delete 0"], id="another template"),
        pytest.param(2, [replace(BASE, template_hash="old")], run(0, 1), [], id="an admitted base stays as it is"),
        pytest.param(3, [BASE, replace(THIRD, template_hash="old")], run(0, 1), ["delete 2"], id="an increment is"),
        pytest.param(2, [replace(BASE, is_finished=True)], (), ["delete 0"], id="somebody has finished it"),
        pytest.param(
            2,
            [replace(BASE, conditions=())],
            (make_pod(0), make_pod(1, "Pending")),
            ["set 0 PodsReady=False"],
            id="pods are not ready",
        ),
        pytest.param(2, [replace(BASE, conditions=())], run(0, 1), ["set 0 PodsReady=True"], id="pods are ready"),
        pytest.param(
            4,
            [BASE, THIRD, FOURTH],
            (make_pod(0), make_pod(1, "Pending"), *run(2, 3)),
            [],
            id="a pod of the base cannot be replaced, and the job trains with others",
        ),
        pytest.param(
            4,
            [BASE, THIRD, FOURTH],
            (*run(0, 1), make_pod(2, "Pending"), make_pod(3)),
            ["set 2 PodsReady=False"],
            id="a pod of an increment cannot be replaced",
        ),
        pytest.param(
            3,
            [BASE, THIRD],
            (make_pod(0), make_pod(1, "Pending"), make_pod(2, "Pending")),
            ["set 0 PodsReady=False", "set 2 PodsReady=False"],
            id="the job cannot train with those that are left",
        ),
        pytest.param(
            1,
            [BASE, THIRD],
            (make_pod(0, "Succeeded"), make_pod(1, "Succeeded"), make_pod(2)),
            ["set 0 reclaim 1"],
            id="a world that ends gives back what its members have used",
        ),
        pytest.param(
            0, [BASE], (make_pod(0, "Succeeded"), make_pod(1, "Succeeded", lingers=True)), [], id="a sidecar runs on"
        ),
    ],
)
def test_what_is_written(
    asks: int | None, workloads: list[Workload], pods: tuple[Pod, ...], expected: list[str]
) -> None:
    assert say(decide(Wish(SPEC, "gpus", asks), workloads, pods)) == expected


@pytest.mark.parametrize(
    ("workload", "pods", "expected"),
    [
        pytest.param(BASE, run(0), [], id="pods are left"),
        pytest.param(BASE, (make_pod(0, "Succeeded"),), ["set 0 Finished=True"], id="no pod runs"),
        pytest.param(replace(BASE, is_finished=True), (), ["let go 0"], id="it may be deleted"),
        pytest.param(replace(BASE, is_finished=True, finalizers=()), (), [], id="done"),
    ],
)
def test_a_finished_job(workload: Workload, pods: tuple[Pod, ...], expected: list[str]) -> None:
    assert say(decide(Wish(SPEC, "gpus", ended=(True, "all ended well")), [workload], pods)) == expected


@pytest.mark.parametrize(
    ("elastic", "sizes"),
    [
        pytest.param({}, [3, 4, 5, 6], id="one by one"),
        pytest.param({"replicaIncrementStep": 2}, [4, 6], id="steps"),
        pytest.param({"replicaDiscreteValues": [2, 3, 6]}, [3, 6], id="values"),
        pytest.param({"mesh": [{"name": "dp"}, {"name": "tp", "size": 2}]}, [4, 6], id="whole copies"),
    ],
)
def test_increments_lead_from_one_legal_size_to_the_next(elastic: dict[str, Any], sizes: list[int]) -> None:
    spec, found = make_spec(2, 6, elasticPolicy=elastic), [2]
    while found[-1] < 6:
        found.append(find_next_size(spec, found[-1]))
    assert found[1:] == sizes


def test_a_big_job_has_few_increments() -> None:
    spec = make_spec(8, 1000)
    made = decide(Wish(replace_hash(spec), "gpus", 1000), [make_workload(0, 8)], run(*range(8)))
    assert len(made) <= MOST_INCREMENTS
    assert sum(write.count for write in made if isinstance(write, Create)) == 992


def replace_hash(spec: Any) -> Any:
    assert spec.template_hash == SPEC.template_hash, "all of them have one template"
    return spec


STATES = ("pending", "reserved", "admitted", "evicted", "released")


@given(
    asks=st.integers(0, 6),
    increments=st.lists(
        st.tuples(st.integers(1, 2), st.integers(0, 1), st.sampled_from(STATES), st.booleans()), max_size=4
    ),
    base=st.sampled_from(STATES),
    pods=st.frozensets(st.integers(0, 7)),
)
def test_nothing_that_is_used_is_given_back(
    asks: int, increments: list[tuple[int, int, str, bool]], base: str, pods: frozenset[int]
) -> None:
    workloads, first = [make_workload(0, 2, base)], 2
    for count, more, state, is_deleting in increments:
        reclaimed = more if state in ("reserved", "admitted", "evicted") else 0
        workloads.append(make_workload(first, count + reclaimed, state, is_deleting=is_deleting, reclaimed=reclaimed))
        first += count
    writes = decide(Wish(SPEC, "gpus", asks), workloads, run(*sorted(pods)))
    told = {write.workload.name for write in writes if not isinstance(write, Ask)}
    for workload in workloads:
        if workload.evicted and workload.reserves and not pods & set(workload.covered):
            assert workload.name in told, "what nobody uses is given back"
    for write in writes:
        if isinstance(write, Create):
            assert not any(i in w.covered for w in workloads for i in range(write.first, write.first + write.count))
            assert write.first + write.count <= max(asks, 2)
            continue
        assert not isinstance(write, Adopt), "no Workload was made for it by others"
        kept = range(0)
        if isinstance(write, Set) and write.reclaimed is not None:
            kept = range(write.workload.first, write.workload.first + write.workload.count - write.reclaimed)
        gives_back = not isinstance(write, Set) or write.is_released or write.reclaimed is not None
        gives_back = gives_back and write.workload.reserves
        lost = set(write.workload.covered) - set(kept) if gives_back else set()
        assert not lost & pods
