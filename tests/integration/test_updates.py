"""`update` of jobs that run: the same pods go on with other code, from where they were."""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from elasticjob_operator.cli.root import run
from operator_fixture import Jobs, OperatorProcess, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

AT_ONCE = 3  # see `side_by_side`: each has processes that import torch

TRAIN = """
import os
import sys
import time
from pathlib import Path

import torch

import elasticjob
import version
from elasticjob.checkpoint import Checkpointer

directory = Path(sys.argv[1])
with elasticjob.init("gloo") as world:
    model = torch.nn.Linear(4, 1)
    checkpoint = Checkpointer(directory / "saved", model, every=1_000_000, keep=0, asynchronous=False)
    step = checkpoint.restore()
    pod, revision = os.environ["ELASTICJOB_POD_NAME"], os.environ["ELASTICJOB_CODE_REVISION"]
    with (directory / "starts").open("a") as file:
        said = [step, pod, revision, version.TEXT, os.environ.get("COLOUR", "-"), "+".join(sys.argv[2:]) or "-"]
        print(*said, Path.cwd() == Path(__file__).parent, file=file)
    beside = Path(f"/proc/{os.getppid()}/task").glob("*/children")  # of the agent, of whose children one is the standby
    with (directory / f"beside-{pod}").open("a") as file:
        print(*{word for found in beside for word in found.read_text().split()} - {str(os.getpid())}, file=file)
    while True:
        step += 1
        elasticjob.report(step=step)
        world.barrier()
        if checkpoint.should_save(step):
            checkpoint.save(step)
        time.sleep(0.05)
"""
SESSION = """
import os
import shutil
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import elasticjob

directory = Path(sys.argv[1])


def on_world(session):
    global checkpoint
    often = {"every": 1_000_000, "memory_every": int("memory" in sys.argv)}
    checkpoint = elasticjob.Checkpointer(directory / "saved", model, optimizer, sampler=sampler, **often)
    if session.committed < 0:
        if "memory" in sys.argv and torch.distributed.get_rank() == 0:
            for saved in (directory / "saved").glob("step-*"):
                shutil.rmtree(saved)  # what is left is in the memory of the pods
        torch.distributed.barrier()
        session.committed = checkpoint.restore() - 1
    with (directory / "starts").open("a") as file:
        who = f"{os.environ['ELASTICJOB_POD_NAME']}/{os.getpid()}"
        print(session.committed + 1, who, os.environ["ELASTICJOB_CODE_REVISION"], file=file)


torch.manual_seed(0)
data = TensorDataset(torch.randn(100_000, 4), torch.randn(100_000, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
sampler = elasticjob.ElasticDistributedSampler(data, global_batch_size=4)
session = elasticjob.Session(model=model, optimizer=optimizer, sampler=sampler, on_world=on_world)
for inputs, labels in session.batches(DataLoader(data, batch_sampler=sampler)):
    with session.step():
        loss = torch.nn.functional.mse_loss(session.model(inputs), labels)
        session.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if checkpoint.should_save(session.committed + 2):
            checkpoint.save(session.committed + 2)
    elasticjob.report(step=session.committed + 1)
    time.sleep(0.05)
session.close()
"""


# Every step is saved, and written down by rank 0 after that; so is the step from which each world goes on. The promise
# is that of docs/launch.md: "The same pods go on with the new files, from a checkpoint that the scripts save first."
# A step that was made and not yet saved when its world ended may be made again; one that is saved never is.
EACH_STEP = """
import os
import sys
import time
from pathlib import Path

import torch

import elasticjob
import version
from elasticjob.checkpoint import Checkpointer

directory = Path(sys.argv[1])
with elasticjob.init("gloo") as world:
    model = torch.nn.Linear(4, 1)
    checkpoint = Checkpointer(directory / "saved", model, every=1, keep=3, asynchronous=False)
    step = checkpoint.restore()
    (directory / f"pid-{world.rank}").write_text(str(os.getpid()))

    revision, generation = (os.environ[f"ELASTICJOB_{name}"] for name in ("CODE_REVISION", "GENERATION"))

    def note(kind):
        if world.is_first:
            with (directory / "steps").open("a") as file:
                print(step, revision, generation, kind, file=file)

    note("start")
    while True:
        step += 1
        world.barrier()
        elasticjob.report(step=step)
        if checkpoint.should_save(step):
            checkpoint.save(step)
        note("saved")
        time.sleep(0.02 * version.NUMBER)
"""


