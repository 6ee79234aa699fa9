"""Background tasks continue after any error."""

from __future__ import annotations

import pytest

from elasticjob_operator.backoff import find_pause
from elasticjob_operator.errors import UsageError
from elasticjob_operator.kube import supervise
from elasticjob_operator.kube.supervise import insist, keep_going
from elasticjob_operator.rest.errors import ApiError

pytestmark = pytest.mark.timeout(30)


class Work:
    """Raises these, one a run, then ends."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.runs = 0

    async def __call__(self) -> int:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.runs


async def test_it_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    work, restarts = Work(RecursionError("deep"), ApiError(500, "", "no")), list[str]()

    async def run() -> None:
        await work()

    await keep_going("the watch", run, restarts.append)
    assert work.runs == 3 and restarts == ["the watch"] * 2
    assert "the watch failed; this is a bug" in caplog.text and "RecursionError: deep" in caplog.text
    assert "the watch: 500 : no; retrying in" in caplog.text


async def test_what_only_a_person_can_mend_ends_it() -> None:
    async def run() -> None:
        raise UsageError("give another name")

    with pytest.raises(UsageError):
        await keep_going("the watch", run, lambda name: None)


async def test_an_answer_is_waited_for_unless_it_is_a_refusal() -> None:
    assert await insist(Work(ApiError(0, "NoReply", "gone"))) == 2
    with pytest.raises(UsageError, match="credentials"):
        await insist(Work(ApiError(403, "Forbidden", "no")))
    assert await insist(Work(ApiError(401, "Unauthorized", "no")), refusals=()) == 2


@pytest.mark.parametrize(
    ("failures", "asked", "pause"),
    [(1, None, 0.2), (2, None, 0.4), (8, None, 25.6), (9, None, 30.0), (10_000, None, 30.0), (3, 7.0, 7.0)],
)
def test_pauses_grow(failures: int, asked: float | None, pause: float) -> None:
    assert find_pause(failures, asked=asked) == pytest.approx(pause)
    assert supervise.LONG_SECONDS > 30.0, "work that fails after each longest pause is not called well"
