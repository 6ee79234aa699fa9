"""A joiner whose script has not come to what those of the others have changed meanwhile."""

from __future__ import annotations

import pytest

from worker.gang_helper import PROGRAMS, Member, run_gang


@pytest.fixture(scope="module")
def joiner() -> Member:
    return run_gang(PROGRAMS / "joining_program.py", 2)[1]


def test_it_trains_what_the_others_train(joiner: Member) -> None:
    assert joiner.results["trainable"] == ["", [True] * 4]


def test_its_optimizer_gets_a_group_that_it_lacks(joiner: Member) -> None:
    assert joiner.results["groups"] == ["", [[2, 0.1], [2, 0.3]]]


def test_it_ends_in_words_if_its_optimizer_has_other_parameters(joiner: Member) -> None:
    for how in ("a group of a stranger", "another group"):
        assert "SGD has other parameter groups here (1 with 2 parameters)" in joiner.results[how], how


def test_it_ends_in_words_if_its_learning_rates_would_differ(joiner: Member) -> None:
    assert "must not depend on the world, as len(loader) does" in joiner.results["schedule of the world"]
    assert joiner.results["schedule"] == "", "a table that is too short for some steps is no difference"


def test_its_buffers_get_the_shapes_that_a_pass_has_given_those_of_the_others(joiner: Member) -> None:
    """Observers of quantization, running statistics and banks of features; also of a module that is passed by name."""
    assert joiner.results["shapes of buffers"] == ["", [[2], [2], [3, 2]]]


def test_it_gets_the_buffers_that_are_in_no_checkpoint(joiner: Member) -> None:
    """DDP would send those of rank 0 in the next pass, and gloo ends the process where they have other shapes."""
    assert joiner.results["a buffer that is not saved"] == [2.0] * 3


def test_it_ends_in_words_if_its_parameters_have_other_shapes(joiner: Member) -> None:
    found = joiner.results["shapes of parameters"]
    assert found.startswith("'linear.weight' has the shape (1, 2) here, and (2, 2) on the ranks that train already")
    assert "pass one batch through it" in found


def test_it_ends_in_words_if_the_others_have_added_parameters(joiner: Member) -> None:
    found = joiner.results["parameters that are added"]
    assert found.startswith("the ranks that train already have 'adapter.weight' of the shape (1, 2)"), found
