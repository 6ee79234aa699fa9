"""All pods are stopped, or get other code, and may save: no step is lost, also while the sessions wait for a world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torch_features import needs_fsdp_on_cpu
from worker.fake_hub import FakeHub, World
from worker.fake_pods import Pod, Pods, Steps
from worker.gang_helper import PROGRAMS

pytestmark = pytest.mark.timeout(240)

GROWS, LOSES = "it grows", "a member was lost"
WHOLE: tuple[str, ...] = ()
SHARDED = ("shards=2",)
COPIED = ("copy_every=1",)


def wait_for_none(
    hub: FakeHub, pods: Pods, steps: Steps, start: list[str], change: str | None
) -> tuple[World, list[Pod]]:
    """The world of some pods, which have made some steps, and those that are left of them: without a world, if `change`
    ends theirs.
    """
    members = [pods.start(f"pod-{number}", *start, launcher="elasticjob-run") for number in range(2)]
    world = hub.wait_for_world(2)
    steps.wait(lambda lines: any(line["step"] == 5 for line in lines))
    hub.set_size(3)  # no smaller world is formed any more
    if change == GROWS:
        hub.set_size(4)
        members.append(pods.start("pod-2", *start, launcher="elasticjob-run"))
    elif change == LOSES:
        lost = next(pod for pod in members if pod.name == world.pods[0])
        members.remove(lost)
        lost.kill()
        hub.declare_lost(lost.name)
    if change is not None:
        hub.wait_for(lambda: all(hub.phases(pod.name)[-1:] == ["ready"] for pod in members), what="all wait")
    return world, members


@pytest.mark.parametrize(
    ("change", "session", "most"),
    [
        pytest.param(GROWS, WHOLE, 0, id="it grows"),
        pytest.param(LOSES, WHOLE, 0, id="a member was lost"),
        pytest.param(None, WHOLE, 0, id="it trains"),
        pytest.param(GROWS, SHARDED, 0, id="a sharded one grows", marks=needs_fsdp_on_cpu),
        pytest.param(LOSES, COPIED, 3, id="one that is left has copies of all shards", marks=needs_fsdp_on_cpu),
    ],
)
def test_a_suspend_while_the_world_changes_loses_no_step(
    hub: FakeHub, pods: Pods, tmp_path: Path, change: str | None, session: tuple[str, ...], most: int
) -> None:
    """`most`: so many steps are lost at a loss, without a suspend, too."""
    start = [str(PROGRAMS / "ej_owed.py"), str(tmp_path / "out"), *session]
    steps = Steps(tmp_path / "out")
    world, members = wait_for_none(hub, pods, steps, start, change)
    made = max(steps.read(), key=lambda line: int(line["step"]))
    hub.suspend()
    assert [pod.wait() for pod in members] == [0] * len(members)
    hub.resume()
    hub.set_size(2)
    for number in range(2):
        pods.start(f"pod-{number + 4}", *start, launcher="elasticjob-run")
    again = hub.wait_for_world(2, newer_than=world.generation)
    steps.wait_for_world(2, again.generation)
    check_restored(steps, again.generation, made, most)


def test_other_code_for_sessions_that_wait_for_a_world_loses_no_step(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    """Those of the last world have steps in memory that are saved nowhere; a pod that comes has none."""
    start = [str(PROGRAMS / "ej_owed.py"), str(tmp_path / "out")]
    steps = Steps(tmp_path / "out")
    members = {f"pod-{number}": pods.start(f"pod-{number}", *start, launcher="elasticjob-run") for number in range(2)}
    world = hub.wait_for_world(2)
    steps.wait(lambda lines: any(line["step"] == 5 for line in lines))
    members.pop(world.pods[0]).kill()
    hub.declare_lost(world.pods[0])
    hub.wait_for(lambda: hub.phases(world.pods[1])[-1:] == ["ready"], what="it waits")
    made = max(steps.read(), key=lambda line: int(line["step"]))
    hub.code = {"revision": 1, "digest": ""}
    pods.start("pod-2", *start, launcher="elasticjob-run")
    again = hub.wait_for_world(2, newer_than=world.generation)
    steps.wait_for_world(2, again.generation)
    check_restored(steps, again.generation, made)


def check_restored(steps: Steps, generation: int, made: dict[str, Any], most: int = 0) -> None:
    restored: list[dict[str, Any]] = [line for line in steps.read() if line.get("restored")]
    last = [line for line in restored if line["generation"] == generation]
    assert len(last) == 2
    for line in last:
        assert line["step"] >= made["step"] - most
        found = [(one["weight"], one["used"] % 96) for one in steps.read() if one["step"] == line["step"]]
        assert found == found[:1] * len(found), "it is the state of this step"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        pytest.param("unsaved", "The workers end while they wait for a world, after", id="nobody asks"),
        pytest.param("asks", "no elasticjob.Checkpointer saves the state after", id="a script asks between two steps"),
    ],
)
def test_it_is_told_that_nothing_is_saved(hub: FakeHub, pods: Pods, tmp_path: Path, word: str, told: str) -> None:
    start = [str(PROGRAMS / "ej_owed.py"), str(tmp_path / "out"), word]
    steps = Steps(tmp_path / "out")
    _, (left,) = wait_for_none(hub, pods, steps, start, LOSES)
    made = max(int(line["step"]) for line in steps.read() if line["rank"] == 1)
    hub.suspend()
    assert left.wait() == 0
    assert f"{told} {made} steps" in left.log
    assert left.log.count("have to be made again") == 1
