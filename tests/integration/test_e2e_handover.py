"""Two operators with one Lease: the leader stops or is killed while a job trains. Training continues undisturbed.

The replicas are behind one address that leads to either of them at random, like a Service.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from integration.test_training import await_step, read_steps, torchrun_spec
from operator_fixture import Jobs, OperatorProcess, wait_for
from replicas_fixture import Service

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

LEASE_SECONDS = 4


@pytest.fixture
def pair(operator_factory: Callable[..., OperatorProcess], namespace: str) -> Iterator[list[OperatorProcess]]:
    """Two replicas; they are told apart by the name in the Lease."""
    started = [
        operator_factory(
            [
                *("--namespace", namespace, "--operator-namespace", namespace, "--stable-seconds", "1"),
                *("--leader-election", "--lease-seconds", str(LEASE_SECONDS), "--identity", name),
            ]
        )
        for name in ("one", "two")
    ]
    service = Service([operator.hub_port for operator in started])
    for operator in started:  # again, with the address that only the service knows
        operator.kill()
        operator.flags = (*operator.flags, "--hub-url", f"ws://127.0.0.1:{service.port}")
        operator.start()
    yield started
    for operator in started:
        operator.stop()
        print(f"this replica said:\n{operator.log[-4000:]}")
    service.close()


def holder(cluster: Cluster, namespace: str) -> str:
    lease = cluster.kube.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/elasticjob-operator")
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "").partition("_")[0]


def test_training_does_not_notice_a_new_leader(
    cluster: Cluster, namespace: str, pair: list[OperatorProcess], tmp_path: Path
) -> None:
    jobs = Jobs(cluster, namespace)
    jobs.create("steps", torchrun_spec(tmp_path))
    await_step(tmp_path, 2)
    before = jobs.await_world("steps", 2, timeout=120)
    pods = find_pods(jobs)
    wait_for(lambda: holder(cluster, namespace), "somebody leads")

    # Told to stop, as an upgrade does it; then, with the roles changed, killed.
    for number in (signal.SIGTERM, signal.SIGKILL):
        leader, follower = pair if holder(cluster, namespace) == "one" else pair[::-1]
        gone = time.time()
        leader.kill(number)
        wait_for(lambda log=follower: "leading as" in log.log, "the other one leads", timeout=60)  # type: ignore[misc]
        led = time.time()
        leader.start()
        wait_for(lambda then=led: read_steps(tmp_path)[-1]["t"] > then + 1, "training goes on")  # type: ignore[misc]
        assert [s for s in read_steps(tmp_path) if gone < s["t"] < led], "it trained while nobody led"

    now = jobs.status("steps")
    assert now["rendezvous"]["generation"] == before["rendezvous"]["generation"], "the world is the same"
    assert now["restarts"]["total"] == 0
    assert find_pods(jobs) == pods
    assert_no_step_is_lost(read_steps(tmp_path))

    # The last leader is in charge.
    jobs.scale("steps", 3)
    jobs.await_world("steps", 3, timeout=120)
    jobs.delete("steps")


def find_pods(jobs: Jobs) -> dict[str, int]:
    """The job's pods, and how often the trainer was started again."""
    return {p["metadata"]["uid"]: p["status"]["containerStatuses"][0]["restartCount"] for p in jobs.pods("steps")}


def assert_no_step_is_lost(steps: list[dict[str, Any]]) -> None:
    """One process a rank, and each has made every step, once, in turn."""
    assert len({(s["rank"], s["pid"]) for s in steps}) == 2
    for rank in (0, 1):
        made = [s["step"] for s in steps if s["rank"] == rank]
        assert made == list(range(len(made)))
