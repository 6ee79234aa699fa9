"""Whoever joins a session takes part in what the others do between two epochs, or comes after it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.fake_hub import FakeHub, World
from worker.fake_pods import Pods, Steps

pytestmark = pytest.mark.timeout(300)
PROGRAM = str(Path(__file__).parents[1] / "programs" / "ej_epochs.py")
Lines = list[dict[str, Any]]


class Story:
    """Members of one job, which come and go."""

    def __init__(self, hub: FakeHub, pods: Pods, steps: Steps, *options: str) -> None:
        self.hub, self.pods, self.steps, self._options = hub, pods, steps, options

    def start(self, name: str) -> None:
        self.pods.start(name, PROGRAM, f"--out={self.steps.folder}", *self._options, launcher="elasticjob-run")

    def wait_for_epochs(self, size: int, after: World | None = None) -> World:
        """Wait until each rank of a newer world of this size has left three epochs."""
        world = self.hub.wait_for_world(size, newer_than=0 if after is None else after.generation, timeout=120)

        def have_trained(lines: Lines) -> bool:
            at = max((line["generation"] for line in lines), default=0)
            left = [line["rank"] for line in lines if "rate" in line and line["generation"] == at]
            return at >= world.generation and all(left.count(rank) >= 3 for rank in range(size))

        self.steps.wait(have_trained, timeout=120)
        return world


def find_mistakes(lines: Lines) -> Iterator[str]:
    """Evaluations that ranks have made alone or of several epochs, and rates that differ."""
    rates: dict[int, set[float]] = defaultdict(set)
    for line in lines:
        if "ranks" in line and (line["ranks"], line["epochs"]) != (line["world"], line["epoch"]):
            yield f"an evaluation of other ranks or epochs: {line}"
        if "rate" in line:
            rates[line["epoch"]].add(line["rate"])
    for epoch, found in rates.items():
        if not math.isclose(min(found), 0.1 * 0.999 ** (epoch + 1)) or not math.isclose(min(found), max(found)):
            yield f"after epoch {epoch}, the rates {found}"


@pytest.mark.parametrize("epoch_steps", [1, 2])
@pytest.mark.usefixtures("backend_if_long")
def test_who_is_announced_in_the_last_step_of_an_epoch_begins_with_the_next_one(
    tmp_path: Path, epoch_steps: int
) -> None:
    """With epochs of one step, each change comes there."""
    with FakeHub(size=1, max_size=3) as hub, Pods(tmp_path, hub.url) as pods:
        story = Story(hub, pods, Steps(tmp_path / "out"), f"--epoch-steps={epoch_steps}")
        story.start("a")
        world = story.wait_for_epochs(1)
        story.start("b")
        world = story.wait_for_epochs(2, world)
        story.start("c")
        world = story.wait_for_epochs(3, world)
        hub.remove("a")
        story.wait_for_epochs(2, world)
        assert hub.restarts == 0
    lines = story.steps.read()
    assert not list(find_mistakes(lines))
    assert all(line["made"] for line in lines if "made" in line), "an epoch without a batch"


@pytest.mark.usefixtures("backend")
def test_who_comes_after_a_loss_is_where_the_others_are(tmp_path: Path) -> None:
    assert "waits for other ranks" not in check_losses(tmp_path, "--interruptible")


def test_nor_does_a_loss_outside_of_any_block_part_them(tmp_path: Path) -> None:
    """On a device, nobody would know that the evaluation is wrong then. The script is told where it is."""
    said = check_losses(tmp_path, "--epoch-steps=1")
    line = next(n for n, text in enumerate(Path(PROGRAM).read_text().splitlines(), 1) if "dist.all_reduce" in text)
    assert f"{PROGRAM}, line {line}, waits for other ranks outside of any block of the session" in said


def check_losses(tmp_path: Path, option: str) -> str:
    """What the members have said."""
    with FakeHub(size=2, max_size=2) as hub, Pods(tmp_path, hub.url) as pods:
        hub.reconnect_grace = 0.5
        story = Story(hub, pods, Steps(tmp_path / "out"), option)
        story.start("a")
        story.start("b0")
        world = story.wait_for_epochs(2)
        for number in range(1, 4):
            story.start(f"b{number}")
            next(pod for pod in pods.pods.values() if pod.name == f"b{number - 1}").kill()
            world = story.wait_for_epochs(2, world)
        said = "".join(pod.log for pod in pods.pods.values())
    assert not list(find_mistakes(story.steps.read()))
    return said


@pytest.mark.usefixtures("backend")
def test_who_is_left_behind_in_an_epoch_begins_again(tmp_path: Path) -> None:
    """A world breaks while one rank is still in the last step of an epoch, and another one in what follows."""
    told = tmp_path / "told"
    with FakeHub(size=2, max_size=3) as hub, Pods(tmp_path, hub.url) as pods:
        hub.reconnect_grace = 0.5
        story = Story(hub, pods, Steps(tmp_path / "out"), "--interruptible", f"--linger={told}")
        story.start("a")
        story.start("b")
        story.wait_for_epochs(2)
        story.start("c")
        world = hub.wait_for_world(3)
        named = {pod.name: pod for pod in pods.pods.values()}
        behind, ahead, lost = (named[name] for name in world.pods)  # in the order in which they have arrived
        story.steps.wait(lambda lines: any("lingers" in line for line in lines))
        hub.set_size(3)
        before = len(hub.regroups)
        lost.kill()
        hub.wait_for(lambda: len(hub.regroups) > before)
        story.start("d")
        story.steps.wait(lambda _: "After step" in ahead.log)
        told.touch()
        story.wait_for_epochs(3, world)
        assert "Other ranks had gone on from epoch" in behind.log
    assert not list(find_mistakes(story.steps.read()))


@pytest.mark.usefixtures("backend_if_long")
def test_who_waited_while_a_smaller_world_went_on_begins_again_and_is_not_blamed(tmp_path: Path) -> None:
    """Not every size is legal: it waits with its memory, and the others come to the end of an epoch."""
    with FakeHub(size=1, max_size=3) as hub, Pods(tmp_path, hub.url) as pods:
        hub.reconnect_grace = 0.5
        story = Story(hub, pods, Steps(tmp_path / "out"), "--interruptible", "--epoch-steps=3")
        for name in "abc":
            story.start(name)
        world = story.wait_for_epochs(3)
        hub.max_size = 1
        next(pod for pod in pods.pods.values() if pod.name == world.pods[2]).kill()
        world = story.wait_for_epochs(1, world)
        before, hub.max_size = hub.restarts, 2
        story.wait_for_epochs(2, world)
        (waited,) = [pod for pod in pods.pods.values() if "Other ranks had gone on from epoch" in pod.log]
        assert waited.name not in world.pods
        assert hub.restarts == before
        assert "restart" in {failure.get("kind") for failure in hub.failures()}
    assert not list(find_mistakes(story.steps.read()))


@pytest.mark.parametrize(
    ("how", "told", "epochs"),
    [
        pytest.param("--direct", "step() needs a batch from session.batches(loader)", set(), id="none of the session"),
        pytest.param("--other", "this loader has another ElasticDistributedSampler than the session", {0, 1, 2},
                     id="a sampler for each phase"),
    ],
)  # fmt: skip
def test_a_loader_that_the_session_does_not_follow_is_refused(
    tmp_path: Path, how: str, told: str, epochs: set[int]
) -> None:
    """Its batches are those of the world in which it was begun, and its sampler does not move on."""
    with FakeHub(size=1, max_size=1) as hub, Pods(tmp_path, hub.url) as pods:
        story = Story(hub, pods, Steps(tmp_path / "out"), how)
        story.start("a")
        hub.wait_for(lambda: hub.restarts)
        (pod,) = pods.pods.values()
        assert f"ConfigurationError: {told}" in pod.log
    assert {line["epoch"] for line in story.steps.read()} == epochs


@pytest.mark.parametrize("where", ["after", "beside"])
def test_a_second_session_is_refused(tmp_path: Path, where: str) -> None:
    """Folds of a cross-validation, one after the other: a later one stood still without a word. One beside the first
    took its group for one of the script's own, and knew nothing of later worlds.
    """
    with FakeHub(size=2, max_size=2) as hub, Pods(tmp_path, hub.url) as pods:
        story = Story(hub, pods, Steps(tmp_path / "out"), f"--again={where}")
        story.start("a")
        story.start("b")
        hub.wait_for(lambda: hub.restarts, timeout=120)
        assert any("ConfigurationError: this process has had a session" in pod.log for pod in pods.pods.values())


def test_who_comes_later_and_begins_with_epoch_0_is_refused(tmp_path: Path) -> None:
    """It would train other samples than the others, and leave them waiting at the end."""
    with FakeHub(size=1, max_size=2) as hub, Pods(tmp_path, hub.url) as pods:
        story = Story(hub, pods, Steps(tmp_path / "out"), "--from-zero")
        story.start("a")
        story.wait_for_epochs(1)
        story.start("b")
        (joiner,) = [pod for pod in pods.pods.values() if pod.name == "b"]
        hub.wait_for(lambda: "ConfigurationError: set_epoch(0) goes back from epoch" in joiner.log, timeout=120)
