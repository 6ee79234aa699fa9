"""A joiner whose script has not come to what those of the others have changed meanwhile."""

from __future__ import annotations

import pytest

from worker.gang_helper import PROGRAMS, Member, run_gang


@pytest.fixture(scope="module")
def joiner() -> Member:
    return run_gang(PROGRAMS / "joining_program.py", 2)[1]


def test_it_trains_what_the_others_train(joiner: Member) -> None:
    assert joiner.results["trainable"] == ["", [True] * 4]


def test_it_ends_in_words_if_its_optimizer_lacks_a_group(joiner: Member) -> None:
    assert "SGD has other parameter groups here (1 with 2 parameters)" in joiner.results["groups"]


def test_it_ends_in_words_if_its_learning_rates_would_differ(joiner: Member) -> None:
    assert "must not depend on the world, as len(loader) does" in joiner.results["schedule of the world"]
    assert joiner.results["schedule"] == "", "a table that is too short for some steps is no difference"
