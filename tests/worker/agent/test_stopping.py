"""How an agent stops its workers: who gets which signal, and what is left of them. With real processes."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import psutil
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
    other = pods.start("pod-1", "--no-python", "bash", str(shell))
    hub.wait_for_world(2)
    assert (tmp_path / "saved-1").exists(), pod.log
    hub.stop()  # below a shell, nothing ends a script whose agent is killed
    assert {pod.wait(), other.wait()} == {0}


def test_a_script_that_fails_while_it_saves_is_told(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    hub.set_size(1)
    arguments = (str(PROGRAMS / "ej_stop.py"), str(tmp_path), "raises")
    pods.start("pod-0", *arguments, launcher="elasticjob-run")
    hub.wait_for((tmp_path / "trains-1").exists, what="it trains")
    pods.start("pod-1", *arguments, launcher="elasticjob-run")
    hub.wait_for_world(2)
    told = [message["state"]["unsaved"] for message in hub.messages("state") if "unsaved" in message["state"]]
    assert told
    assert (told[0]["rank"], told[0]["exitCode"], told[0]["generation"]) == (0, 1, 1)
    assert "the disk is full" in told[0]["message"]
    assert not hub.failures(), "the world has not failed"


@pytest.mark.parametrize("how", ["exits", "is killed", "is stopped"])
def test_nothing_of_an_old_world_is_left_in_the_next_one(hub: FakeHub, pods: Pods, tmp_path: Path, how: str) -> None:
    """Children, in sessions of their own too, with the ports that they hold; but not what others have started."""
    hub.set_size(1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = (str(PROGRAMS / "ej_leftovers.py"), str(tmp_path), how, str(port))
    pod = pods.start("pod-0", *arguments, launcher="elasticjob-run")
    hub.wait_for((tmp_path / "left").exists, what="the first world left processes")
    left = {kind: int(pid) for kind, pid in (line.split() for line in (tmp_path / "left").read_text().splitlines())}
    if how == "is stopped":
        hub.wait_for((tmp_path / "trains-1").exists, what="it trains")
        hub.order_regroup("pod-0", 1)
        hub.call(lambda: setattr(hub.world, "over", True))
    hub.wait_for((tmp_path / "trains-2").exists, what="the second world trains")
    running = {
        kind for kind, pid in left.items() if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"
    }
    assert not running, pod.log


LINKER = """
import sys, time
with open(sys.argv[1], "w", buffering=1) as library:
    print("the first half, ", end="", file=library, flush=True)
    time.sleep(1.5)
    print("the second half", end="", file=library)
"""


@pytest.mark.parametrize("how", ["is killed", "is stopped", "heeds nothing"])
def test_what_a_compiler_writes_for_an_old_world_is_whole(hub: FakeHub, pods: Pods, tmp_path: Path, how: str) -> None:
    """What is there is taken for whole: torch.compile builds it once for all ranks, and a linker leaves what it has."""
    hub.set_size(1)
    linker = tmp_path / "ld"
    linker.write_text(f"#!{sys.executable}\n{LINKER}")
    linker.chmod(0o755)
    pod = pods.start("pod-0", str(PROGRAMS / "ej_compiles.py"), str(tmp_path), how, launcher="elasticjob-run")
    library = tmp_path / "library"
    hub.wait_for(lambda: library.exists() and library.stat().st_size > 0, what="a half is written")
    if how == "is killed":
        pod.last_worker().send_signal(signal.SIGKILL)
    else:
        hub.order_regroup("pod-0", 1)
        hub.call(lambda: setattr(hub.world, "over", True))
    hub.wait_for(lambda: any(tmp_path.glob("*-2")), what="the second world has the library")
    assert (tmp_path / "trains-2").exists(), pod.log


@pytest.mark.parametrize("kind", ["executed", "handler"])
def test_a_script_gets_no_signal_that_it_does_not_expect(hub: FakeHub, pods: Pods, tmp_path: Path, kind: str) -> None:
    """The agent looks where a worker that ends is; the signal for that would end this one, or call its own handler."""
    hub.set_size(1)
    arguments = (str(PROGRAMS / "ej_own_signal.py"), str(tmp_path), kind)
    pods.start("pod-0", *arguments, launcher="elasticjob-run")
    hub.wait_for((tmp_path / "trains-1").exists, what="it trains")
    pods.start("pod-1", *arguments, launcher="elasticjob-run")
    hub.wait_for_world(2)
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "own-handler").exists()
