"""A step that a GradScaler has skipped is made once, like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import Pods, Steps
from worker.programs.ej_skipped import SKIPPED

pytestmark = pytest.mark.timeout(300)
PROGRAM = str(Path(__file__).parents[1] / "programs" / "ej_skipped.py")


@pytest.mark.parametrize("options", [[], ["--reduce"]], ids=["at-its-end", "inside"])
@pytest.mark.usefixtures("backend")
def test_a_skipped_step_is_not_repeated_after_a_loss(options: list[str], tmp_path: Path) -> None:
    """All gradients were there: the scale and the schedule have changed, and nobody takes that back."""
    told, steps = tmp_path / "told", Steps(tmp_path / "out")
    with FakeHub(size=2, max_size=2) as hub, Pods(tmp_path, hub.url) as pods:
        hub.reconnect_grace = 0.5
        for name in "ab":
            pods.start(name, PROGRAM, f"--out={steps.folder}", f"--linger={told}", *options, launcher="elasticjob-run")
        steps.wait(lambda lines: sum("lingers" in line for line in lines) == 2, timeout=120)
        assert hub.world is not None
        hub.set_size(1)
        next(pod for pod in pods.pods.values() if pod.name == hub.world.pods[1]).kill()
        hub.wait_for(lambda: hub.regroups)
        told.touch()
        steps.wait(lambda lines: any(line["step"] >= SKIPPED + 3 for line in lines), timeout=120)
    lines = [line for line in steps.read() if "schedule" in line]
    assert all(line["schedule"] == line["step"] + 1 for line in lines), "the schedule counts each step once"
    assert {line["scale"] for line in lines if line["step"] >= SKIPPED} == {512.0}, "halved once"
