"""One process of a pod with several is lost: it is replaced, and the others keep their memory."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from chaos import curve
from chaos.sessions import PLAIN, Stage, check
from elasticjob.torchcompat import sharding
from worker.fake_hub import FakeHub, World
from worker.fake_pods import Pods, Steps

pytestmark = pytest.mark.timeout(180)


def find_pids(steps: Steps, world: World) -> dict[int, int]:
    """The processes of the ranks that have made a step in this world."""
    return {line["rank"]: line["pid"] for line in steps.read() if line["generation"] == world.generation}


@pytest.mark.parametrize(
    ("launcher", "lost"),
    [
        pytest.param("elasticjob-run", 3, id="any"),
        pytest.param("torchrun", 0, id="the first, also under torchrun"),
    ],
)
def test_seven_of_eight_ranks_keep_their_memory_if_one_is_lost(launcher: str, lost: int, tmp_path: Path) -> None:
    steps, folder = Steps(tmp_path / "steps"), tmp_path / "pods"
    folder.mkdir()
    arguments = (str(PLAIN.path), "--out", str(steps.folder), "--step-seconds", "0.02", "--epochs", "100000")
    with FakeHub() as hub, Pods(folder, hub.url) as pods:
        stage = Stage(hub, pods, steps, arguments, launcher, nproc=8)
        before = stage.begin(1)
        known = find_pids(steps, before)
        stage.members["pod-0"].signal_worker(known[lost], signal.SIGKILL)
        after = stage.await_world(1, before.generation)
        now = find_pids(steps, after)
        failures = hub.failures()
    assert {rank for rank in known if now[rank] != known[rank]} == {lost}
    assert check(steps.read()) == []
    assert {(one["rank"], one["signal"]) for one in failures} == {(lost, "SIGKILL")}


@pytest.mark.skipif(not sharding.has_custom_reduce(), reason="this torch's FSDP2 has no set_custom_reduce_scatter")
def test_the_only_pod_of_a_job_has_copies_of_the_shards_that_one_rank_has_lost(tmp_path: Path) -> None:
    steps, folder = Steps(tmp_path / "steps"), tmp_path / "pods"
    folder.mkdir()
    arguments = ("--model", "fsdp", "--shards", "2", "--save-every", "0", "--checkpoints", str(folder / "none"))
    with FakeHub() as hub, Pods(folder, hub.url) as pods:
        command = (str(curve.PROGRAM), "--out", str(steps.folder), "--step-seconds", "0.02", *arguments)
        stage = Stage(hub, pods, steps, command, nproc=4)
        before = stage.begin(1)
        known = find_pids(steps, before)
        stage.members["pod-0"].signal_worker(known[1], signal.SIGKILL)
        after = stage.await_world(1, before.generation)
        now = find_pids(steps, after)
    assert {rank for rank in known if now[rank] != known[rank]} == {1}
    spans = [[line["step"] for line in steps.read() if line["generation"] == one.generation] for one in (before, after)]
    assert min(spans[1]) - max(spans[0]) in (0, 1), "no step is lost"
