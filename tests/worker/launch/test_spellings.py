"""However a command spells the launcher of torch, its pods are one world: what it says of places is overridden."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import STEPS, Pods, Steps

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    ("launcher", "arguments"),
    [
        pytest.param("python", ("-m", "torch.distributed.run"), id="a module"),
        pytest.param("python", ("-m", "torch.distributed.launch", "--use-env"), id="the older one"),
        pytest.param("torchrun", ("--nnodes=2", "--node_rank=0", "--master_addr=10.9.8.7"), id="places of its own"),
        pytest.param("torchrun", ("--nnodes=1:8", "--max-restarts=3", "--rdzv-endpoint=10.9.8.7:1"), id="an endpoint"),
    ],
)
def test_pods_are_one_world(
    hub: FakeHub, steps: Steps, tmp_path: Path, launcher: str, arguments: tuple[str, ...]
) -> None:
    training = [str(STEPS), "--out", str(steps.folder), "--steps", "5", "--step-seconds", "0.02"]
    with Pods(tmp_path, hub.url, warm=launcher != "python") as pods:
        members = [pods.start(f"pod-{i}", *arguments, *training, launcher=launcher) for i in range(2)]
        world = hub.wait_for_world(2, timeout=120)
        steps.wait_for_world(2, world.generation)
        assert [member.wait(60) for member in members] == [0, 0]
    assert not hub.failures()
