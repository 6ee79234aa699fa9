"""Snapshots in memory with real processes on gloo: each rank is a pod with a folder of its own."""

from __future__ import annotations

import pytest

from torch_features import needs_fsdp_on_cpu
from worker.gang_helper import PROGRAMS, Member, run_gang


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    return run_gang(PROGRAMS / "memory_program.py", 3, str(tmp_path_factory.mktemp("memory")), timeout=280)


@pytest.mark.parametrize("name", ["same", "newcomer", "smaller"])
def test_a_restart_reads_the_last_step_from_memory(gang: list[Member], name: str) -> None:
    for member in gang[: 2 if name == "smaller" else 3]:
        assert member.results[f"{name} step"] == 5
        assert member.results[f"{name} state"] == member.results["ddp at 5"]
        assert member.results[f"{name} skipped"] == []


def test_no_file_is_written_for_a_snapshot(gang: list[Member]) -> None:
    assert gang[0].results["ddp files"] == []


def test_a_damaged_snapshot_is_skipped_on_all_ranks(gang: list[Member]) -> None:
    for member in gang:
        assert member.results["damaged step"] == 0
        assert ["its checksum is wrong" in one for one in member.results["damaged skipped"]] == [True]


def test_a_state_that_changed_while_it_was_copied_is_no_snapshot_or_that_of_its_step(gang: list[Member]) -> None:
    assert gang[0].results["changed"] in (0, 1)


def test_without_an_agent_files_are_written_as_ever(gang: list[Member]) -> None:
    for member in gang:
        assert member.results["without memory"] == 2
    assert "no snapshots in memory" in gang[0].stderr


def test_a_killed_world_restores_exactly_one_step(gang: list[Member]) -> None:
    """Two pods that were killed in the middle, and a third that is new."""
    for member in gang:
        assert member.results["killed step"] >= 2
        assert member.results["killed step"] == gang[0].results["killed step"]
        assert member.results["killed state"] == pytest.approx(member.results["killed expected"], abs=1e-3)


@needs_fsdp_on_cpu
def test_a_sharded_model_restores_its_parts(gang: list[Member]) -> None:
    for member in gang:
        assert member.results["sharded step"] == 5
        assert member.results["sharded state"] == member.results["fsdp at 5"]


@needs_fsdp_on_cpu
def test_a_lost_part_comes_from_its_copy_in_another_pod(gang: list[Member]) -> None:
    for member in gang:
        assert member.results["part lost step"] == 5
        assert member.results["part lost state"] == member.results["fsdp at 5"]
        assert member.results["part lost skipped"] == []


@needs_fsdp_on_cpu
def test_a_lost_part_and_its_lost_copy_mean_the_last_file(gang: list[Member]) -> None:
    for member in gang:
        assert member.results["two lost step"] == 4
        assert member.results["two lost state"] == member.results["fsdp at 4"]
