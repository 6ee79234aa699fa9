"""Checkpoints with real processes on gloo: one gang saves, is damaged, restores at other sizes and is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from elasticjob.checkpoint import files
from torch_features import needs_fsdp_on_cpu
from worker.gang_helper import PROGRAMS, Member, run_gang


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    return run_gang(PROGRAMS / "checkpoint_program.py", 4, str(tmp_path_factory.mktemp("checkpoints")), timeout=110)


@pytest.mark.parametrize("kind", [pytest.param("fsdp", marks=needs_fsdp_on_cpu), "ddp"])
def test_a_world_of_another_size_restores_what_was_saved(gang: list[Member], kind: str) -> None:
    saved = gang[0].results[f"{kind} saved"]
    for member in gang[:3]:
        assert member.results[f"{kind} step"] == 8
        assert member.results[f"{kind} restored"] == saved
        assert member.results[f"{kind} used"] == 80
        assert member.results[f"{kind} skipped"] == []
        assert member.results[f"{kind} rate"] == pytest.approx(0.01)  # saved at twice that, with its factor


def test_old_checkpoints_are_deleted(gang: list[Member]) -> None:
    assert gang[0].results["ddp steps"] == [8, 6]
    assert gang[0].results["ddp nothing yet"] == 0


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("flipped", "checksum is wrong"),
        ("truncated", "bytes, not"),
        ("missing", "is missing"),
        ("no-manifest", "it was not finished"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_message(gang: list[Member], damage: str, reason: str) -> None:
    for member in gang[:3]:
        assert member.results[f"{damage} step"] == 6
        assert member.results[f"{damage} used"] == 60
        skipped = member.results[f"{damage} skipped"]
        assert [reason in one for one in skipped] == [True]
    assert reason in gang[0].stderr


def test_a_checkpoint_that_lacks_only_its_last_rename_is_restored(gang: list[Member]) -> None:
    for member in gang[:3]:
        assert member.results["unfinished step"] == 8
        assert member.results["unfinished skipped"] == []


def test_when_all_are_damaged_training_starts_anew(gang: list[Member]) -> None:
    assert gang[0].results["all step"] == 0
    assert len(gang[0].results["all skipped"]) == 2


def test_a_full_disk_is_one_clear_error_on_every_rank(gang: list[Member]) -> None:
    for member in gang[:2]:
        message = member.results["full"]
        assert "step 2 could not be saved" in message
        assert "rank 1: OSError: [Errno 27]" in message
        assert "checkpoints before it are untouched" in message
        assert member.results["left"] == [1]
        assert member.results["after"] == [3, 1]


def test_a_save_that_failed_leaves_its_room_to_others(gang: list[Member]) -> None:
    for member in gang[:2]:
        assert member.results["remains"] == ["step-00000001"]
    assert "full/.tmp-step-00000002" not in gang[0].stderr, "nothing has interrupted it"


def test_the_signal_at_one_rank_saves_on_all_and_answers_one_that_comes_late(gang: list[Member]) -> None:
    assert [member.results["heard"] for member in gang[:2]] == [[True], [True]]
    assert [member.results["asked"] for member in gang[:2]] == [[3], [3]]


def test_a_directory_that_cannot_be_is_named(gang: list[Member]) -> None:
    assert "rank 0 could not prepare the directory" in gang[1].results["no directory"]


def test_what_is_left_after_a_kill_can_be_restored(gang: list[Member]) -> None:
    assert gang[0].results["killed step"] >= 4
    assert gang[0].results["killed skipped"] == []


def test_the_loss_curve_is_that_of_a_fixed_world(tmp_path: Path) -> None:
    members = run_gang(PROGRAMS / "loss_program.py", 4, str(tmp_path))
    fixed = members[0].results["fixed"]
    changing = members[0].results["first"] + members[0].results["second"] + members[0].results["third"]
    assert members[0].results["sizes"] == [2, 4, 3]
    assert len(fixed) == len(changing) == 18
    assert changing == pytest.approx(fixed, rel=1e-4)
    assert fixed[-1] < fixed[0] / 2


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    return run_gang(PROGRAMS / "history_program.py", 2, str(tmp_path_factory.mktemp("history")))


@pytest.mark.parametrize("keep", [1, 2])
def test_saves_after_training_has_gone_back_are_kept_and_restored(history: list[Member], keep: int) -> None:
    assert history[0].results[f"damaged {keep}"] == 0
    assert history[0].results[f"steps {keep}"] == [150, 100][:keep]
    assert history[0].results[f"last {keep}"] == 150


def test_a_world_that_is_closed_waits_for_the_save(history: list[Member]) -> None:
    assert [member.results["closed"] for member in history] == [[60], [60]]


def test_a_save_that_a_lost_world_has_cut_off_is_made_up_for_in_the_next_one(history: list[Member]) -> None:
    assert history[0].results["lost asked"] == [True, False]
    assert history[0].results["lost told"] == ""
    assert history[0].results["lost steps"] == [201, 100]


def test_the_last_save_is_not_lost_in_silence(history: list[Member]) -> None:
    message = history[0].results["lost at the end told"]
    assert "step 200" in message
    assert "its world ended before the save was complete" in message
    assert history[0].results["lost at the end steps"] == [100]


def test_a_save_that_is_cut_off_is_told_with_the_remedy(history: list[Member]) -> None:
    assert history[0].results["destroyed"] == []
    assert "step 60 is not saved" in history[0].stderr
    assert "Call checkpoint.wait() before the script destroys them or ends" in history[0].stderr


def test_steps_are_read_from_names() -> None:
    names = ["step-00000010", "step-00000009", ".tmp-step-00000011", "step-x", "step-00000012.pt", "notes"]
    assert files.list_steps(names) == [10, 9]
    assert files.list_steps([files.folder_name(123456789)]) == [123456789]


@pytest.mark.parametrize(
    ("names", "torn"),
    [
        ([], None),
        (["step-00000004"], None),
        ([".tmp-step-00000004"], 4),
        (["step-00000004", ".tmp-step-00000004"], 4),
        (["step-00000008", ".tmp-step-00000004"], None),
        (["step-00000008", "step-00000008.uncertified", ".tmp-step-00000004"], 4),
        ([".tmp-step-00000004", ".tmp-step-00000008", ".tmp-step-00000006"], 8),
        ([".old-step-00000004", ".deleted-1", "notes"], None),
    ],
)
def test_a_save_that_nobody_completes(tmp_path: Path, names: list[str], torn: int | None) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert files.find_torn(tmp_path) == torn


def test_a_save_that_is_under_way_is_not_torn(tmp_path: Path) -> None:
    temporary = tmp_path / files.temporary_name(4)
    temporary.mkdir()
    with files.hold(temporary):
        assert files.find_torn(tmp_path) is None
    assert files.find_torn(tmp_path) == 4


@pytest.mark.parametrize(
    ("steps", "keep", "expired"),
    [([3, 2, 1], 2, [1]), ([3, 1], 0, []), ([5], 3, []), ([8, 6, 4], 1, [6, 4]), ([20, 10, 40, 30], 1, [10, 40, 30])],
)
def test_find_expired(steps: list[int], keep: int, expired: list[int]) -> None:
    assert files.find_expired(steps, keep) == expired


def test_publishing_a_step_again_replaces_it(tmp_path: Path) -> None:
    for text in ("old", "new"):
        temporary = tmp_path / files.temporary_name(1)
        temporary.mkdir()
        (temporary / "data").write_text(text)
        files.publish(temporary, tmp_path / files.folder_name(1), {"files": files.seal_files([temporary / "data"])})
    assert Counter(path.name for path in tmp_path.iterdir()) == Counter(["step-00000001"])
    assert (tmp_path / "step-00000001" / "data").read_text() == "new"
