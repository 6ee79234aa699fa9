"""Parts of a model become trainable, or frozen, while a session trains it: all ranks go on with the same parameters."""

from __future__ import annotations

import pytest

from worker.gang_helper import PROGRAMS, run_gang


@pytest.mark.parametrize("how", ["plain", "virtual"])
def test_all_ranks_train_what_one_process_trains(how: str) -> None:
    program = PROGRAMS / "unfreezing_program.py"
    one, two = run_gang(program, 2, how)
    assert one.results == two.results
    (alone,) = run_gang(program, 1, how)
    for epoch in ("0", "1", "2"):
        for found, expected in zip(one.results[epoch], alone.results[epoch], strict=True):
            assert found == pytest.approx(expected, abs=1e-6)
    first, second, third = (one.results[epoch] for epoch in ("0", "1", "2"))
    assert first[:2] != second[:2] != third[:2], "the first layer is trained since it was unfrozen"
    assert first[2:] != second[2:] == third[2:], "the last layer is not trained any more"
