"""Requests that are made ahead: which ones, and how many."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from elasticjob.archive.ahead import AT_ONCE, Ahead, Answer

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("asked", "called"),
    [
        pytest.param("abcdefgh", "abcdefgh", id="in order, each once"),
        pytest.param("aeh", "abcdefgh", id="what nobody asks for is dropped"),
        pytest.param("ah", "abcdh", id="what is far ahead is not waited for"),
        pytest.param("aab", "aabcde", id="again, so it is called again"),
        pytest.param("ba", "bcdea", id="what was passed over is called"),
        pytest.param("xa", "xabcd", id="another one"),
    ],
)
def test_what_comes_next_is_called_meanwhile(asked: Sequence[str], called: str) -> None:
    found = list[str]()

    def call(key: str) -> str:
        found.append(key)
        return key.upper()

    ahead = Ahead(call, "abcdefgha")
    assert [ahead.begin(key).take(lambda: None) for key in asked] == [key.upper() for key in asked]
    for answer in ahead._begun.values():
        answer.take(lambda: None)
    assert sorted(found) == sorted(called)


def test_no_more_are_called_than_fit_in_memory() -> None:
    may_end, begun = threading.Event(), list[int]()

    def call(key: int) -> int:
        begun.append(key)
        may_end.wait(30)
        return key

    ahead = Ahead(call, range(100))
    answers = [ahead.begin(0)]
    assert len(ahead._begun) + len(answers) == AT_ONCE
    may_end.set()
    assert answers[0].take(lambda: None) == 0
    assert len(begun) <= AT_ONCE


def test_a_wait_ends_at_its_deadline_and_by_its_pause() -> None:
    never = threading.Event()
    answer = Answer(lambda: never.wait(60))
    with pytest.raises(TimeoutError):
        answer.take(lambda: None, 0.0)

    class OverError(Exception):
        pass

    def end() -> None:
        raise OverError

    with pytest.raises(OverError):
        answer.take(end)
    never.set()
