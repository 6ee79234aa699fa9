"""What an agent sees of ranks that poll a device: their processors never rest, whether they compute or wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from elasticjob import env
from elasticjob.agent.hub_client import Hub
from elasticjob.agent.local_workers import LocalWorkers
from elasticjob.channel import control
from elasticjob.protocol import wire
from side_by_side import together
from worker.fake_hub import FakeHub
from worker.fake_pods import Pods, Steps
from worker.gang_helper import clean_environment

pytestmark = pytest.mark.timeout(240)

AT_ONCE = 3  # see `side_by_side`: each has processes that import torch
PROGRAM = Path(__file__).parents[1] / "programs" / "ej_device.py"
HANG = {"ELASTICJOB_HANG_TIMEOUT_SECONDS": "4"}

# A rank that trains, and then polls for ever: it waits for the device, or computes between two steps. Or it rests.
POLLS = """
import sys, time
from elasticjob.channel import completion, control
from elasticjob.torchcompat import groups
import torch.distributed
client = control.connect()
client.want(control.DEVICE)
entered = 0
groups.count_collectives = lambda: entered

def item():
    while True:
        time.sleep(0)

for step in range(40):
    completion.steps.begin(entered)
    entered += 2
    time.sleep(0.05)
    completion.steps.end()
if sys.argv[1] == "waits":
    completion.steps.begin(entered)
    entered += 2
print("polls", flush=True)
time.sleep(1000) if sys.argv[1] == "rests" else item()
"""


@pytest.fixture
def workers() -> Iterator[LocalWorkers]:
    served = LocalWorkers(cast(Hub, None), 2.0, lambda: (1, 0), lambda peer, message: None)
    yield served
    served.close()


@pytest.mark.parametrize("kind", ["waits", "computes", "rests"])
def test_a_rank_waits_if_the_device_does_not_complete_what_it_has_queued(workers: LocalWorkers, kind: str) -> None:
    """Or if it rests as on the CPU: in a collective of gloo, for example."""
    environ = clean_environment() | {env.CONTROL: workers.path}
    with subprocess.Popen([sys.executable, "-c", POLLS, kind], env=environ, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        workers.find_workers = lambda: {0: worker.pid}
        deadline = time.monotonic() + 60
        while not workers.server.peers(control.DEVICE):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        waits, quiet = False, False
        while not (waits and quiet) and time.monotonic() < deadline:
            waits = waits or workers.are_waiting()
            quiet = quiet or workers.find_hang(wire.AgentState()) is not None
            if kind == "computes" and worker.poll() is None and workers.server.peers(control.DEVICE):
                deadline = min(deadline, time.monotonic() + 8)
            time.sleep(0.05)
        worker.kill()
        assert (waits, quiet) == (kind != "computes",) * 2


def start(pods: Pods, folder: Path, **variables: str | None) -> None:
    for number in range(3):
        pods.start(f"pod-{number}", str(PROGRAM), str(folder), launcher="elasticjob-run", env=variables)


@pytest.mark.parametrize("where", ["step", "evaluation"])
@together
def test_that_the_others_wait_for_a_paused_pod_is_told_at_once(
    hub: FakeHub, pods: Pods, tmp_path: Path, where: str
) -> None:
    hub.set_size(3)
    (tmp_path / "out").mkdir()
    if where == "evaluation":
        (tmp_path / "out" / "evaluate").touch()
    start(pods, tmp_path / "out")
    Steps(tmp_path / "out").wait(lambda rows: sum(row["step"] >= 20 for row in rows) >= 60)
    paused = next(pod for pod in pods.pods.values() if pod.name == "pod-1")
    seen = len(hub.history)
    paused.pause()
    try:

        def tell() -> bool:
            states = [(pod, message.get("state", {})) for _, pod, message in list(hub.history)[seen:]]
            return {pod for pod, state in states if state.get("blocked") and state["phase"] == "running"} >= {
                "pod-0",
                "pod-2",
            }

        hub.wait_for(tell, timeout=30, what="both others say that they wait")
    finally:
        paused.resume()


@pytest.mark.parametrize("where", ["step", "evaluation", "outside", "world", "group"])
@together
def test_a_hang_ends_the_rank_that_does_not_come_and_no_other(
    hub: FakeHub, pods: Pods, tmp_path: Path, where: str
) -> None:
    hub.set_size(3)
    out = tmp_path / "out"
    out.mkdir()
    (out / "stay").write_text(where)
    start(pods, out, **HANG)

    def quiet() -> set[str]:
        return {pod for _, pod, message in list(hub.history) if message.get("state", {}).get("quiet")}

    hub.wait_for(lambda: len(quiet()) == 3, timeout=90, what="all agents say that nothing goes on")
    before = {row["rank"]: row["pid"] for row in Steps(out).read()}
    hub.call(lambda: hub._regroup("hung", checkpoint=False))
    hub.wait_for(lambda: len(told(hub)) == 3, what="all agents tell where their workers are")
    assert {pod for pod, failure in told(hub).items() if not failure["waits"]} == {hub_pod_of(hub, 1)}
    (out / "stay").unlink()  # for the one that takes its place
    hub.wait_for_world(3, newer_than=1, timeout=90)
    Steps(out).wait(lambda rows: sum(row["generation"] > 1 for row in rows) >= 3)
    after = {row["pid"] for row in Steps(out).read() if row["generation"] > 1}
    assert {before[0], before[2]} <= after, "who waits keeps its memory"
    assert before[1] not in after


def told(hub: FakeHub) -> dict[str, dict[str, Any]]:
    """What agents said of a hang, by pod."""
    states = [(pod, message.get("state", {}).get("failure") or {}) for _, pod, message in list(hub.history)]
    return {pod: failure for pod, failure in states if failure.get("kind") == "hang"}


def hub_pod_of(hub: FakeHub, rank: int) -> str:
    """The pod of this rank in the first world; the order of arrival decides."""
    return sorted(hub.agents.values(), key=lambda agent: agent.since)[rank].pod
