"""An unmodified `torchrun` as a member of an ElasticJob: real processes on gloo against a small hub."""

from __future__ import annotations

import re
import signal

import pytest

from elasticjob import rendezvous
from worker.fake_hub import FakeHub
from worker.fake_pods import STEPS, Pods, Steps

pytestmark = pytest.mark.timeout(180)


def command(steps: Steps, count: int = 0) -> list[str]:
    return [str(STEPS), "--out", str(steps.folder), "--steps", str(count), "--step-seconds", "0.02"]


def test_start_grow_shrink_and_end(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    members = [pods.start(f"pod-{i}", *command(steps)) for i in range(2)]
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)

    pods.start("pod-2", *command(steps))
    world = hub.wait_for_world(3, newer_than=world.generation)
    assert world.pods[-1] == "pod-2", "survivors keep their ranks, newcomers are appended"
    steps.wait_for_world(3, generation=world.generation)

    hub.remove("pod-1")
    assert members[1].wait() == 0, "to be let go is no failure"
    world = hub.wait_for_world(2, newer_than=world.generation)
    steps.wait_for_world(2, generation=world.generation)

    hub.stop(ok=True)
    assert members[0].wait() == 0
    assert not hub.failures(), "nothing failed in this story"


def test_success_ends_every_agent_at_once(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    members = [pods.start(f"pod-{i}", *command(steps, count=20)) for i in range(2)]
    assert [pod.wait() for pod in members] == [0, 0]
    assert hub.stop_reason == ("complete", True)
    assert {hub.phases(f"pod-{i}")[-1] for i in range(2)} == {"succeeded"}


@pytest.mark.parametrize(
    "victim", [pytest.param(0, id="rank 0"), pytest.param(-1, id="follower", marks=pytest.mark.long)]
)
def test_a_killed_pod_is_lost_and_replaced(hub: FakeHub, pods: Pods, steps: Steps, victim: int) -> None:
    members = {f"pod-{i}": pods.start(f"pod-{i}", *command(steps)) for i in range(2)}
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)
    name = world.pods[victim]
    survivor = next(pod for pod in world.pods if pod != name)
    members[name].kill()
    pods.start(name, *command(steps))
    world = hub.wait_for_world(2, newer_than=world.generation)
    assert world.pods == [survivor, name], "rank 0 is a survivor"
    steps.wait_for_world(2, generation=world.generation)


def test_no_change_waits_for_the_next_look_of_torch(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    rarely: dict[str, str | None] = {"PET_MONITOR_INTERVAL": "600"}
    members = {f"pod-{number}": pods.start(f"pod-{number}", *command(steps), env=rarely) for number in range(2)}
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)
    members[world.pods[1]].last_worker().send_signal(signal.SIGKILL)
    world = hub.wait_for_world(2, newer_than=world.generation)
    steps.wait_for_world(2, generation=world.generation)
    pods.start("pod-2", *command(steps), env=rarely)
    world = hub.wait_for_world(3, newer_than=world.generation)
    steps.wait_for_world(3, generation=world.generation)


def test_a_failed_worker_is_reported_and_restarted(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    members = {f"pod-{i}": pods.start(f"pod-{i}", *command(steps)) for i in range(2)}
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)
    members[world.pods[1]].last_worker().send_signal(signal.SIGKILL)
    world = hub.wait_for_world(2, newer_than=world.generation)
    steps.wait_for_world(2, generation=world.generation)
    failure = next(failure for failure in hub.failures() if failure.get("signal") == "SIGKILL")
    assert failure["generation"] == world.generation - 1
    assert failure["rank"] == 1
    assert failure["exitCode"] == 137


