"""What the store knows of Workloads, however many there are."""

from __future__ import annotations

from typing import Any

from controller.counted_work import count_lines
from controller.integrations.kueue.test_integration import admitted
from elasticjob_operator.integrations.kueue.store import Store


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


def count_replacing(count: int) -> int:
    store, _ = fill(count)
    return count_lines(lambda: store.replace_workloads([], "9999"))


def count_deleting(count: int) -> int:
    store, woken = fill(count)
    lines = count_lines(lambda: store.apply_workload("DELETED", workload_of(1)))
    assert woken == ["job-1"]
    return lines


def test_workloads_that_a_list_lacks_cost_as_much_each_however_many_there_are() -> None:
    assert count_replacing(100) < 2.4 * count_replacing(50)


def test_a_workload_that_is_deleted_costs_nothing_for_each_of_the_others() -> None:
    assert count_deleting(500) < 1.5 * count_deleting(50)


def test_a_workload_without_its_owner_is_no_jobs_any_more() -> None:
    """Somebody took it away, or wrote so much into the Workload that only its identity can be read."""
    store, woken = fill(2)
    metadata = workload_of(1)["metadata"]
    identity = {name: metadata[name] for name in ("namespace", "name", "uid", "resourceVersion")}
    store.apply_workload("MODIFIED", {"metadata": identity})
    assert (woken, [key[1] for key in sorted(store.keys())]) == (["job-1"], ["job-0"])