class Project:
    """Code that is submitted, and updated."""

    def __init__(self, cluster: Cluster, jobs: Jobs, folder: Path, name: str) -> None:
        self.jobs, self.name = jobs, name
        self.output, self.code = folder / "output", folder / "code"
        self.target = ["-n", jobs.namespace, "--kubeconfig", str(cluster.kubeconfig)]
        for one in (self.output, self.code):
            one.mkdir()

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.code / f"{name}.py").write_text(text)

    def submit(self, size: int = 2, most: int = 2, *arguments: str) -> None:
        sizes = ["--replicas", str(size), "--min", str(size), "--max", str(most)]
        line = ["submit", str(self.code), "--name", self.name, "--image", "local", *sizes]
        assert run([*line, *self.target, "--", str(self.output), *arguments]) == 0

    def update(self, *options: str) -> int:
        given = options if "--undo" in options else ("--code", str(self.code), *options)
        before = given[: given.index("--")] if "--" in given else given
        return run(["update", self.name, *before, *self.target, *given[len(before) :]])

    def ask(self, command: str, *options: str) -> tuple[int, str]:
        """The exit code of a command about the job in a process of its own, and what it says."""
        line = [sys.executable, "-m", "elasticjob_operator.cli", command, self.name, *options, *self.target]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    def starts(self, revision: int | None = None) -> list[list[str]]:
        file = self.output / "starts"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if revision is None or line[2] == str(revision)]

    def step(self) -> int:
        return int(self.jobs.status(self.name).get("progress", {}).get("step", 0))

    def in_force(self, revision: int) -> dict[str, Any]:
        """The status once this revision has made a step."""

        def look() -> dict[str, Any] | None:
            status = self.jobs.status(self.name)
            code = status.get("code", {})
            return status if code.get("revision") == revision and code.get("proven") else None

        return wait_for(look, f"revision {revision} is in force", timeout=120)

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.jobs.pods(self.name)}


@together
def test_a_job_goes_on_with_new_code_in_the_same_pods(cluster: Cluster, jobs: Jobs, tmp_path: Path) -> None:
    project = Project(cluster, jobs, tmp_path, "hot")
    project.write(train=TRAIN, version="TEXT = 'one'\n")
    project.submit()
    jobs.await_world("hot", 2, timeout=120)
    wait_for(lambda: project.step() > 10, "it trains")
    pods = project.uids()
    assert {tuple(line[2:]) for line in project.starts()} == {("0", "one", "-", "-", "True")}

    # New files, a variable and arguments.
    project.write(version="TEXT = 'two'\n")
    assert project.update("-e", "COLOUR=red", "--", str(project.output), "--fast") == 0
    status = project.in_force(1)
    found = project.starts(1)
    assert {tuple(line[2:]) for line in found} == {("1", "two", "red", "--fast", "True")}
    assert len(found) == 2 and int(found[0][0]) > 10, "it goes on from the save that was announced"
    assert project.uids() == pods
    assert status["restarts"]["total"] == 0
    last = status["timeline"][-1]
    assert (last["cause"], last["who"], last["revision"]) == ("update", "revision 1", 1)
    assert jobs.condition("hot", "CodeUpdated")["reason"] == "CodeUpdated"
    code, said = project.ask("describe")
    assert code == 0 and "Revision:" in said

    # Back, and forth.
    assert project.update("--undo") == 0
    project.in_force(2)
    assert {tuple(line[2:]) for line in project.starts(2)} == {("2", "one", "-", "-", "True")}
    project.write(version="TEXT = 'three'\n")
    assert project.update() == 0
    project.in_force(3)
    assert {line[3] for line in project.starts(3)} == {"three"}
    assert project.uids() == pods
    for beside in project.output.glob("beside-*"):
        starts = [set(line.split()) for line in beside.read_text().splitlines()]
        assert len(starts) == 4 and set.intersection(*starts), "all were forked by the same standby"

    # One that fails at its start.
    project.write(version="raise ValueError('a mistake')\n")
    assert project.update() == 0
    wait_for(
        lambda: jobs.condition("hot", "CodeUpdated").get("reason") == "CodeWentBack", "it has gone back", timeout=120
    )
    message = jobs.condition("hot", "CodeUpdated")["message"]
    assert re.match(r"revision 4 failed before its first step, so that revision 3 runs again: .*a mistake", message)
    wait_for(lambda: len(project.starts(3)) >= 4, "revision 3 runs again", timeout=60)
    status = wait_for(lambda: s if (s := jobs.status("hot"))["rendezvous"]["worldSize"] == 2 else None, "a world")
    assert (status["restarts"]["user"], status["code"]["revision"]) == (0, 3)
    assert project.uids() == pods
    told = [reason for reason, _ in jobs.events("hot")]
    assert "CodeUpdated" in told and "CodeWentBack" in told
    code, said = project.ask("update", "--undo")
    assert code != 0 and "has been taken back already" in said

    # A pod that comes later.
    before = jobs.status("hot")["rendezvous"]["generation"]
    victim = next(pod for pod in jobs.pods("hot"))
    cluster.kube.request(
        "DELETE", f"/api/v1/namespaces/{jobs.namespace}/pods/{victim['metadata']['name']}?gracePeriodSeconds=0"
    )
    jobs.await_world("hot", 2, above=before, timeout=120)
    wait_for(lambda: len(project.starts(3)) >= 6, "it starts with the code in force", timeout=60)
    assert {line[3] for line in project.starts(3)} == {"three"}
    assert len(project.uids() - pods) == 1


