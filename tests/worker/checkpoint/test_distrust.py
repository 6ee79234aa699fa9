"""Checkpoints that were saved while a replica was wrong are restored last, until they are saved again."""

from __future__ import annotations

from pathlib import Path

from elasticjob.checkpoint import distrust, files
from elasticjob.context import agreement


def save(directory: Path, step: int) -> None:
    temporary = directory / files.temporary_name(step)
    files.make_empty(temporary)
    files.publish(temporary, directory / files.folder_name(step), {"files": {}})


def steps(directory: Path) -> list[int]:
    return files.list_steps(path.name for path in directory.iterdir())


def test_what_was_saved_since_the_ranks_agreed_comes_last(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    assert files.distrust(tmp_path, 20) == [30, 40]
    assert steps(tmp_path) == [20, 10, 40, 30]
    assert files.distrust(tmp_path, 20) == [30, 40], "every rank does it"
    save(tmp_path, 30)
    assert steps(tmp_path) == [30, 20, 10, 40], "a step that was made again is as good as any"


def test_a_save_that_is_under_way_is_marked_too(tmp_path: Path) -> None:
    save(tmp_path, 10)
    temporary = tmp_path / files.temporary_name(20)
    files.make_empty(temporary)
    assert files.distrust(tmp_path, 10) == [20]
    files.publish(temporary, tmp_path / files.folder_name(20), {"files": {}})
    assert steps(tmp_path) == [10, 20]


def test_an_expired_checkpoint_takes_its_mark_with_it(tmp_path: Path) -> None:
    for step in (10, 20):
        save(tmp_path, step)
    files.distrust(tmp_path, 0)
    files.delete_expired(tmp_path, steps(tmp_path), keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-00000020.uncertified"]


def test_a_new_checkpoint_displaces_those_that_are_not_certified(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    files.distrust(tmp_path, 10)
    save(tmp_path, 20)
    files.delete_expired(tmp_path, steps(tmp_path), keep=1)
    assert steps(tmp_path) == [20]


def test_the_checkpoints_of_a_session_that_goes_back_are_marked(tmp_path: Path) -> None:
    for step in (5, 15):
        save(tmp_path, step)
    distrust.watch(tmp_path, None)
    distrust.watch(tmp_path / "never made", None)
    agreement.go_back(7)
    assert steps(tmp_path) == [5, 15]


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    save(tmp_path, 15)
    (tmp_path / files.marker_name(15)).symlink_to(tmp_path / "no" / "such" / "folder")
    distrust.watch(tmp_path, None)
    agreement.go_back(7)
