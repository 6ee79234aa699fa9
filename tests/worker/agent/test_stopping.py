"""How an agent stops its workers: who gets which signal, and what is left of them. With real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import Pods

pytestmark = pytest.mark.timeout(240)
PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.mark.parametrize("launcher", ["elasticjob-run", pytest.param("torchrun", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["fork", "spawn", "child"])
def test_what_a_script_has_started_lives_until_it_has_saved(
    hub: FakeHub, pods: Pods, tmp_path: Path, kind: str, launcher: str
) -> None:
    hub.set_size(1)
    arguments = (str(PROGRAMS / "ej_stop.py"), str(tmp_path), kind)
    pod = pods.start("pod-0", *arguments, launcher=launcher)
    hub.wait_for((tmp_path / "trains-1").exists, what="it trains")
    pods.start("pod-1", *arguments, launcher=launcher)  # its arrival is announced: the first one may save
    hub.wait_for_world(2)
    assert (tmp_path / "saved-1").exists(), pod.log


def test_the_child_of_a_shell_may_save_too(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    hub.set_size(1)
    shell = tmp_path / "run.sh"
    shell.write_text(f"python {PROGRAMS / 'ej_stop.py'} {tmp_path} plain | cat\necho over\n")
    pod = pods.start("pod-0", "--no-python", "bash", str(shell))
    hub.wait_for((tmp_path / "trains-1").exists, what="it trains")
    pods.start("pod-1", "--no-python", "bash", str(shell))
    hub.wait_for_world(2)
    assert (tmp_path / "saved-1").exists(), pod.log
