"""Virtual ranks in worlds of real processes: the same bits whatever the size, in a session and after restarts."""

from __future__ import annotations

import pytest

from elasticjob.torchcompat import sharding
from worker.fake_pods import Steps
from worker.gang_helper import PROGRAMS, run_gang

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # `make chaos-short` compares more of such worlds

Curve = dict[int, set[tuple[str, float]]]  # by step: what the ranks wrote


@pytest.fixture(scope="module", params=["gloo", "nccl"])
def curves(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Curve]:
    folder = tmp_path_factory.mktemp("curves")
    model = {"FAKE_NCCL": "draw=1"} if request.param == "nccl" else {}
    run_gang(PROGRAMS / "curve_program.py", 4, env={"CURVE_OUT": str(folder), **model}, timeout=500)
    found: dict[str, Curve] = {}
    for path in sorted(folder.iterdir()):
        curve = found.setdefault(path.name, {})
        for line in Steps(path).read():
            curve.setdefault(line["step"], set()).add((line["hash"], line["loss"]))
    return found


def find_states(curve: Curve) -> list[tuple[str, float]]:
    """One state for each step, which all ranks must have had."""
    assert all(len(states) == 1 for states in curve.values()), "ranks differ"
    return [states.pop() for _, states in sorted(curve.items())]


@pytest.mark.skipif(not sharding.has_custom_reduce(), reason="this torch's FSDP2 has no set_custom_reduce_scatter")
def test_a_sharded_session_has_the_same_curve_in_every_world(curves: dict[str, Curve]) -> None:
    states = [find_states(curves[f"fsdp-{size}"]) for size in (1, 2, 3, 4)]
    assert len(states[0]) == 11
    assert states[1:] == [states[0]] * 3


def test_a_session_has_the_same_curve_in_every_world(curves: dict[str, Curve]) -> None:
    states = [find_states(curves[f"cnn-{size}"]) for size in (1, 2, 3, 4)]
    assert len({hash for hash, _ in states[0]}) == 11, "every step changes the state"
    assert states[1:] == [states[0]] * 3


def test_a_restarted_script_has_the_same_curve(curves: dict[str, Curve]) -> None:
    assert find_states(curves["restarted"]) == find_states(curves["whole"])