@pytest.mark.parametrize("tier", ["file", "memory"])
@together
def test_a_session_goes_on_with_new_code_from_what_it_has_saved(
    cluster: Cluster, jobs: Jobs, tmp_path: Path, tier: str
) -> None:
    """A joiner that started with the code of its pod starts again with that of the world. With `memory` the files that
    were saved are gone when it starts: the pods have kept the last steps in their shared memory."""
    project = Project(cluster, jobs, tmp_path, "kept")
    project.write(train=SESSION)
    project.submit(2, 3, tier)
    jobs.await_world("kept", 2, timeout=120)
    wait_for(lambda: project.step() > 10, "it trains")
    pods = project.uids()
    assert project.update("-e", "COLOUR=red") == 0
    status = project.in_force(1)
    assert (project.uids(), status["restarts"]["total"]) == (pods, 0)
    found = project.starts(1)
    assert len(found) == 2 and int(found[0][0]) > 10, "it goes on from the save that was announced"
    if tier == "file":  # one that fails before it has a session, and so before it is in a world
        generation = jobs.status("kept")["rendezvous"]["generation"]
        project.write(train="raise ValueError('a mistake')\n")
        assert project.update() == 0
        told = wait_for(lambda: find_way_back(jobs, "kept"), "it has gone back", timeout=120)
        assert re.match(r"revision 2 failed before its first step, so that revision 1 runs again: .*a mistake", told)
        status = jobs.await_world("kept", 2, above=generation, timeout=120)
        found = wait_for(lambda: s if len(s := project.starts(1)) == 4 else None, "it runs the code that it had")
        assert int(found[2][0]) > int(found[0][0])
        assert (status["restarts"]["user"], status["code"]["revision"]) == (0, 1)
    jobs.scale("kept", 3)
    jobs.await_world("kept", 3, timeout=120)
    before = len(found)
    wait_for(lambda: len(project.starts(1)) >= before + 3, "all three are in the new world", timeout=60)
    assert len({line[1] for line in project.starts(1)[before - 2 :]}) == 3, "two have kept their memory"
    assert len(project.starts(0)) == 2


