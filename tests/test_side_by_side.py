"""Tests that run side by side pass, fail and are skipped as they would by themselves."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from side_by_side import MAKERS, Stories, Story, find_shared, together

SECONDS = 20.0


def make_stories(tmp_path: Path, *tests: Callable[..., None], **shared: Any) -> Stories:
    stories = Stories(None)
    stories.all = {test.__name__: Story(test, shared, lambda: tmp_path) for test in tests}
    return stories


def test_all_run_at_once_and_each_tells_how_it_went(tmp_path: Path) -> None:
    meeting = threading.Barrier(3)

    def passes() -> None:
        meeting.wait(SECONDS)

    def fails() -> None:
        meeting.wait(SECONDS)
        raise AssertionError("as it should")

    def skips() -> None:
        meeting.wait(SECONDS)
        pytest.skip("not here")

    stories = make_stories(tmp_path, passes, fails, skips)
    stories.run(3)
    stories.tell("passes")
    with pytest.raises(AssertionError, match="as it should"):
        stories.tell("fails")
    with pytest.raises(pytest.skip.Exception, match="not here"):
        stories.tell("skips")


def test_what_each_has_printed_is_shown_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meeting = threading.Barrier(2)

    def one() -> None:
        print("of one")
        meeting.wait(SECONDS)
        raise AssertionError

    def other() -> None:
        meeting.wait(SECONDS)
        print("of the other")

    stories = make_stories(tmp_path, one, other)
    stories.run(2)
    assert capsys.readouterr().out == ""
    with pytest.raises(AssertionError):
        stories.tell("one")
    assert capsys.readouterr().out.strip() == "of one"
    stories.tell("other")
    assert capsys.readouterr().out.strip() == "of the other"


def test_no_more_run_than_are_wanted(tmp_path: Path) -> None:
    alone = threading.Lock()

    def test(number: int) -> None:
        assert alone.acquire(blocking=False)
        threading.Event().wait(0.02)
        alone.release()

    stories = Stories(None)
    stories.all = {str(number): Story(test, {"number": number}, lambda: tmp_path) for number in range(4)}
    stories.run(1)
    for number in range(4):
        stories.tell(str(number))


def test_one_that_is_called_again_runs_again(tmp_path: Path) -> None:
    runs: list[int] = []

    def test() -> None:
        runs.append(1)
        assert len(runs) > 1

    stories = make_stories(tmp_path, test)
    stories.run(1)
    with pytest.raises(AssertionError):
        stories.tell("test")
    stories.tell("test")


def test_what_is_its_own_is_made_for_it_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def make_inner(tmp_path: Path, outside: str) -> Iterator[str]:
        yield f"inner of {outside}"
        seen.append("inner ended")

    @contextlib.contextmanager
    def make_outer(inner: str) -> Iterator[str]:
        yield f"outer of {inner}"
        seen.append("outer ended")

    def test(outer: str, inner: str) -> None:
        seen.extend([outer, inner])

    monkeypatch.setitem(MAKERS, "inner", make_inner)
    monkeypatch.setitem(MAKERS, "outer", make_outer)
    assert find_shared(test) == ["outside"]
    assert list(inspect.signature(together(test)).parameters) == ["request", "stories", "outside"]
    stories = make_stories(tmp_path, test, outside="the world")
    stories.run(1)
    stories.tell("test")
    inner = "inner of the world"
    assert seen == [f"outer of {inner}", inner, "outer ended", "inner ended"]


SEEN: list[str] = []


@pytest.fixture(scope="module", params=["one", "the other"])
def base(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def above(base: str) -> str:
    return f"on {base}"


@pytest.mark.parametrize("word", ["a", "b"])
@together
def test_it_runs_for_each_parameter_behind_it(above: str, word: str) -> None:
    SEEN.append(f"{word} {above}")


def test_it_has_run_once_for_each(above: str) -> None:
    assert sorted(one for one in SEEN if one.endswith(above)) == [f"a {above}", f"b {above}"]
    assert SEEN[-1].endswith(above), "and not before those of the one before have ended"
