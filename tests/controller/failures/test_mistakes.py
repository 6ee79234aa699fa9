"""Errors of the program that recur at every start."""

from __future__ import annotations

import pytest

from elasticjob_operator.failures.classify import Blame, Failure
from elasticjob_operator.failures.mistakes import mistake_of

PADDING = "x" * 1_100


def fail(**fields: str) -> Failure:
    return Failure("p", exit_code=2, blame=Blame.USER, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "mistake"),
    [
        pytest.param(fail(message="NameError: name 'x'"), "NameError: name 'x'", id="a name"),
        pytest.param(fail(message=f"NameError: {PADDING}"), f"NameError: {PADDING}"[:256], id="a long message"),
        pytest.param(fail(message=f"{PADDING}: error: unrecognized arguments"), "", id="behind a long text"),
        pytest.param(
            fail(log_tail="a: error: unrecognized arguments: -x"), "a: error: unrecognized arguments: -x", id="usage"
        ),
        pytest.param(fail(message="TypeError: 'NoneType' object"), "", id="something that was not there"),
    ],
)
def test_a_mistake_is_read_from_the_beginning_of_the_last_line(failure: Failure, mistake: str) -> None:
    assert mistake_of([failure]) == mistake
