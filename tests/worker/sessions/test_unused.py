"""A model with a parameter that a backward pass does not use: DDP reduces not all of its gradients, without a word."""

from __future__ import annotations

from worker.gang_helper import PROGRAMS, run_gang


def test_it_is_refused_before_its_first_step_is_applied() -> None:
    for member in run_gang(PROGRAMS / "unused_program.py", 2, "without"):
        assert "find_unused_parameters" in member.results["error"] and "other.weight" in member.results["error"]
        assert member.results["unchanged"]


def test_a_rank_that_still_trains_alone_is_told() -> None:
    (alone,) = run_gang(PROGRAMS / "unused_program.py", 1, "without")
    assert not alone.results["error"] and not alone.results["unchanged"]
    assert alone.stderr.count("several ranks will raise an error") == 1
    (alone,) = run_gang(PROGRAMS / "unused_program.py", 1, "with")
    assert "several ranks" not in alone.stderr


def test_it_trains_with_the_option_of_ddp() -> None:
    one, two = run_gang(PROGRAMS / "unused_program.py", 2, "with")
    assert not one.results["error"] and not one.results["unchanged"]
    assert one.results["weight"] == two.results["weight"]
