"""Workers that do not know of each other, such as those of a script for one process, are told in the pods' logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticjob.channel.looks import Looks
from worker.fake_hub import FakeHub
from worker.fake_pods import Pods
from worker.peers.gang import wait_for

pytestmark = pytest.mark.timeout(240)
PROGRAM = Path(__file__).parents[1] / "programs" / "ej_alone.py"
LIMIT: dict[str, str | None] = {"ELASTICJOB_HANG_TIMEOUT_SECONDS": "3"}


@pytest.mark.parametrize("size", [2, 1])
def test_a_script_for_one_process_in_several_is_told(hub: FakeHub, pods: Pods, tmp_path: Path, size: int) -> None:
    hub.set_size(size)
    stop = tmp_path / "stop"
    members = [pods.start(f"pod-{number}", str(PROGRAM), str(stop), env=LIMIT) for number in range(size)]
    hub.wait_for_world(size)
    told = "A script that does not use torch.distributed trains by itself in each of the 2 workers"
    if size > 1:
        wait_for(lambda: all(told in pod.log for pod in members), "each pod tells it")
    stop.touch()
    assert [pod.wait() for pod in members] == [0] * size
    assert all(pod.log.count("has made a process group") == (size > 1) for pod in members), "once, or never"


@pytest.mark.parametrize(
    ("answers", "are_apart"),
    [
        pytest.param({}, False, id="nobody has answered"),
        pytest.param({1: None}, False, id="one has not answered"),
        pytest.param({1: None, 2: None}, True, id="no process group"),
        pytest.param({1: None, 2: 0}, False, id="one has met the others, and entered nothing yet"),
    ],
)
def test_workers_are_apart_if_none_has_a_process_group(answers: dict[int, Any], are_apart: bool) -> None:
    looks = Looks(1e-9)
    for pid, count in answers.items():
        looks.answer(pid, {"collectives": count})
    assert (looks.find_seconds_apart([1, 2]) is not None) is are_apart
    assert Looks(None).find_seconds_apart([1, 2]) is None, "it is soon"
