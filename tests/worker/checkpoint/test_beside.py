"""Snapshots of what is on a device: copied beside the training, on a stand-in. `make gpu` measures a real one."""

from __future__ import annotations

import pytest

from worker.gang_helper import PROGRAMS, Member, run_gang


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Member:
    return run_gang(PROGRAMS / "beside_program.py", 1, str(tmp_path_factory.mktemp("beside")))[0]


def test_the_memory_is_registered_once_the_optimizer_has_its_state(results: Member) -> None:
    assert results.results["prepared"] == 2
    assert results.results["unregistered"] == 0


def test_the_training_goes_on_until_it_overwrites_what_is_copied(results: Member) -> None:
    assert results.results["taken"] is True
    assert results.results["busy"] == [True, 0], "nothing is copied yet, and nothing has waited"
    assert results.results["held back"] is True


def test_a_snapshot_is_of_its_step_however_late_it_is_copied(results: Member) -> None:
    assert results.results["beside"] is True


def test_what_changes_outside_of_the_optimizer_is_no_snapshot(results: Member) -> None:
    assert results.results["outside"] == 0


def test_a_device_that_cannot_register_memory_copies_in_order(results: Member) -> None:
    assert results.results["plain"] is True


def test_a_recorded_step_cannot_be_held_back_so_copies_are_in_order(results: Member) -> None:
    assert results.results["captured"] == [0, True]
