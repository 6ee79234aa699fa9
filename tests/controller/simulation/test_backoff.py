"""Repeated failures: none is retried without back-off, and a condition explains the wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.builders import make_spec
from controller.simulated_cluster import Cluster, SimPod
from elasticjob_operator.failures import backoff_rules
from elasticjob_operator.plan.values import Plan

IGNORED = {"action": "RestartIgnoreBudget", "onExitCodes": {"operator": "In", "values": [42]}}


def make_cluster(behaviour: str = "", *, nodes: int = 8, rules: tuple[dict[str, object], ...] = ()) -> Cluster:
    spec = make_spec(2, 4, elasticPolicy={"maxRestarts": 100_000}, failurePolicy={"rules": list(rules)})
    cluster = Cluster(spec, nodes=nodes)
    cluster.default_behaviour = behaviour
    return cluster


@pytest.mark.parametrize(("size", "most"), [(3, 116), (4, 126)])
def test_pods_that_their_own_deadline_ends_cost_few_requests(size: int, most: int) -> None:
    """They end together, a moment apart, and so again and again."""
    cluster = Cluster(make_spec(1, 4, replicas=size), nodes=6)
    start, lives = cluster._start, {3: 8.0, 4: 4.0}[size]

    def start_and_end(pod: SimPod) -> None:
        start(pod)

        def end() -> None:
            if pod.uid in cluster.pods and not pod.record.terminal and pod.record.deleting is None:
                pod.update(reason="DeadlineExceeded", message="Pod was active longer than the specified deadline")
                cluster.kubelet_sees_exit(pod, 137, "")
                if pod.agent is not None:
                    pod.agent.alive = False
                    cluster.break_world(pod.agent)

        cluster.after(lives + 0.001 * pod.record.index, end)

    cluster._start = start_and_end  # type: ignore[method-assign]
    requests, before, apply = 0, cluster.status, cluster.apply

    def count(made: Plan) -> None:
        nonlocal requests, before
        has_status = made.status != before
        requests += len(made.create) + len(made.delete) + len(made.ensure) + len(made.events)
        requests += has_status + made.confirm
        before = made.status
        apply(made)

    cluster.apply = count  # type: ignore[method-assign]
    cluster.run(60)
    assert cluster.status.restarts.user or cluster.status.finished, "each try is charged"
    assert requests <= most


def newest(cluster: Cluster) -> int | None:
    """The index of the pod that was made last, where it has started lately and its agent lives."""
    pod = list(cluster.pods.values())[-1] if cluster.pods else None
    if pod is None or pod.agent is None or not pod.agent.alive or not pod.agent.connected or not pod.record.live:
        return None
    return pod.record.index if cluster.now - (pod.record.began or 0.0) < 8 else None


def nothing(cluster: Cluster) -> None:
    """Its containers end by themselves."""


def spoil_replacements(cluster: Cluster, behaviour: str) -> None:
    if cluster.trains:
        cluster.default_behaviour = behaviour
        if cluster.size == 4:
            cluster.kill(0)


def kill_newest(cluster: Cluster) -> None:
    index = newest(cluster)
    if index is not None:
        cluster.kill(index)


def kill_newest_member(cluster: Cluster) -> None:
    if cluster.trains and cluster.size == 4:
        cluster.kill(cluster.member(3).record.index)


def evict_newest(cluster: Cluster) -> None:
    index = newest(cluster)
    if index is not None:
        cluster.disrupt(index)


def delete_newest_member(cluster: Cluster) -> None:
    if cluster.trains and cluster.size == 4:
        cluster.delete_pod(cluster.member(3).uid, grace=1.0)


def delete_member_by_force(cluster: Cluster) -> None:
    if cluster.trains and cluster.size == 4:
        cluster.delete_pod(cluster.member(3).uid, force=True)


def give_up(cluster: Cluster) -> None:
    if cluster.trains:
        cluster.give_up(cluster.member(0).record.index)


def silence_newest(cluster: Cluster) -> None:
    index = newest(cluster)
    if index is not None and not cluster.agent(index).paused:
        cluster.pause(index, 10_000)


def kill_its_node(cluster: Cluster) -> None:
    index = newest(cluster)
    if index is not None:
        cluster.kill_node(cluster.pod(index).record.node)
    for name, node in cluster.nodes.items():
        if not node.record.ready:
            cluster.revive_node(name)


def fail_worker(cluster: Cluster, code: int = 1) -> None:
    if cluster.trains:
        cluster.agent(cluster.member(1).record.index).fail(code)


def fail_after_a_step(cluster: Cluster) -> None:
    if cluster.trains:
        cluster.report(cluster.member(0).record.index, step=cluster.generation)
        fail_worker(cluster)


def make_all_unfit(cluster: Cluster) -> None:
    cluster.unfit = set(cluster.nodes)


KINDS = [
    pytest.param("exit1", nothing, (), id="the-program-ends-badly"),
    pytest.param("exit137", nothing, (), id="killed"),
    pytest.param("exit143", nothing, (), id="terminated"),
    pytest.param("rejected", nothing, (), id="rejected-by-the-kubelet"),
    pytest.param("pull-error", nothing, (), id="image-pull"),
    pytest.param("", lambda c: spoil_replacements(c, "exit137"), (), id="a-replacement-is-killed"),
    pytest.param("", lambda c: spoil_replacements(c, "exit0"), (), id="a-replacement-never-joins"),
    pytest.param("", lambda c: spoil_replacements(c, "bad-command"), (), id="a-replacement-cannot-start"),
    pytest.param("", lambda c: spoil_replacements(c, "rejected"), (), id="a-replacement-is-rejected"),
    pytest.param("", kill_newest, (), id="killed-when-ready"),
    pytest.param("", kill_newest_member, (), id="killed-when-it-trains"),
    pytest.param("", evict_newest, (), id="evicted"),
    pytest.param("", delete_newest_member, (), id="deleted"),
    pytest.param("", delete_member_by_force, (), id="deleted-by-force"),
    pytest.param("", give_up, (), id="the-agent-gives-up"),
    pytest.param("", silence_newest, (), id="silent"),
    pytest.param("", kill_its_node, (), id="node-lost"),
    pytest.param("", fail_worker, (), id="a-worker-fails"),
    pytest.param("", lambda c: fail_worker(c, 42), (IGNORED,), id="a-worker-fails-and-a-rule-ignores-it"),
    pytest.param("", fail_after_a_step, (), id="a-worker-fails-after-one-more-step"),
    pytest.param("exit42", nothing, (IGNORED,), id="the-program-ends-badly-and-a-rule-ignores-it"),
    pytest.param("", make_all_unfit, (), id="preflight"),
]


@pytest.mark.parametrize(("behaviour", "act", "rules"), KINDS)
def test_nothing_is_tried_again_without_back_off(
    behaviour: str, act: Callable[[Cluster], None], rules: tuple[dict[str, object], ...]
) -> None:
    """Ten minutes of a fault that never ends. Without back-off there were 46 pods a minute."""
    cluster = make_cluster(behaviour, rules=rules)
    while cluster.now < 1_000_600:
        cluster.run(1.0)
        act(cluster)
    assert not cluster.status.is_true("Failed")
    # Four pods that end together are four tries; alone each of them is tried some 14 times: at once, then 1, 2 … 256 s.
    assert len(cluster.created) <= 4 * 15, "pods"
    assert cluster.generation <= 40, "worlds"


@pytest.mark.parametrize("size", [2, 4, 16, 50])
def test_pods_that_a_node_refuses_are_few(size: int) -> None:
    """In the first minute, beside the first pods; while no pod has started, one of them tries for all."""
    cluster = Cluster(make_spec(1, size, replicas=size), nodes=size)
    cluster.default_behaviour = "rejected"
    cluster.run(60)
    assert len(cluster.created) - size <= 6
    assert cluster.condition("Degraded") == ("True", "BackOff")
    cluster.default_behaviour = ""
    assert cluster.run_until(lambda: cluster.size == size) < 70
    assert cluster.status.restarts.user == 0


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("behaviour", ["init-fails", "bad-command", "exit1"])
@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 0.75])
def test_pods_that_fail_at_once_are_few(behaviour: str, size: int, fraction: float) -> None:
    """In the first minute: at once, and then 1, 2, 4 … s later, each time all pods."""
    rule = {"action": "Restart", "onExitCodes": {"operator": "NotIn", "values": [0]}}
    spec = make_spec(1, size, replicas=size, elasticPolicy={"maxRestarts": 1000}, failurePolicy={"rules": [rule]})
    cluster = Cluster(spec, nodes=size)
    cluster.default_behaviour = behaviour
    cluster.now += fraction
    cluster.run(60)
    assert len(cluster.created) <= 8 * size


def test_pods_that_are_refused_beside_others_are_few() -> None:
    cluster = make_cluster()
    cluster.run_until(lambda: cluster.size == 4)
    cluster.run(backoff_rules.STABLE_SECONDS + 1)
    made, cluster.default_behaviour = len(cluster.created), "rejected"
    for rank in (2, 3):
        cluster.kill(cluster.member(rank).record.index)
    cluster.run(60)
    assert len(cluster.created) - made <= 2 + 7
    assert cluster.size == 2, "the others train on"
    cluster.default_behaviour = ""
    assert cluster.run_until(lambda: cluster.size == 4) < 70


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 50])
@pytest.mark.parametrize("lived", [0.5, 1.25, 3, 14])
@pytest.mark.parametrize("apart", [0.0, 0.4])
def test_pods_that_are_evicted_soon_after_their_start_are_few(size: int, lived: float, apart: float) -> None:
    """The first pods of a job, and then ten a minute, however many they are."""
    cluster = Cluster(make_spec(1, size, replicas=size), nodes=size)
    while cluster.now < 1_000_060:
        cluster.run(0.25)
        for pod in list(cluster.pods.values()):
            began, lives = pod.record.began, min(29.0, lived * (1 + apart * (pod.record.index % 8)))
            if began is not None and pod.agent and pod.agent.alive and cluster.now - began >= lives:
                pod.agent.exit(137, "Evicted")
    assert len(cluster.created) - size <= 10
    assert "BackOff" in cluster.told_events()
    assert cluster.status.restarts.user == 0
    assert cluster.run_until(lambda: cluster.size == size) < 90


def test_the_first_losses_are_made_good_at_once() -> None:
    cluster = make_cluster()
    cluster.run_until(lambda: cluster.size == 4)
    for _ in range(backoff_rules.FREE_TRIES):
        made = len(cluster.created)
        cluster.kill(cluster.member(3).record.index)
        assert cluster.run_until(lambda made=made: len(cluster.created) > made) < 1  # type: ignore[misc]
        cluster.run_until(lambda: cluster.size == 4)


def test_losses_far_apart_are_made_good_at_once() -> None:
    cluster = make_cluster()
    for _ in range(20):
        cluster.run_until(lambda: cluster.size == 4)
        cluster.run(backoff_rules.STABLE_SECONDS + 1)
        made = len(cluster.created)
        cluster.kill(cluster.member(3).record.index)
        assert cluster.run_until(lambda made=made: len(cluster.created) > made) < 1  # type: ignore[misc]


def test_the_others_train_on_and_are_replaced_while_one_pod_waits() -> None:
    cluster = make_cluster()
    cluster.run_until(lambda: cluster.size == 4)
    while backoff_rules.wait_until(cluster.status.restarts.backoff, cluster.now) <= cluster.now + 10:
        cluster.run(0.5)
        kill_newest(cluster)
    assert cluster.condition("Degraded") == ("True", "BackOff")
    assert cluster.status.restarts.total == 0, "those that stopped for the newcomers are not to blame"
    cluster.run_until(lambda: cluster.size == 3)
    assert "BackOff" in cluster.told_events()
    made = len(cluster.created)
    old = cluster.member(0).record.index
    cluster.kill(old)
    assert cluster.run_until(lambda: len(cluster.created) > made) < 1, "this one had run for long"


def test_a_condition_says_what_fails_and_when_it_is_tried_again() -> None:
    cluster = make_cluster("exit137")
    cluster.run(60)
    noted = cluster.status.restarts.backoff
    assert noted is not None
    found = cluster.status.condition("Degraded")
    running = cluster.status.condition("Running")
    assert found is not None
    assert running is not None
    assert (found.status, found.reason, found.message) == ("True", running.reason, running.message)
    assert found.reason == "BackOff"
    assert (
        f"consecutive failures without progress; next attempt at {noted.until}; one pod is tried before the others; "
        "last: digits-worker-" in found.message
    )
    assert "exit code 137" in found.message
    cluster.default_behaviour = ""
    cluster.run(300)
    assert cluster.size == 4
    assert cluster.condition("Degraded")[0] == "False"


def test_pods_that_somebody_deletes_are_not_told_as_an_earlier_failure() -> None:
    cluster = make_cluster()
    cluster.run_until(lambda: cluster.trains and cluster.size == 4)
    cluster.kill(cluster.member(3).record.index)
    for _ in range(2):
        cluster.run_until(lambda: cluster.trains and cluster.size < 4)
        cluster.run_until(lambda: cluster.trains and cluster.size == 4)
        cluster.delete_pod(cluster.member(3).uid, grace=1.0)
    cluster.run_until(lambda: cluster.trains and cluster.size < 4)
    found = cluster.status.condition("Degraded")
    assert found is not None and found.reason == "BackOff"
    assert cluster.status.last_failure is not None, "it is still known"
    assert "consecutive starts without progress" in found.message
    assert found.message.endswith(
        "; the last pods have not failed: they were evicted or deleted, or ended, soon after their start"
    )


def test_the_back_off_outlives_the_operator() -> None:
    cluster = make_cluster("exit137")
    cluster.run(60)
    until = backoff_rules.wait_until(cluster.status.restarts.backoff, cluster.now)
    assert until > cluster.now + 5
    made = len(cluster.created)
    cluster.restart_operator()
    cluster.run(until - cluster.now - 0.5)
    assert len(cluster.created) == made
    cluster.run(1)
    assert len(cluster.created) > made


def test_a_change_of_the_spec_ends_the_back_off() -> None:
    cluster = make_cluster("exit137")
    cluster.run(120)
    cluster.default_behaviour = ""
    cluster.edit(template={"spec": {"containers": [{"name": "trainer", "image": "mended"}]}})
    assert cluster.run_until(lambda: cluster.size == 4) < 10


def test_a_node_that_fails_the_preflight_costs_nothing_and_is_left_alone() -> None:
    cluster = make_cluster(nodes=5)
    cluster.unfit = {"node1"}
    assert cluster.run_until(lambda: cluster.size == 4) < 15
    status = cluster.status
    assert (status.restarts.user, status.restarts.infrastructure) == (0, 1)
    assert [(f.node, f.count) for f in status.node_faults] == [("node1", 2)]
    assert status.last_failure is not None
    assert status.last_failure.reason == "PreflightFailed"
    assert status.last_failure.message == (
        "digits-worker-1 failed [PreflightFailed]: shm: /dev/shm is too small -- mount a bigger one"
    )
    cluster.run(600)
    assert len(cluster.created) == 5


def test_a_node_with_a_bad_network_is_found_and_the_others_start() -> None:
    cluster = make_cluster(nodes=5)
    cluster.bad_links = {"node1"}
    assert cluster.run_until(lambda: cluster.size == 4) < 30
    status = cluster.status
    assert "node1" not in {member.node for member in status.rendezvous.members}
    assert (status.restarts.user, status.restarts.infrastructure) == (0, 1)
    assert [(f.node, f.count) for f in status.node_faults] == [("node1", 2)]
    assert status.last_failure is not None and status.last_failure.reason == "PreflightFailed"
    assert "network: 1.0 MiB/s between" in (status.last_failure.message or "")
    assert [(one.node, one.passed) for one in status.preflight if not one.passed] == [("node1", False)]
    cluster.run(600)
    assert len(cluster.created) == 5


def test_a_network_that_is_slow_everywhere_accuses_nobody() -> None:
    cluster = make_cluster(nodes=5)
    cluster.bad_links = set(cluster.nodes)
    assert cluster.run_until(lambda: cluster.size == 4) < 15
    assert all(one.passed for one in cluster.status.preflight) and len(cluster.status.preflight) == 4
    cluster.run(600)
    assert len(cluster.created) == 4 and not cluster.status.node_faults


def test_a_preflight_that_fails_everywhere_is_told() -> None:
    cluster = make_cluster(nodes=4)
    cluster.unfit = set(cluster.nodes)
    cluster.run(60)
    assert cluster.condition("Degraded") == ("True", "PreflightFailed")
    assert "PreflightFailed" in cluster.told_events()


def fail_all(cluster: Cluster, message: str, code: int = 1) -> None:
    if cluster.trains:
        for member in list(cluster.status.rendezvous.members):
            agent = cluster.pods[member.uid].agent
            assert agent is not None
            agent.fail(code, message)


@pytest.mark.parametrize(
    "message",
    [
        "train.py: error: unrecognized arguments: --local-rank=0",
        "train.py: error: --lr has to be positive",
        "Error: No such option: --lrr",
    ],
)
def test_a_usage_error_fails_the_job_soon(message: str) -> None:
    cluster = Cluster(make_spec(1, 2))
    for _ in range(120):
        cluster.run(0.25)
        fail_all(cluster, message, code=2)
    assert cluster.condition("Failed") == ("True", "CrashLoop")
    condition = cluster.status.condition("Failed")
    assert condition is not None
    assert message in condition.message
    assert ("start the script with torchrun" in condition.message) == ("--local-rank" in message)


@pytest.mark.parametrize(
    ("message", "fails"),
    [
        pytest.param("ModuleNotFoundError: No module named 'tranformers'", True, id="import"),
        pytest.param("SyntaxError: invalid syntax", True, id="syntax"),
        pytest.param("AttributeError: module 'torch' has no attribute 'cudda'", True, id="attribute"),
        pytest.param("AttributeError: 'NoneType' object has no attribute 'json'", False, id="a-missing-answer"),
        pytest.param("ConnectionRefusedError: [Errno 111] Connection refused", False, id="a-service-that-is-not-up"),
        pytest.param("RuntimeError: license server unavailable", False, id="anything-else"),
    ],
)
def test_a_mistake_of_the_program_fails_the_job_soon(message: str, fails: bool) -> None:
    cluster = Cluster(make_spec(1, 2))
    for _ in range(120):
        cluster.run(0.25)
        fail_all(cluster, message)
    if fails:
        assert cluster.condition("Failed") == ("True", "CrashLoop")
        condition = cluster.status.condition("Failed")
        assert condition is not None
        assert "the same error 3 times in a row before the first step" in condition.message
        assert message in condition.message
    else:
        assert not cluster.status.finished
        assert cluster.condition("Running") == ("False", "CrashLoop")
        assert cluster.condition("Degraded") == ("True", "CrashLoop")


def test_a_mistake_on_one_node_alone_may_be_the_nodes() -> None:
    cluster = Cluster(make_spec(1, 2))
    for _ in range(120):
        cluster.run(0.25)
        if cluster.trains:
            cluster.agent(1).fail(1, "ImportError: libcuda.so.1: cannot open shared object file")
    assert not cluster.status.finished


def test_a_mistake_after_a_step_uses_up_the_budget() -> None:
    cluster = Cluster(make_spec(1, 2))
    for _ in range(120):
        cluster.run(0.25)
        if cluster.trains:
            cluster.report(cluster.member(0).record.index, step=1)
            fail_all(cluster, "NameError: name 'metrics' is not defined")
    assert not cluster.status.finished


def test_a_rule_of_the_users_counts_before_ours() -> None:
    rule = {"action": "Restart", "onExitCodes": {"operator": "In", "values": [1]}}
    cluster = Cluster(make_spec(1, 2, failurePolicy={"rules": [rule]}))
    for _ in range(120):
        cluster.run(0.25)
        fail_all(cluster, "SyntaxError: invalid syntax")
    assert not cluster.status.finished


def test_a_changed_size_does_not_end_the_back_off() -> None:
    """An autoscaler, or two writers that disagree, change the size for ever, and mend nothing."""
    cluster = make_cluster("rejected")
    cluster.run(60)
    before = len(cluster.created)
    for number in range(30):
        cluster.edit(replicas=3 + number % 2)
        cluster.run(10)
    assert len(cluster.created) - before < 40, "a fixed spec makes no more"
    told = cluster.status.condition("Degraded")
    assert told is not None
    assert told.reason == "BackOff"
