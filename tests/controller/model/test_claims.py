"""Which operator decides over a job, and when another one takes it over."""

from __future__ import annotations

import math

import pytest

from elasticjob_operator import api
from elasticjob_operator.model import claims
from elasticjob_operator.model.claims import Judgement, Other, Patience, Question, Verdict

OWN, A, B = "here/own", "there/a", "there/b"
PATIENCE = Patience(lease=10.0)  # 30 s of calm, 60 s for an answer, all others are asked after 30 s
NOW = 1000.0


def claim(release: str, asked: str | None = None) -> api.OperatorStatus:
    return api.OperatorStatus(release=release, asked=asked)


def judge(
    found: api.OperatorStatus | None, other: Other = Other(), question: Question | None = None, now: float = NOW
) -> Judgement:
    return claims.judge(found, OWN, other, question, now, PATIENCE)


@pytest.mark.parametrize(
    ("found", "other", "question", "verdict", "look_at"),
    [
        pytest.param(None, Other(), None, Verdict.DECIDE, None, id="nobody's"),
        pytest.param(claim(""), Other(), None, Verdict.DECIDE, None, id="of nobody that is known"),
        pytest.param(claim(OWN), Other(), None, Verdict.DECIDE, None, id="its own"),
        pytest.param(claim(OWN, A), Other(), None, Verdict.DECIDE, None, id="its own, and it is asked"),
        pytest.param(claim(A), Other(), None, Verdict.ASK, NOW + 60, id="another's, which it meets"),
        pytest.param(claim(A), Other(heard=NOW - 29), None, Verdict.WAIT, NOW + 1, id="it has just answered"),
        pytest.param(claim(A), Other(heard=NOW - 30), None, Verdict.ASK, NOW + 60, id="that is a while ago"),
        pytest.param(
            claim(A), Other(heard=NOW - 90, asked=NOW - 29), None, Verdict.WAIT, NOW + 1, id="another job was asked"
        ),
        pytest.param(
            claim(A), Other(heard=NOW - 90, asked=NOW - 30), None, Verdict.ASK, NOW + 60, id="without an answer"
        ),
        pytest.param(claim(A, OWN), Other(), None, Verdict.WAIT, NOW + 60, id="asked before this operator started"),
        pytest.param(claim(A, OWN), Other(), Question(A, NOW - 59), Verdict.WAIT, NOW + 1, id="not answered yet"),
        pytest.param(claim(A, OWN), Other(), Question(A, NOW - 60), Verdict.TAKE, NOW, id="not answered"),
        pytest.param(claim(A, B), Other(), Question(A, NOW - 60), Verdict.TAKE, NOW, id="nor was who asks as well"),
        pytest.param(
            claim(B, OWN), Other(), Question(A, NOW - 60), Verdict.WAIT, NOW + 60, id="somebody else took it meanwhile"
        ),
        pytest.param(claim(A), Other(), Question(A, NOW - 60), Verdict.WAIT, NOW + 30, id="it has answered"),
    ],
)
def test_who_decides(
    found: api.OperatorStatus | None, other: Other, question: Question | None, verdict: Verdict, look_at: float | None
) -> None:
    made = judge(found, other, question)
    assert made.verdict is verdict
    if look_at is not None:
        assert made.look_at == look_at


def test_an_answer_counts_for_all_jobs_of_the_namespace() -> None:
    asked = judge(claim(A))
    assert asked.other.asked == NOW
    assert judge(claim(A), asked.other, now=NOW + 1).verdict is Verdict.WAIT, "another job need not ask"
    open_ = judge(claim(A, OWN), asked.other, now=NOW + 1)
    answered = judge(claim(A), open_.other, open_.question, now=NOW + 2)
    assert answered.other == Other(heard=NOW + 2)
    assert answered.question is None
    assert judge(claim(A), answered.other, now=NOW + 31).verdict is Verdict.WAIT


def test_the_first_question_counts() -> None:
    """Else each job that asks would put off the others."""
    first = judge(claim(A))
    second = judge(claim(A), first.other, now=NOW + 30)
    assert (second.verdict, second.other.asked) == (Verdict.ASK, NOW)
    assert judge(claim(A), second.other, now=NOW + 30.1).verdict is Verdict.ASK


def test_a_release_that_is_gone_has_no_job_left_after_the_longest_time() -> None:
    """Ten jobs, judged each second. The other one had just answered; from then on it is gone."""
    other, asked, taken = Other(heard=NOW), set[int](), dict[int, float]()
    questions: dict[int, Question | None] = {}
    for second in range(round(PATIENCE.longest) + 1):
        for job in set(range(10)) - taken.keys():
            made = judge(claim(A, OWN if job in asked else None), other, questions.get(job), NOW + second)
            other, questions[job] = made.other, made.question
            if made.verdict is Verdict.ASK:
                asked.add(job)
                questions[job] = judge(claim(A, OWN), other, None, NOW + second).question
            elif made.verdict is Verdict.TAKE:
                taken[job] = second
    assert len(taken) == 10
    assert min(taken.values()) == 90
    assert max(taken.values()) == 120 == PATIENCE.longest


@pytest.mark.parametrize(
    ("found", "begins", "kept"),
    [
        pytest.param(None, False, None, id="nothing is written"),
        pytest.param(None, True, claim(OWN), id="the job is claimed"),
        pytest.param(claim(OWN), False, claim(OWN), id="it stays"),
        pytest.param(claim(OWN, A), False, claim(OWN), id="it answers"),
        pytest.param(claim(""), True, claim(OWN), id="of nobody"),
        pytest.param(claim("", A), False, claim("", A), id="of nobody, and nothing is written"),
    ],
)
def test_what_is_written(found: api.OperatorStatus | None, begins: bool, kept: api.OperatorStatus | None) -> None:
    assert claims.keep(found, OWN, begins=begins) == kept


def test_what_a_newer_operator_has_written_stays() -> None:
    found = api.OperatorStatus.model_validate({"release": OWN, "asked": A, "since": "x"})
    kept = claims.keep(found, OWN, begins=True)
    assert kept is not None
    assert kept.dump() == {"release": OWN, "since": "x"}
    assert claims.ask(found, B).dump() == {"release": OWN, "asked": B, "since": "x"}


def test_a_release_that_was_never_heard_is_asked_at_once() -> None:
    assert Other().heard == Other().asked == -math.inf
    assert judge(claim(A)).verdict is Verdict.ASK
