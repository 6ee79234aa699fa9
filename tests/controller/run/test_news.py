"""Which news of which job may be told when."""

from __future__ import annotations

import pytest

from elasticjob_operator.run import news
from elasticjob_operator.run.news import JobNews, News


def tell(all_news: News, jobs: list[JobNews], namespace: str, seconds: range) -> int:
    """How often these jobs may tell if each of them always has news, ten times a second."""
    told = 0
    for second in seconds:
        for tenth in range(10):
            told += sum(all_news.may_tell(namespace, job, second + tenth / 10) for job in jobs)
    return told


def make(number: int) -> list[JobNews]:
    made = [JobNews() for _ in range(number)]
    for one in made:
        one.budget.at = 0.0
    return made


@pytest.mark.parametrize(
    ("jobs", "at_once", "per_second"),
    [
        pytest.param(1, 61, 0.6, id="a job alone has its own budget"),
        pytest.param(60, 60 + 120, 60 / 10 + 5, id="a namespace has hardly more with many"),
        pytest.param(1000, 1000 + 120, 1000 / 10 + 5, id="but each may tell in ten seconds"),
    ],
)
def test_a_namespace_has_a_budget(jobs: int, at_once: int, per_second: float) -> None:
    one, made = News(), make(jobs)
    assert tell(one, made, "t", range(10)) <= at_once + 10 * per_second
    seconds = 100
    assert 0.8 * per_second * seconds <= tell(one, made, "t", range(10, 10 + seconds)) <= 1.1 * per_second * seconds


def test_passes_that_take_long_get_no_more() -> None:
    """Of each two jobs, one tells with the time at which its pass began, which was a while ago."""
    one, jobs = News(), make(60)
    told = 0
    for tenth in range(300):
        now = tenth / 10
        told += sum(one.may_tell("t", job, max(0.0, now - 5.0 * (index % 2))) for index, job in enumerate(jobs))
    assert told <= 60 + 120 + 30 * (60 / 10 + 5)


def test_namespaces_do_not_share_one() -> None:
    one = News()
    tell(one, make(60), "greedy", range(30))
    assert tell(one, make(1), "modest", range(30, 35)) > 40


def test_a_namespace_that_is_forgotten_begins_anew() -> None:
    one, (job,) = News(), make(1)
    for number in range(news.NAMESPACES + 10):
        job.told_at = 0.0
        one.may_tell(f"n{number}", job, 1.0)
    assert len(one._budgets) == news.NAMESPACES
