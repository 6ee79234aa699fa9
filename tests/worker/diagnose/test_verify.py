"""`elasticjob verify`: the comparison as a table, and the command with real worlds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticjob.diagnose.verify_compare import Curve, compare, read_curve
from elasticjob.diagnose.verify_worlds import count_steps, plan_kills
from worker.gang_helper import PROGRAMS, REPOSITORY, run_alone

pytestmark = pytest.mark.timeout(600)
EXAMPLE = REPOSITORY / "worker_image" / "examples" / "same_curve.py"


def make_lines(**changes: Any) -> list[dict[str, Any]]:
    """Two steps of two passes; the name of a change is PHASE_STEP or PHASE_STEP_LEAF."""
    lines: list[dict[str, Any]] = []
    for step in range(2):
        for leaf in range(2):
            phases = {
                name: changes.get(f"{name}_{step}_{leaf}", f"{name}{leaf}") for name in ("rng", "data", "compute")
            }
            lines.append({"process": "1", "step": [0, 8 * step], "leaf": leaf} | phases)
        phases = {name: changes.get(f"{name}_{step}", name) for name in ("parameters", "reduction", "buffers", "loss")}
        lines.append({"process": "1", "step": [0, 8 * step]} | phases)
    return lines


@pytest.mark.parametrize(
    ("changes", "phase", "said"),
    [
        ({}, "", "the same bits in 2 steps"),
        ({"data_1_0": "x"}, "data", r"step 1 \(epoch 0, sample 8\): the data \(passes \[0\]\)"),
        ({"rng_0_1": "x", "data_0_1": "x"}, "rng", r"random numbers of a virtual rank \(passes \[1\]\)"),
        ({"compute_1_1": "x", "reduction_1": "x"}, "compute", "a kernel"),
        ({"reduction_0": "x", "parameters_1": "x"}, "reduction", "step 0"),
        ({"parameters_1": "x", "compute_1_0": "x"}, "parameters", "the optimizer"),
        ({"buffers_1": "x"}, "buffers", "the buffers"),
        ({"loss_1": "x"}, "loss", "the loss"),
    ],
)
def test_the_first_phase_that_differs_is_named(changes: dict[str, Any], phase: str, said: str) -> None:
    found = compare(read_curve("a", make_lines()), read_curve("b", make_lines(**changes)), 0.0, 10)
    assert (found.phase, found.verdict) == (phase, "different" if phase else "equal")
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(found.text)


def test_ranks_that_differ_are_found() -> None:
    lines = [*make_lines(), {"process": "2", "step": [0, 8], "buffers": "x"}]
    found = compare(read_curve("a", make_lines()), read_curve("b", lines), 0.0, 10)
    assert (found.phase, found.verdict) == ("buffers", "different")
    assert "not the same on all ranks" in found.text
    assert compare(read_curve("a", make_lines()), read_curve("b", lines), 0.0, 1).verdict == "equal", "only one step"


def reported(*losses: float) -> Curve:
    return read_curve("x", [{"process": "1", "step": step, "reported": loss} for step, loss in enumerate(losses)])


def test_losses_are_compared_where_there_is_nothing_better() -> None:
    assert compare(reported(1.0, 0.5), reported(1.0, 0.5001), 1e-3, 10).verdict == "close"
    assert compare(reported(1.0, 0.5), reported(1.0, 0.6), 1e-3, 10).verdict == "different"
    assert compare(reported(), reported(1.0), 1e-3, 10).verdict == "unknown"
    assert count_steps([{"step": 1, "reported": 1.0}, {"step": 2, "reported": 1.0}, {"step": 1, "reported": 1.0}]) == 2


def test_kills_are_spread_and_leave_a_world() -> None:
    plan = plan_kills(3, 4, 60, 2)
    assert [step for step, _, _ in plan] == [20, 40]
    assert [size for _, _, size in plan] == [3, 4]
    assert all(rank < size for (_, rank, _), size in zip(plan, (4, 3), strict=True))
    assert plan_kills(3, 1, 60, 2) == [(20, 0, 1), (40, 0, 1)]


def verify(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and what was said of each run."""
    command = Path(sys.executable).with_name("elasticjob")
    done = run_alone(command, "verify", "--json", "--timeout=300", *arguments, timeout=500, may_fail=True)
    assert not done.stderr, done.stderr
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


def test_the_example_is_the_same_after_a_kill() -> None:
    code, said = verify("--sizes", "1,2", "--steps", "8", "--kills", "1", str(EXAMPLE))
    assert code == 0, said
    assert [one["verdict"] for one in said] == ["equal"] * 3


def test_a_rank_that_comes_for_a_killed_one_may_find_no_state_either(tmp_path: Path) -> None:
    """All that train have lost theirs: the new rank begins again with them, which is no error of the script."""
    done = run_alone(PROGRAMS / "lost_state_program.py", str(tmp_path))
    assert done.stdout == "2 began again\n"


def test_a_generator_of_its_own_is_found(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    source = EXAMPLE.read_text().replace("random.random() < 0.5", "CHANCE.random() < 0.5")
    script.write_text(source.replace("def make_model", "CHANCE = random.Random(1)\n\n\ndef make_model"))
    code, said = verify("--sizes", "1,2", "--steps", "3", "--kills", "0", str(script))
    assert code == 1
    assert [(one["verdict"], one["phase"]) for one in said] == [("equal", ""), ("different", "data")]


def test_a_script_without_a_session_is_started_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time, elasticjob\n"
        "for step in range(1, 1000):\n"
        "    elasticjob.report(step=step, loss=1.0 / step)\n"
        "    time.sleep(0.02)\n"
    )
    code, said = verify("--sizes", "1", "--steps", "20", "--kills", "1", str(script))
    assert (code, [one["verdict"] for one in said]) == (0, ["equal", "close"]), said


def test_a_script_that_fails_is_not_started_for_ever(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(EXAMPLE.read_text().replace("    session.close()", "    raise OSError('the disk is full')"))
    code, said = verify("--sizes", "2", "--steps", "100", "--kills", "1", str(script), "--epochs", "1")
    assert code == 1
    assert [one["verdict"] for one in said] == ["different"]
    assert "the disk is full" in said[0]["text"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(("--sizes", "two", "x.py"), "--sizes two"), (("--steps", "0", "x.py"), "at least 1"), (("no.py",), "not a file")],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    from elasticjob.diagnose.verify import main

    with pytest.raises(SystemExit):
        main(arguments)
    assert problem in capsys.readouterr().err
