"""A pod has one agent: a second launcher in it is refused, with the remedy, and the training goes on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from side_by_side import together
from worker.fake_hub import FakeHub
from worker.fake_pods import BIN, STEPS, Pods, Steps

pytestmark = pytest.mark.timeout(240)

AT_ONCE = 3  # see `side_by_side`: each has processes that import torch
SECOND = str(Path(__file__).parents[1] / "programs" / "ej_second.py")
REMEDY = "--standalone --nnodes=1 --max-restarts=0"
LAUNCHERS = ("torchrun", "elasticjob-run")
OTHER = """
import os
import torch
import elasticjob

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = elasticjob.Session(model=model, optimizer=optimizer)
while session.committed < 5:
    with session.step():
        session.backward(session.model(torch.ones(2, 2)).mean())
        optimizer.step()
        optimizer.zero_grad()
    elasticjob.report(step=1000 + session.committed)
session.close()
print("the other program ran in a world of", session.world_size)
"""


def write_other(tmp_path: Path) -> str:
    """Itself a program that could run alone as a job: it has a session, and reports steps."""
    script = tmp_path / "other.py"
    script.write_text(OTHER)
    return str(script)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@together
def test_a_launcher_that_a_script_starts_is_refused(hub: FakeHub, pods: Pods, tmp_path: Path, launcher: str) -> None:
    members = [pods.start(f"pod-{i}", SECOND, launcher, write_other(tmp_path), launcher=launcher) for i in range(2)]
    assert [member.wait(120) for member in members] == [0, 0]
    assert not hub.failures()
    logs = [member.log for member in members]
    assert all("trained all steps in generation 1" in log for log in logs), "nobody was disturbed"
    said = next(log for log in logs if "the second launcher ended with" in log)
    assert "the second launcher ended with 1:\n" in said
    assert REMEDY in said, "it names the remedy"
    assert "Traceback" not in said
    assert "the other program ran" not in said


@together
def test_the_remedy_runs_the_other_program_beside_the_training(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    command = ["torchrun", *REMEDY.split(), write_other(tmp_path)]
    members = [pods.start(f"pod-{i}", SECOND, *command) for i in range(2)]
    assert [member.wait(120) for member in members] == [0, 0]
    assert not hub.failures()
    logs = [member.log for member in members]
    assert all("trained all steps in generation 1" in log for log in logs), "nobody was disturbed"
    assert any("the second launcher ended with 0:" in log for log in logs)
    assert any("the other program ran in a world of 1" in log for log in logs)
    assert all((message.get("step") or 0) <= 40 for message in hub.messages("progress")), (
        "its steps are not those of the job"
    )


@pytest.mark.parametrize("launcher", LAUNCHERS)
@together
def test_a_launcher_beside_the_agent_is_refused(
    hub: FakeHub, pods: Pods, steps: Steps, tmp_path: Path, launcher: str
) -> None:
    """As `kubectl exec` starts it: in no process of the agent, with the environment of the container."""
    training = [str(STEPS), "--out", str(steps.folder), "--steps", "0", "--step-seconds", "0.02"]
    members = [pods.start(f"pod-{i}", *training) for i in range(2)]
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)
    done = subprocess.run(
        [str(BIN / launcher), write_other(tmp_path)],
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


@together
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
