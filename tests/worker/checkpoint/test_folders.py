"""The folder of a training that another process uses too, or that no other rank uses."""

from __future__ import annotations

import pytest

from worker.gang_helper import PROGRAMS, Member, run_gang


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    return run_gang(PROGRAMS / "folders_program.py", 2, str(tmp_path_factory.mktemp("folders")), timeout=150)


def test_who_reads_beside_a_training_leaves_the_save_that_is_under_way(gang: list[Member]) -> None:
    assert [member.results["reader"] for member in gang] == [[[1, 1.0], None, [1, 2]]] * 2


def test_who_writes_beside_a_training_leaves_the_save_that_is_under_way(gang: list[Member]) -> None:
    assert [member.results["writer"] for member in gang] == [[[3, 1], None, [1, 2, 3]]] * 2


def test_folders_that_the_ranks_do_not_share_are_refused_by_the_first_save(gang: list[Member]) -> None:
    for member in gang:
        said = member.results["own"]
        assert said.startswith("CheckpointFailedError: step 1 could not be saved"), said
        assert "rank 1" in said
        assert "a volume that all pods mount" in said
        assert member.results["own folders"] == 0


@pytest.mark.parametrize(
    ("number", "expected"),
    [("int64 3", [False, None, 3]), ("Tensor 4", [True, None, 4])],
)
def test_a_step_may_be_a_number_of_numpy_or_torch(gang: list[Member], number: str, expected: list[object]) -> None:
    for member in gang:
        assert member.results[f"step {number}"] == expected


@pytest.mark.parametrize("number", ["int -1", "float 1.5"])
def test_a_step_that_is_no_count_is_named(gang: list[Member], number: str) -> None:
    for member in gang:
        said = member.results[f"step {number}"]
        assert said.startswith("ConfigurationError: the step to save"), said
