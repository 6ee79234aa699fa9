"""A real agent and a script that knows nothing of it: what the script has saved is there when it starts again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import Pods
from worker.gang_helper import PROGRAMS

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("pods_of", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_script_finds_what_it_had_finished(hub: FakeHub, pods: Pods, tmp_path: Path, pods_of: int) -> None:
    hub.set_size(pods_of)
    members = []
    for index in range(pods_of):
        home = tmp_path / f"home-{index}"
        env: dict[str, str | None] = {
            "ELASTICJOB_CHECKPOINTS": str(home / "files"),
            "ELASTICJOB_CHECKPOINT_COPIES": str(home / "copies"),
            "ELASTICJOB_PRELOAD": "0",
            "ELASTICJOB_WARM_START": "0",
        }
        members.append(pods.start(f"pod-{index}", str(PROGRAMS / "copies_program.py"), env=env))
    assert [pod.wait(150) for pod in members] == [0] * pods_of
    for pod in members:
        said = [json.loads(line) for line in pod.log.splitlines() if line.startswith("{")]
        assert [facts["found"] for facts in said] == [{}, {"a.pt": "saved"}], "and not the half of another one"
