"""A pod has one agent: a second launcher in it is refused, with the remedy, and the training goes on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import BIN, STEPS, Pods, Steps

pytestmark = pytest.mark.timeout(240)
SECOND = str(Path(__file__).parents[1] / "programs" / "ej_second.py")
REMEDY = "--standalone --nnodes=1 --max-restarts=0"
LAUNCHERS = ("torchrun", "elasticjob-run")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    script = tmp_path / "other.py"
    script.write_text("import os\nprint('the other program ran in a world of', os.environ['WORLD_SIZE'])\n")
    return script


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_that_a_script_starts_is_refused(hub: FakeHub, pods: Pods, other: Path, launcher: str) -> None:
    members = [pods.start(f"pod-{i}", SECOND, launcher, str(other), launcher=launcher) for i in range(2)]
    assert [member.wait(120) for member in members] == [0, 0]
    assert not hub.failures()
    logs = [member.log for member in members]
    assert all("trained all steps in generation 1" in log for log in logs), "nobody was disturbed"
    said = next(log for log in logs if "the second launcher ended with" in log)
    assert "the second launcher ended with 1:\n" in said
    assert REMEDY in said, "it names the remedy"
    assert "Traceback" not in said
    assert "the other program ran" not in said


def test_the_remedy_runs_the_other_program_beside_the_training(hub: FakeHub, pods: Pods, other: Path) -> None:
    command = ["torchrun", *REMEDY.split(), str(other)]
    members = [pods.start(f"pod-{i}", SECOND, *command) for i in range(2)]
    assert [member.wait(120) for member in members] == [0, 0]
    assert not hub.failures()
    logs = [member.log for member in members]
    assert all("trained all steps in generation 1" in log for log in logs), "nobody was disturbed"
    assert any("the second launcher ended with 0:" in log for log in logs)
    assert any("the other program ran in a world of 1" in log for log in logs)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_beside_the_agent_is_refused(
    hub: FakeHub, pods: Pods, steps: Steps, other: Path, launcher: str
) -> None:
    """As `kubectl exec` starts it: in no process of the agent, with the environment of the container."""
    training = [str(STEPS), "--out", str(steps.folder), "--steps", "0", "--step-seconds", "0.02"]
    members = [pods.start(f"pod-{i}", *training) for i in range(2)]
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)
    done = subprocess.run(
        [str(BIN / launcher), str(other)],
        env=members[0].environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert REMEDY in done.stderr, "it names the remedy"
    assert "Traceback" not in done.stderr
    assert "the other program ran" not in done.stdout
    before = len(steps.read())
    steps.wait(lambda lines: len(lines) > before + 20)
    assert {line["generation"] for line in steps.read()} == {world.generation}
    assert not hub.regroups, "nobody was disturbed"


def test_an_agent_that_was_killed_may_be_started_again_in_its_pod(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    """Its place is free at once, whatever it has left: the kernel frees it."""
    training = [str(STEPS), "--out", str(steps.folder), "--steps", "0", "--step-seconds", "0.02"]
    members = {f"pod-{i}": pods.start(f"pod-{i}", *training) for i in range(2)}
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)
    killed = members[world.pods[1]]
    killed.process.kill()  # the agent alone; its workers may still be there for a moment
    killed.process.wait(30)
    pods.start(killed.name, *training, env=dict(killed.environment))
    world = hub.wait_for_world(2, newer_than=world.generation)
    steps.wait_for_world(2, world.generation)
