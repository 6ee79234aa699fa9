"""MPI in the pods of a job that changes: real agents against a small hub, where mpi4py and MPICH are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import Pods, Steps

pytest.importorskip("mpi4py")

pytestmark = pytest.mark.timeout(300)
PROGRAM = Path(__file__).parents[1] / "programs" / "mpi_steps.py"


def test_each_generation_is_a_new_mpi_world(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    command = [str(PROGRAM), str(steps.folder)]
    members = {f"pod-{number}": pods.start(f"pod-{number}", *command) for number in range(2)}
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)

    pods.start("pod-2", *command)
    world = hub.wait_for_world(3, newer_than=world.generation)
    steps.wait_for_world(3, world.generation)

    first = world.pods[0]
    members[first].kill()
    pods.start(first, *command)
    world = hub.wait_for_world(3, newer_than=world.generation)
    steps.wait_for_world(3, world.generation)

    hub.remove(world.pods[1])
    world = hub.wait_for_world(2, newer_than=world.generation)
    steps.wait_for_world(2, world.generation)
    hub.stop(ok=True)
    assert not hub.failures()
