"""What the API server answers to writes of Workloads → what is known and said of them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from controller.integrations.kueue.test_multikueue import OTHER, copy_of, receive
from controller.integrations.kueue.test_quota import SETTINGS, SPEC, write
from elasticjob_operator.integrations.kueue import manifests
from elasticjob_operator.integrations.kueue.asking import Adopt, Create
from elasticjob_operator.integrations.kueue.store import Store
from elasticjob_operator.integrations.kueue.writing import Writer
from elasticjob_operator.kube.client import Api
from elasticjob_operator.rest.errors import ApiError

NAME = "digits-0123abcd-0"
JOB = receive(NAME)


class Answers:
    """An API server that gives one answer to each method."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def request(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        self.asked.append(f"{method} {path.rpartition('/')[2]}")
        answer = self._answers[method]
        if isinstance(answer, ApiError):
            raise answer
        return answer


def fail(status: int) -> ApiError:
    return ApiError(status, "", "as the test wants it")


async def ask(answers: Answers, new: Create | Adopt) -> tuple[tuple[str, str] | None, list[str]]:
    """What is said, and the jobs of which the store has learned."""
    woken: list[str] = []
    store = Store(lambda key: woken.append(key[1]))
    writer = Writer(cast(Api, answers), store)
    return await writer.ask(JOB, SPEC, new, "gpus", SETTINGS), woken


async def test_a_workload_of_multikueue_is_taken_with_one_patch() -> None:
    raw = copy_of()
    patch = manifests.build_adoption(raw, JOB)
    assert patch is not None
    answers = Answers(GET=raw, PATCH={**raw, "metadata": {**raw["metadata"], **patch["metadata"]}})
    assert await ask(answers, Adopt(NAME)) == (None, ["digits"])
    assert answers.asked == [f"GET {NAME}", f"PATCH {NAME}"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(fail(404), "Pending", id="MultiKueue has not made it yet"),
        pytest.param(copy_of(ownerReferences=[OTHER]), "WorkloadRefused", id="it is another's"),
    ],
)
async def test_a_workload_that_cannot_be_taken_is_said(answer: Any, reason: str) -> None:
    answers = Answers(GET=answer)
    said, woken = await ask(answers, Adopt(NAME))
    assert said is not None and said[0] == reason and NAME in said[1]
    assert (answers.asked, woken) == ([f"GET {NAME}"], [])


@pytest.mark.parametrize("status", [0, 409, 500, 503])
async def test_an_api_server_in_trouble_is_asked_again(status: int) -> None:
    with pytest.raises(ApiError):
        await ask(Answers(GET=fail(status)), Adopt(NAME))


@pytest.mark.parametrize(
    ("status", "said"), [(404, True), (409, True), (422, True), (403, True), (0, False), (500, False)]
)
async def test_what_a_workload_that_is_not_created_means(status: int, said: bool) -> None:
    answers = Answers(POST=fail(status))
    if not said:
        with pytest.raises(ApiError):
            await ask(answers, Create(0, 2))
        return
    told, _ = await ask(answers, Create(0, 2))
    assert told is not None and told[0] == "WorkloadRefused"


async def test_a_workload_is_known_once_it_is_created() -> None:
    assert await ask(Answers(POST=write()), Create(0, 2)) == (None, ["digits"])