def test_a_paused_pod_is_fenced(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    members = {f"pod-{i}": pods.start(f"pod-{i}", *command(steps)) for i in range(2)}
    old = hub.wait_for_world(2)
    steps.wait_for_world(2, old.generation)
    paused = members[old.pods[1]]
    old_worker = paused.last_worker()
    paused.pause()
    hub.set_size(1)
    hub.declare_lost(old.pods[1])  # what a hub does after timeoutSeconds of silence
    alone = hub.wait_for_world(1, newer_than=old.generation)
    steps.wait_for_world(1, generation=alone.generation)
    paused.resume()
    world = hub.wait_for_world(2, newer_than=alone.generation)
    assert not old_worker.is_running(), "no process of the old world survives"
    steps.wait_for_world(2, generation=world.generation)
    lines = [line for line in steps.read() if line["generation"] == old.generation]
    late = [line["step"] for line in lines if line["t"] > alone.announced_at]
    known = max(line["step"] for line in lines if line["t"] <= alone.announced_at)
    assert late in ([], [known], [known + 1]), "the old world completed at most the step that was in flight"


def test_a_ready_pod_says_that_it_gives_a_world_up(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    pods.start("pod-0", *command(steps))
    hub.wait_for(lambda: "ready" in hub.phases("pod-0"), what="it is ready")
    hub.order_regroup("pod-0", 3)
    hub.wait_for(lambda: hub.agents["pod-0"].state["generation"] == 3, what="it says so")
    assert hub.phases("pod-0")[-1] == "ready"
    pods.start("pod-1", *command(steps))
    world = hub.wait_for_world(2)
    assert world.generation == 4
    steps.wait_for_world(2, 4)


def test_training_goes_on_without_the_hub(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    for i in range(2):
        pods.start(f"pod-{i}", *command(steps))
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)
    hub.close()
    before = len(steps.read())
    steps.wait(lambda lines: len(lines) > before + 20)
    hub.start()
    hub.wait_for(lambda: all(agent.socket is not None for agent in hub.agents.values()), what="both are back")
    before = len(steps.read())
    steps.wait(lambda lines: len(lines) > before + 20)
    assert {line["generation"] for line in steps.read()} == {world.generation}
    assert not hub.regroups, "nobody was disturbed"


def test_training_goes_on_while_a_token_has_expired(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    members = [pods.start(f"pod-{i}", *command(steps)) for i in range(2)]
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)
    for i in range(2):  # before the hub goes, so that no agent tries again with what it has read already
        (pods.folder / f"pod-{i}.token").write_text("expired\n")
    hub.close()
    hub.reconnect_grace = 60.0  # the agents try more and more seldom, until their tokens are renewed below
    hub.start()
    steps.wait(lambda _: all("does not accept the token" in member.log for member in members))
    before = len(steps.read())
    steps.wait(lambda lines: len(lines) > before + 20)
    for i in range(2):
        (pods.folder / f"pod-{i}.token").write_text(f"token-pod-{i}\n")  # as the kubelet renews it
    hub.wait_for(lambda: all(agent.socket is not None for agent in hub.agents.values()), what="both are back")
    assert {line["generation"] for line in steps.read()} == {world.generation}
    assert not hub.regroups, "nobody was disturbed"


def test_sigterm_leaves_when_the_others_go_on(hub: FakeHub, pods: Pods, steps: Steps) -> None:
    members = {f"pod-{i}": pods.start(f"pod-{i}", *command(steps)) for i in range(2)}
    world = hub.wait_for_world(2)
    steps.wait_for_world(2, world.generation)
    hub.set_size(1)
    members[world.pods[0]].terminate()
    assert members[world.pods[0]].wait() == 0
    alone = hub.wait_for_world(1, newer_than=world.generation)
    steps.wait_for_world(1, generation=alone.generation)
    assert "leaving" in hub.phases(world.pods[0])
    assert not hub.failures()


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({"ELASTICJOB_HUB_URL": None}, "ELASTICJOB_HUB_URL is not set", id="no hub url"),
        pytest.param({"ELASTICJOB_HUB_URL": "http://x:1"}, "not a hub address", id="broken hub url"),
        pytest.param({"ELASTICJOB_TOKEN_FILE": "/no/such"}, "is no file", id="no token"),
        pytest.param({"ELASTICJOB_POD_IP": None}, "ELASTICJOB_POD_IP is not set", id="no address"),
        pytest.param(
            {"ELASTICJOB_HUB_URL": "ws://127.0.0.1:9", "PET_RDZV_CONF": "join_timeout=1"},
            r"did not answer for 1 s \(.*Connect call failed \('127\.0\.0\.1', 9\)\)\. Check that the operator runs",
            id="no hub",
        ),
        pytest.param({"ELASTICJOB_TOKEN_FILE": "wrong.token"}, "does not accept the token", id="wrong token"),
        pytest.param({"ELASTICJOB_TOKEN_FILE": __file__}, "holds no token", id="broken token"),
    ],
)
def test_a_mistake_is_one_clear_error(pods: Pods, steps: Steps, env: dict[str, str | None], expected: str) -> None:
    (pods.folder / "wrong.token").write_text("of-somebody-else")
    pod = pods.start("pod-0", *command(steps), env=env)
    assert pod.wait() == 1
    assert re.search(expected, pod.log)
    assert pod.log.count("elasticjob: error:") == 1
    assert "Traceback" not in pod.log


def test_registering_by_hand_is_needed_before_torch_2_6_and_harmless_later() -> None:
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous.register()
    rendezvous.register()
    assert rendezvous_handler_registry._registry["elasticjob"] is rendezvous.open_handler
