"""The folders of checkpoints: what a kill at any moment leaves, and what is kept after training has gone back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from elasticjob.checkpoint import files


def write(directory: Path, step: int, text: str = "saved") -> Path:
    temporary = directory / files.temporary_name(step)
    files.make_empty(temporary)
    (temporary / "data").write_text(text)
    return temporary


def save(directory: Path, step: int, text: str = "saved", keep: int = 0) -> None:
    temporary = write(directory, step, text)
    entries = files.seal_files([temporary / "data"])
    files.publish(temporary, directory / files.folder_name(step), {"files": entries})
    files.delete_expired(directory, steps(directory), keep, step)


def steps(directory: Path) -> list[int]:
    return files.list_steps(path.name for path in directory.iterdir())


def read(directory: Path, step: int) -> str:
    return (directory / files.folder_name(step) / "data").read_text()


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_what_was_just_saved_is_never_deleted(tmp_path: Path, keep: int) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step, keep=keep)
    for count, step in enumerate((50, 60, 70, 80), start=1):  # training has gone back
        save(tmp_path, step, keep=keep)
        assert steps(tmp_path)[: min(count, keep)] == sorted((50, 60, 70, 80)[:count], reverse=True)[:keep]
        assert len(steps(tmp_path)) == keep
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.endswith("uncertified")) == [
            files.marker_name(step) for step in sorted(steps(tmp_path)) if step >= 100
        ]


def test_after_going_back_the_newer_history_is_restored(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    save(tmp_path, 15)
    assert files.split_steps([path.name for path in tmp_path.iterdir()]) == ([15, 10], [30, 20])
    save(tmp_path, 20)
    assert steps(tmp_path) == [20, 15, 10, 30]


@pytest.mark.parametrize(
    ("steps", "keep", "published", "damaged", "expired"),
    [
        pytest.param([300, 200, 100], 2, None, set(), [100], id="the oldest"),
        pytest.param([300, 200, 100], 2, 300, {200}, [200], id="the damaged"),
        pytest.param([300, 200, 100], 1, 100, set(), [300, 200], id="not what was just published"),
        pytest.param([300, 200], 1, 200, {200}, [300], id="not even if it was damaged before"),
        pytest.param([300, 200], 0, 200, {300}, [], id="all are kept"),
    ],
)
def test_what_expires(
    steps: list[int], keep: int, published: int | None, damaged: set[int], expired: list[int]
) -> None:
    assert files.find_expired(steps, keep, published, damaged) == expired


def test_a_kill_at_any_moment_of_publishing_leaves_a_checkpoint_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    moments = 0
    while True:
        folder = tmp_path / str(moments)
        folder.mkdir()
        save(folder, 7, "first")
        temporary = write(folder, 7, "second")
        entries = files.seal_files([temporary / "data"])
        left = moments

        def interrupt(one: Path, other: Path, *, real: object = Path.replace) -> Path:
            nonlocal left
            if left == 0:
                raise KilledError
            left -= 1
            return real(one, other)  # type: ignore[operator,no-any-return]

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", interrupt)
            try:
                files.publish(temporary, folder / files.folder_name(7), {"files": entries})
                break
            except KilledError:
                pass
        files.recover(folder)
        assert steps(folder) == [7]
        assert read(folder, 7) in ("first", "second")
        assert sorted(path.name for path in folder.iterdir()) == ["step-00000007"]
        moments += 1
    assert moments >= 2, "the old one is moved away, and the new one into its place"


def test_a_save_that_lacks_only_its_rename_is_adopted(tmp_path: Path) -> None:
    save(tmp_path, 5)
    (tmp_path / files.folder_name(5)).rename(tmp_path / files.temporary_name(5))
    write_unfinished = tmp_path / files.temporary_name(6)
    write_unfinished.mkdir()
    assert files.recover(tmp_path) == ([5], [files.temporary_name(6)])
    assert steps(tmp_path) == [5]


def test_a_writer_whose_folder_was_deleted_publishes_nothing(tmp_path: Path) -> None:
    temporary = write(tmp_path, 9)
    files.recover(tmp_path)  # the next world begins
    with pytest.raises(OSError, match=r"tmp-step-00000009"):
        files.publish(temporary, tmp_path / files.folder_name(9), {"files": {}})
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_deletion_left_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 3)
    shutil.copytree(tmp_path / files.folder_name(3), tmp_path / ".deleted-0")
    files.recover(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003"]


@pytest.mark.parametrize("text", ["[1, 2]", "{}", '{"files": {"data": 5}}', '{"files": {"data": ["5", 1]}}', '{"files'])
def test_a_damaged_manifest_is_told_as_one(tmp_path: Path, text: str) -> None:
    (tmp_path / files.MANIFEST).write_text(text)
    with pytest.raises(ValueError, match="its manifest cannot be read"):
        files.read_manifest(tmp_path)
