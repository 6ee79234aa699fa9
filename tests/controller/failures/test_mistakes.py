"""Errors of the program that recur at every start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticjob_operator.failures.classify import Blame, Failure
from elasticjob_operator.failures.mistakes import find_place, mistake_of

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


def raised(last: str, *frames: str, **fields: str) -> Failure:
    lines = [f'  File "{frame.rpartition(":")[0]}", line {frame.rpartition(":")[2]}, in f' for frame in frames]
    return fail(traceback="\n".join(["Traceback (most recent call last):", *lines, last]), **fields)


TORCH = "/usr/lib/python3.12/site-packages/torch/nn/functional.py:12"


@pytest.mark.parametrize(
    ("failure", "place"),
    [
        pytest.param(raised("ValueError: 3 is not 4", "/a/train.py:88"), "ValueError at train.py:88", id="an error"),
        pytest.param(raised("AssertionError", "/a/train.py:88"), "AssertionError at train.py:88", id="without a text"),
        pytest.param(
            raised("RuntimeError: x", "/a/train.py:8", "/a/b.py:9", TORCH),
            "RuntimeError at b.py:9",
            id="the program's own",
        ),
        pytest.param(raised("RuntimeError: x", TORCH), "RuntimeError at functional.py:12", id="a library's only"),
        pytest.param(raised("my.models.WrongShape: x", "a.py:1"), "WrongShape at a.py:1", id="of a module"),
        pytest.param(raised("torch.OutOfMemoryError: x", "a.py:1"), "", id="memory may be free again"),
        pytest.param(raised("FileNotFoundError: x", "a.py:1"), "", id="a file may come back"),
        pytest.param(raised("ConnectionResetError: x", "a.py:1"), "", id="so may a connection"),
        pytest.param(raised("urllib3.exceptions.MaxRetryError: x", "a.py:1"), "", id="or a server"),
        pytest.param(raised("elasticjob.errors.CollectiveFailedError: x", "a.py:1"), "", id="or a network"),
        pytest.param(raised("elasticjob.errors.WorldLostError: x", "a.py:1"), "", id="or a member"),
        pytest.param(
            raised("elasticjob.errors.ConfigurationError: x", "a.py:1"),
            "elasticjob.errors.ConfigurationError",
            id="a refusal",
        ),
        pytest.param(raised("ValueError: x"), "", id="without a place"),
        pytest.param(fail(message="ValueError: x"), "", id="without a traceback"),
        pytest.param(raised("no error! at all", "a.py:1"), "", id="no type"),
    ],
)
def test_an_error_that_may_come_again_is_told_by_its_type_and_place(failure: Failure, place: str) -> None:
    assert find_place(failure) == place


def test_an_error_of_the_infrastructure_is_none_of_the_program() -> None:
    assert find_place(replace(raised("ValueError: x", "a.py:1"), blame=Blame.INFRASTRUCTURE)) == ""
