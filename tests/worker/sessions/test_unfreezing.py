"""Parts of a model become trainable, or frozen, while a session trains it: all ranks go on with the same parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_features import needs_fsdp_on_cpu
from worker.fake_agent import FakeAgent
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


def test_a_hook_that_knows_the_buckets_of_ddp_goes_on_with_others() -> None:
    """PowerSGD keeps errors and matrices of each bucket, and the DDP that knows what was unfrozen has other buckets."""
    pytest.importorskip("numpy", reason="PowerSGD wants it")
    one, two = run_gang(PROGRAMS / "thawing_hook_program.py", 2)
    assert one.results["parameters"] == pytest.approx(two.results["parameters"], rel=1e-9)
    assert one.results["before"] != one.results["after"]


@needs_fsdp_on_cpu
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("ends", ["announced", "loss"])
def test_what_a_script_has_unfrozen_is_trained_in_the_next_worlds_too(tmp_path: Path, ends: str) -> None:
    """A sharded model is built anew in each world, with the parts frozen that were at the start of the script."""
    with FakeAgent(PROGRAMS / "thawing_program.py", tmp_path, ENDS=ends) as agent:
        agent.start(3)
        if ends == "announced":
            agent.wait(lambda: [row["step"] for row in agent.rows].count(7) == 3, "eight steps")
            agent.tell(announced=True)
            Path(tmp_path, "told").touch()
        agent.run()
    assert sorted(agent.ended) == ([0, 0, 0] if ends == "announced" else [-9, 0, 0])
    weights = {row["step"]: row["weight"] for row in agent.rows}
    assert len(set(weights.values())) == 11, "it is the same in the first three steps, and changes in each later one"
    assert max(row["generation"] for row in agent.rows) == 2