@together
def test_a_suspended_job_begins_with_the_code_that_came_meanwhile(cluster: Cluster, jobs: Jobs, tmp_path: Path) -> None:
    """What is undone before it is in force never runs, and what is undone twice runs again."""
    project = Project(cluster, jobs, tmp_path, "asleep")
    project.write(train=TRAIN, version="TEXT = 'one'\n")
    project.submit()
    jobs.await_world("asleep", 2, timeout=120)
    wait_for(lambda: project.step() > 10, "it trains")
    jobs.patch("asleep", {"runPolicy": {"suspend": True}})
    jobs.await_condition("asleep", "Suspended", timeout=60)
    project.write(version="TEXT = 'never'\n")
    assert project.update() == 0
    assert project.update("--undo") == 0
    project.write(version="TEXT = 'two'\n")
    assert project.update() == 0
    asked = jobs.get("asleep")["spec"]["code"]["revision"]
    wait_for(lambda: jobs.condition("asleep", "CodeUpdated").get("reason") == "CodeAwaited", "it is told")
    jobs.patch("asleep", {"runPolicy": {"suspend": False}})
    project.in_force(asked)
    assert {line[3] for line in project.starts(0)} == {"one"} and len(project.starts(0)) == 2
    found = project.starts(asked)
    assert {line[3] for line in found} == {"two"} and int(found[0][0]) > 10, "from where it was suspended"
    for text in ("one", "two", "one"):
        asked += 1
        assert project.update("--undo") == 0
        project.in_force(asked)
        assert {line[3] for line in project.starts(asked)} == {text}
    assert jobs.status("asleep")["restarts"]["total"] == 0


@together
def test_an_update_mends_what_a_rule_has_found(cluster: Cluster, jobs: Jobs, tmp_path: Path) -> None:
    """The rules change while the job is sick, and with them what is done about it; then comes code that mends it."""
    project = Project(cluster, jobs, tmp_path, "sick")
    project.write(train=TRAIN.replace("report(step=step)", "report(step=step, loss=version.LOSS)"))
    project.write(version="TEXT = 'one'\nLOSS = float('nan')\n")
    project.submit()
    jobs.await_condition("sick", "Incident", timeout=120)
    rule = {"name": "LossNotFinite", "when": {"metric": {"name": "loss", "notFinite": True}}}
    jobs.patch("sick", {"health": {"rules": [{**rule, "action": "Restart", "atMost": 1}]}})
    status = jobs.await_world("sick", 2, above=1, timeout=60)
    assert status["timeline"][-1]["cause"] == "rule", "it holds at once"
    wait_for(lambda: jobs.status("sick")["incidents"][0]["count"] == 3, "a restart has not mended it", timeout=60)
    project.write(version="TEXT = 'two'\nLOSS = 1.0\n")
    assert project.update() == 0
    status = project.in_force(1)
    assert status["timeline"][-1]["cause"] == "update"
    step = project.step()
    wait_for(lambda: project.step() > step + 20, "it trains on")
    status = jobs.status("sick")
    assert (status["rendezvous"]["generation"], status["incidents"][0]["count"]) == (3, 3)
    assert status["restarts"]["total"] == 0 and not status["progress"].get("notFinite")
    wait_for(lambda: jobs.condition("sick", "Incident")["status"] == "False", "it is over", timeout=120)


def test_a_kubelet_that_brings_it_late_stops_nobody(cluster: Cluster, jobs: Jobs, tmp_path: Path) -> None:
    """Kubelets look at their volumes about once a minute, each in its own time. Until all members have the revision,
    the world trains on with the one before, also where a rank fails meanwhile."""
    project = Project(cluster, jobs, tmp_path, "late")
    project.write(train=EACH_STEP, version="NUMBER = 1\n")
    project.submit()
    members = jobs.await_world("late", 2, timeout=120)["rendezvous"]["members"]
    wait_for(lambda: project.step() > 5, "it trains", timeout=120)
    pods, slow = project.uids(), members[1]
    cluster.stop_agent(slow["node"])  # its pods go on, and nothing new comes to them
    try:
        project.write(version="NUMBER = 2\n")
        assert project.update() == 0
        awaited = re.compile(
            r"revision 1 waits for late-worker-\d( and 1 more)?: kubelets bring it within about two min"
        )
        wait_for(lambda: awaited.match(jobs.condition("late", "CodeUpdated").get("message", "")), "it is told")
        step = project.step()
        wait_for(lambda: project.step() > step + 30, "it trains meanwhile", timeout=120)
        assert {revision for _, revision, *_ in steps_of(project)} == {0}
        generation = jobs.status("late")["rendezvous"]["generation"]
        os.kill(int((project.output / "pid-1").read_text()), signal.SIGKILL)
        after = jobs.await_world("late", 2, above=generation, timeout=120)["rendezvous"]["generation"]
        wait_for(functools.partial(has_come_to, project, after), "it trains with what all have", timeout=120)
        assert {revision for _, revision, *_ in steps_of(project)} == {0}
    finally:
        cluster.start_node(slow["node"])
    project.in_force(1)
    assert project.uids() == pods
    wait_for(lambda: steps_of(project)[-1][1] == 1, "it makes steps with the new code", timeout=60)


