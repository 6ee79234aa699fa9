"""What the store knows of Workloads, however many there are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from controller.counted_work import count_lines, count_work
from controller.integrations.kueue.test_integration import admitted
from controller.integrations.kueue.test_quota import JOB, condition
from elasticjob_operator.integrations.kueue.store import KEPT_BYTES, MOST_KEPT_BYTES, Store
from elasticjob_operator.integrations.kueue.values import Workload


def workload_of(number: int) -> dict[str, Any]:
    raw = admitted()
    owner = {**raw["metadata"]["ownerReferences"][0], "name": f"job-{number}", "uid": f"job-{number}"}
    identity = {"name": f"w{number}", "uid": f"w{number}", "ownerReferences": [owner]}
    return {**raw, "metadata": {**raw["metadata"], **identity}}


def fill(count: int) -> tuple[Store, list[str]]:
    woken: list[str] = []
    store = Store(lambda key: woken.append(key[1]))
    for number in range(count):
        store.put_workload(workload_of(number))
    woken.clear()
    return store, woken


def test_a_workload_that_is_deleted() -> None:
    store, woken = fill(3)
    raw = workload_of(1)
    store.apply_workload("DELETED", {**raw, "metadata": {**raw["metadata"], "uid": "an earlier one"}})
    assert (woken, len(store.keys())) == ([], 3)
    store.apply_workload("DELETED", raw)
    store.apply_workload("DELETED", raw)
    assert woken == ["job-1"]
    assert [key[1] for key in sorted(store.keys())] == ["job-0", "job-2"]


@pytest.mark.parametrize(("version", "is_there"), [("41", False), ("43", True)])
def test_a_workload_whose_deletion_was_told_does_not_come_back(version: str, is_there: bool) -> None:
    """By the answer to a write that was under way: its job would go on with quota that others have by then."""
    store, _ = fill(1)
    metadata = workload_of(0)["metadata"]
    store.apply_workload("DELETED", {**workload_of(0), "metadata": {**metadata, "resourceVersion": "42"}})
    store.put_workload({**workload_of(0), "metadata": {**metadata, "resourceVersion": version}})
    assert bool(store.keys()) == is_there


@pytest.mark.parametrize(("version", "is_there"), [("41", False), ("43", True)])
def test_a_workload_that_a_list_lacks_does_not_come_back(version: str, is_there: bool) -> None:
    store, _ = fill(1)
    asyncio.run(store.replace_workloads([], "42"))
    store.put_workload({**workload_of(0), "metadata": {**workload_of(0)["metadata"], "resourceVersion": version}})
    assert bool(store.keys()) == is_there


def count_replacing(count: int) -> int:
    store, _ = fill(count)
    return count_lines(lambda: asyncio.run(store.replace_workloads([], "9999")))


def count_deleting(count: int) -> int:
    store, woken = fill(count)
    lines = count_lines(lambda: store.apply_workload("DELETED", workload_of(1)))
    assert woken == ["job-1"]
    return lines


def test_workloads_that_a_list_lacks_cost_as_much_each_however_many_there_are() -> None:
    none = count_replacing(0)
    assert count_replacing(100) - none < 2.4 * (count_replacing(50) - none)


def test_a_workload_that_is_deleted_costs_nothing_for_each_of_the_others() -> None:
    assert count_deleting(500) < 1.5 * count_deleting(50)


def test_a_workload_without_its_owner_is_no_jobs_any_more() -> None:
    """Somebody took it away, or wrote so much into the Workload that only its identity can be read."""
    store, woken = fill(2)
    metadata = workload_of(1)["metadata"]
    identity = {name: metadata[name] for name in ("namespace", "name", "uid", "resourceVersion")}
    store.apply_workload("MODIFIED", {"metadata": identity})
    assert (woken, [key[1] for key in sorted(store.keys())]) == (["job-1"], ["job-0"])


def stuffed(number: int, namespace: str, size: int = 100_000) -> dict[str, Any]:
    """One that admits its job, with much in a condition."""
    raw = workload_of(number)
    long = {**condition("Anybody's"), "message": "x" * size}
    status = {**raw["status"], "conditions": [*raw["status"]["conditions"], long]}
    return {**raw, "metadata": {**raw["metadata"], "namespace": namespace}, "status": status}


def look(store: Store, number: int, namespace: str) -> Workload:
    job = replace(JOB, namespace=namespace, name=f"job-{number}", uid=f"job-{number}")
    (found,) = store.workloads(job)
    return found


def weigh(store: Store, namespace: str, count: int) -> int:
    """The characters of the conditions that are kept."""
    found = (look(store, number, namespace) for number in range(count))
    return sum(len(str(one.get("message", ""))) for workload in found for one in workload.conditions)


def test_what_long_workloads_take_is_bounded_however_many_there_are() -> None:
    """Whoever may write Workloads makes thousands, of jobs that need not exist; the operator keeps them all."""
    store = Store(lambda key: None)
    for number in range(2_000):
        store.put_workload(stuffed(number, "evil"))
    assert 0 < weigh(store, "evil", 2_000) <= MOST_KEPT_BYTES / 2 + 2_000 * KEPT_BYTES
    last = look(store, 1_999, "evil")
    assert not last.is_admitted and not last.conditions
    assert "other Workloads of the namespace" in last.message
    assert look(store, 0, "evil").is_admitted
    store.put_workload(stuffed(0, "modest"))
    assert look(store, 0, "modest").is_admitted, "others have room"


@pytest.mark.parametrize("goes", ["deleted", "lacking in a list"])
def test_the_room_of_a_workload_that_goes_is_free_again(goes: str) -> None:
    store, kept = Store(lambda key: None), list[int]()
    for _ in range(3):
        for number in range(500):
            store.put_workload(stuffed(number, "team"))
        kept.append(weigh(store, "team", 500))
        if goes == "deleted":
            for number in range(500):
                store.apply_workload("DELETED", stuffed(number, "team"))
        else:
            asyncio.run(store.replace_workloads([], workload_of(0)["metadata"]["resourceVersion"]))
        assert not store.keys()
    assert kept[0] == kept[1] == kept[2] > 0


def test_a_workload_that_has_become_short_leaves_its_room() -> None:
    store = Store(lambda key: None)
    for version in range(1_000):
        raw = stuffed(0, "team", 100_000 if version % 2 else 1)
        store.put_workload({**raw, "metadata": {**raw["metadata"], "resourceVersion": str(100 + version)}})
        assert look(store, 0, "team").is_admitted, version


def test_what_many_workloads_take_is_bounded_though_none_of_them_is_long() -> None:
    store, count = Store(lambda key: None), 15_000
    for number in range(count):
        store.put_workload(stuffed(number, "evil", 7_000))
    assert weigh(store, "evil", count) <= MOST_KEPT_BYTES / 2 + 4_096 * KEPT_BYTES
    assert "other Workloads of the namespace" in look(store, count - 1, "evil").message
    for number in range(count):
        store.apply_workload("DELETED", stuffed(number, "evil", 7_000))
    store.put_workload(stuffed(0, "evil"))
    assert look(store, 0, "evil").is_admitted, "there is room again"


def count_looking(count: int, job_uid: str, stamp: str | None) -> int:
    """What a pass of a job costs that so many Workloads name as their owner."""
    store, owner = Store(lambda key: None), admitted()["metadata"]["ownerReferences"]
    for number in range(count):
        raw = workload_of(number)
        of_one = {"ownerReferences": [{**owner[0], "uid": job_uid}], "deletionTimestamp": stamp}
        store.put_workload({**raw, "metadata": {**raw["metadata"], **of_one}})
    return count_work(lambda: (store.workloads(JOB), store.left_over(JOB.key, JOB.uid)))


@pytest.mark.parametrize("stamp", [None, "2026-01-01T00:00:00Z"], ids=["there", "leaving"])
@pytest.mark.parametrize("job_uid", [JOB.uid, "an earlier one"])
def test_a_job_looks_at_no_more_workloads_however_many_name_it(stamp: str | None, job_uid: str) -> None:
    assert count_looking(3_000, job_uid, stamp) < 1.2 * count_looking(300, job_uid, stamp)


def test_ordinary_workloads_need_no_room() -> None:
    store, _ = fill(5_000)
    assert look(store, 4_999, JOB.namespace).is_admitted
