"""Snapshots in the agent's memory: a restarted script goes on from its last step, without a file."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import Pods
from worker.gang_helper import PROGRAMS

pytestmark = pytest.mark.timeout(240)


def read(folder: Path, generation: int) -> list[int]:
    """The steps of all ranks in this generation, in the order of each."""
    lines = [line for path in sorted(folder.glob("steps-*")) for line in path.read_text().splitlines(keepends=True)]
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [one["step"] for one in found if one["generation"] == generation]


def await_step(folder: Path, generation: int, least: int = 0) -> None:
    until = time.monotonic() + 100
    while max(read(folder, generation), default=-1) < least:
        assert time.monotonic() < until, f"no step {least} in generation {generation}: {read(folder, generation)[-3:]}"
        time.sleep(0.05)


def test_a_restart_loses_no_step_that_is_in_memory(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    """A worker is killed, then the pod of rank 0, which had the memory of its own."""
    start = [str(PROGRAMS / "ej_memory.py"), str(tmp_path)]
    members = {name: pods.start(name, *start) for name in ("pod-0", "pod-1")}
    world = hub.wait_for_world(2)
    await_step(tmp_path, world.generation, least=3)
    members[world.pods[1]].last_worker().send_signal(signal.SIGKILL)
    again = hub.wait_for_world(2, newer_than=world.generation)
    await_step(tmp_path, again.generation, least=6)
    assert min(read(tmp_path, again.generation)) >= max(read(tmp_path, world.generation)) >= 3
    assert not list((tmp_path / "checkpoints").iterdir()), "no file was needed"

    members[again.pods[0]].kill()
    pods.start(again.pods[0], *start)
    last = hub.wait_for_world(2, newer_than=again.generation)
    await_step(tmp_path, last.generation)
    survived = max(read(tmp_path, again.generation)) - 1  # the step of the killed rank may be in its memory alone
    assert min(read(tmp_path, last.generation)) >= survived