@pytest.fixture
def load(request: pytest.FixtureRequest) -> Iterator[None]:
    """As many busy processes as the machine has processors, if the test asks for it."""
    count = (os.cpu_count() or 1) if request.param else 0
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("updates", "load"),
    [(3, False), pytest.param(10, True, marks=[pytest.mark.long, pytest.mark.timeout(1200)])],
    indirect=["load"],
)
@pytest.mark.usefixtures("load")
def test_no_step_is_lost_where_updates_and_kills_follow_each_other(
    cluster: Cluster, jobs: Jobs, operator: OperatorProcess, tmp_path: Path, updates: int
) -> None:
    """A worker is killed between two updates, and the operator while one is on its way. The pods stay."""
    project = Project(cluster, jobs, tmp_path, "often")
    project.write(train=EACH_STEP, version="NUMBER = 1\n")
    project.submit()
    jobs.await_world("often", 2, timeout=120)
    wait_for(lambda: project.step() > 5, "it trains", timeout=120)
    pods, kills = project.uids(), 0
    for number in range(1, updates + 1):
        project.write(version=f"NUMBER = {1 + number % 2}\n")
        assert project.update() == 0
        if number % 3 == 2:
            operator.kill()
            operator.start()
        project.in_force(number)
        if number % 2:
            generation, kills = jobs.status("often")["rendezvous"]["generation"], kills + 1
            os.kill(int((project.output / f"pid-{kills % 2}").read_text()), signal.SIGKILL)
            after = jobs.await_world("often", 2, above=generation, timeout=120)["rendezvous"]["generation"]
            wait_for(functools.partial(has_come_to, project, after), "it trains again", timeout=120)
    assert project.uids() == pods
    assert jobs.status("often")["code"]["revision"] == updates
    found = steps_of(project)
    assert found[0][0] == 0
    for (step, _, generation, _), (following, _, later, kind) in itertools.pairwise(found):
        if kind == "start":
            assert later > generation
            assert following in (step, step + 1), "what was saved is not made again, and nothing is passed over"
        else:
            assert (following, later) == (step + 1, generation), "a world makes one step after the other"
    assert {revision for _, revision, _, _ in found} == {*range(updates + 1)}
    assert sum(kind == "start" for *_, kind in found) == 1 + updates + kills
    pauses: dict[str, list[float]] = {}
    for world in jobs.status("often")["timeline"][1:]:
        pauses.setdefault(world["cause"], []).append(world.get("lostSeconds"))
    print(f"measured pauses in seconds, by what caused the world: {pauses}")


def find_way_back(jobs: Jobs, name: str) -> str | None:
    """What is said of an update that was taken back."""
    found = jobs.condition(name, "CodeUpdated")
    return str(found["message"]) if found.get("reason") == "CodeWentBack" else None


def steps_of(project: Project) -> list[tuple[int, int, int, str]]:
    """(step, revision, generation, whether it was saved or started from), in order."""
    lines = (project.output / "steps").read_text().rpartition("\n")[0].splitlines()
    words = [line.split() for line in lines]
    return [(int(step), int(revision), int(generation), kind) for step, revision, generation, kind in words]


def has_come_to(project: Project, generation: int) -> bool:
    return steps_of(project)[-1][2] >= generation
