"""When two writers fight about the size of a job."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob_operator.model import contests


def entry(manager: str, *path: str, operation: str = "Update") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for part in reversed(path):
        fields = {part: fields}
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


@pytest.mark.parametrize(
    ("entries", "writer"),
    [
        pytest.param([], "", id="nothing is known"),
        pytest.param([entry("a", "f:spec", "f:replicas")], "a", id="one"),
        pytest.param([entry("a", "f:spec", "f:template"), entry("b", "f:spec", "f:replicas")], "b", id="of the field"),
        pytest.param([entry("a", "f:spec", "f:replicas"), entry("b", "f:spec", "f:replicas")], "b", id="the last one"),
        pytest.param(["x", {"fieldsV1": 3}, {"fieldsV1": {"f:spec": []}}, entry("a", "f:status")], "", id="nonsense"),
        pytest.param("x", "", id="no list"),
    ],
)
def test_who_writes_the_size(entries: Any, writer: str) -> None:
    assert contests.find_writer({"managedFields": entries}) == writer


def history(*changes: tuple[float, int, str]) -> contests.History:
    found: contests.History = ()
    for at, replicas, writer in changes:
        found = contests.note(found, replicas, writer, at)
    return found


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param([(0, 1, "a"), (5, 2, "b"), (9, 1, "a"), (12, 2, "b")], "a (to 1) and b (to 2)", id="in turn"),
        pytest.param([(0, 1, "a"), (5, 2, "b"), (9, 1, "a")], "", id="not often"),
        pytest.param([(0, 1, "a"), (5, 2, "a"), (9, 1, "a"), (12, 2, "a")], "", id="one alone"),
        pytest.param([(0, 1, "a"), (5, 2, "b"), (9, 1, "b"), (12, 2, "b")], "", id="one after who made the job"),
        pytest.param([(0, 1, "a"), (5, 1, "b"), (9, 1, "a"), (12, 1, "b")], "", id="they agree"),
        pytest.param([(0, 1, "a"), (90, 2, "b"), (180, 1, "a"), (270, 2, "b")], "", id="slowly"),
        pytest.param([(0, 1, ""), (5, 2, ""), (9, 1, ""), (12, 2, "")], "", id="by nobody who is known"),
    ],
)
def test_a_fight_about_the_size(changes: list[tuple[float, int, str]], told: str) -> None:
    found = contests.find_contest(history(*changes), changes[-1][0] + 1)
    assert (found is not None) == bool(told)
    assert found is None or told in found.message


def test_a_fight_is_over_once_there_are_too_few_changes() -> None:
    changes = history((0, 1, "a"), (5, 2, "b"), (9, 1, "a"), (12, 2, "b"), (20, 1, "a"))
    found = contests.find_contest(changes, 21)
    assert found is not None
    assert found.until == 5 + contests.WINDOW_SECONDS
    assert contests.find_contest(changes, found.until - 1) is not None
    assert contests.find_contest(changes, found.until) is None


def test_the_memory_is_short() -> None:
    assert len(history(*((i, i % 2, "ab"[i % 2]) for i in range(1000)))) <= contests.MOST
