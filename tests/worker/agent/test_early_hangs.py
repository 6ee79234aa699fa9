"""A world that hangs as soon as it has begun is noticed, whatever else its processes do. With real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from side_by_side import together
from worker.fake_hub import FakeHub
from worker.fake_pods import Pods

pytestmark = pytest.mark.timeout(240)

AT_ONCE = 3  # see `side_by_side`: each has processes that import torch
PROGRAM = Path(__file__).parents[1] / "programs" / "ej_hang.py"
LIMIT: dict[str, str | None] = {"ELASTICJOB_HANG_TIMEOUT_SECONDS": "3"}


def quiet_pods(hub: FakeHub) -> set[str]:
    """The pods whose agents say that their workers do nothing."""
    return {pod for _, pod, message in list(hub.history) if message.get("state", {}).get("quiet")}


@pytest.mark.parametrize("aside", ["nothing", "log", "session", "session of three steps"])
@together
def test_a_hang_in_the_first_seconds_is_noticed(hub: FakeHub, pods: Pods, aside: str) -> None:
    for number in range(2):
        pods.start(f"pod-{number}", str(PROGRAM), aside, env=LIMIT)
    hub.wait_for_world(2)
    hub.wait_for(lambda: len(quiet_pods(hub)) == 2, what="both agents say that their workers do nothing")


@pytest.mark.parametrize("aside", ["thread", "child"])
@together
def test_what_goes_on_beside_a_hang_does_not_hide_it(hub: FakeHub, pods: Pods, aside: str) -> None:
    """First it is told with all stacks; only later it counts as a hang."""
    for number in range(2):
        pods.start(f"pod-{number}", str(PROGRAM), aside, env=LIMIT)
    hub.wait_for_world(2)
    hub.wait_for(lambda: len(hub.messages("diagnosis")) >= 2, what="both agents tell where their workers are")
    assert not quiet_pods(hub), "what goes on may be work"
    hub.wait_for(
        lambda: sum("beside" in agent.state for agent in hub.agents.values()) == 2, what="the operator is told"
    )
    assert "ej_hang.py" in str(hub.messages("diagnosis"))
    hub.wait_for(lambda: len(quiet_pods(hub)) == 2, timeout=120, what="it is a hang after all")
