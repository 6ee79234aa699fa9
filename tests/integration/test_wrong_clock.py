"""An operator on a machine whose clock is hours off, or is set while it runs: it leads, and ends no job too early."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from elasticjob_devcluster import Cluster
from elasticjob_operator.times import parse_time
from operator_fixture import ROOT, Jobs, OperatorProcess, install_crd, light_spec, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

FOLDER = ROOT / "tests/integration/programs/wrong_clock"
HOURS = 3600.0
LEASE_SECONDS = 10.0  # so that a busy machine keeps it
NEAR = 60.0  # seconds; what a busy machine takes is less, and a wrong clock is hours off
LEASE = "elasticjob-operator"


class Machine:
    """Where an operator runs, with a clock of its own, and another machine whose operator stands by."""

    def __init__(self, cluster: Cluster, directory: Path, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.clock = directory / "ahead"
        variables = {"PYTHONPATH": str(FOLDER), "WRONG_CLOCK": str(self.clock)}
        self.wrong = self._make(directory, "wrong", **variables)
        self.right = self._make(directory, "right")

    def _make(self, directory: Path, name: str, **variables: str) -> OperatorProcess:
        place = directory / name
        place.mkdir()
        flags = (
            *("--namespace", self.namespace, "--operator-namespace", self.namespace, "--stable-seconds", "1"),
            *(
                "--leader-election",
                "--lease-seconds",
                str(LEASE_SECONDS),
                "--identity",
                name,
                "--tls-secret",
                "hub-tls",
            ),
        )
        made = OperatorProcess(self.cluster, place, *flags, variables=variables)
        made.flags += ("--hub-url", f"wss://127.0.0.1:{made.hub_port}")
        return made

    def set_ahead(self, seconds: float) -> None:
        written = self.clock.with_suffix(".new")
        written.write_text(str(seconds))
        written.rename(self.clock)

    def lease(self) -> dict[str, Any]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{LEASE}"
        spec: dict[str, Any] = (self.cluster.kube.get(path) or {}).get("spec") or {}
        return spec

    def await_renewals(self, count: int) -> None:
        """The Lease is renewed so often, by the same leader."""
        for _ in range(count):
            before = self.lease()
            wait_for(lambda: self.lease()["renewTime"] != before["renewTime"], "the Lease is renewed")  # noqa: B023


@contextlib.contextmanager
def start_machine(cluster: Cluster, namespace: str, tmp_path: Path, ahead: float) -> Iterator[Machine]:
    """The operator with a clock of its own leads, and the other one stands by."""
    install_crd(cluster)
    made = Machine(cluster, tmp_path, namespace)
    try:
        made.set_ahead(ahead)
        made.wrong.start()
        wait_for(lambda: made.lease().get("holderIdentity"), "it leads")
        made.right.start()
        yield made
    finally:
        for operator in (made.right, made.wrong):
            operator.stop()
            if operator.starts:
                print(f"{operator.directory.name} said:\n{operator.log[-6000:]}")
                assert "this is a bug" not in operator.log


def is_near(text: str) -> bool:
    return abs((parse_time(text) or 0.0) - time.time()) < NEAR


def deadlines(startup: int = 600, active: int = 600) -> dict[str, Any]:
    return {"runPolicy": {"startupDeadlineSeconds": startup, "activeDeadlineSeconds": active}}


def judge(machine: Machine, jobs: Jobs, name: str) -> None:
    """That everything this operator has written is of now, and that the job goes on."""
    lease = machine.lease()
    assert lease["holderIdentity"].partition("_")[0] == "wrong"
    assert lease["leaseTransitions"] == 0
    assert is_near(lease["renewTime"])
    status = jobs.status(name)
    assert status["phase"] == "Running"
    assert all(is_near(one["lastTransitionTime"]) for one in status["conditions"]), status["conditions"]
    events = machine.cluster.kube.request("GET", f"/api/v1/namespaces/{jobs.namespace}/events")["items"]
    stamps = [e.get("lastTimestamp") or e.get("eventTime") for e in events if e["involvedObject"]["name"] == name]
    assert stamps
    assert all(is_near(stamp) for stamp in stamps), stamps
    secret = machine.cluster.kube.request("GET", f"/api/v1/namespaces/{machine.namespace}/secrets/hub-tls")
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    assert certificate.not_valid_before_utc < datetime.now(UTC) < certificate.not_valid_after_utc


@pytest.mark.parametrize("ahead", [pytest.param(5 * HOURS, id="ahead"), pytest.param(-5 * HOURS, id="behind")])
@together
def test_a_clock_that_is_hours_off(cluster: Cluster, namespace: str, tmp_path: Path, ahead: float) -> None:
    jobs = Jobs(cluster, namespace)
    with start_machine(cluster, namespace, tmp_path, ahead) as machine:
        jobs.create("trains", light_spec(**deadlines()))
        jobs.await_world("trains", 2)
        machine.await_renewals(4)
        judge(machine, jobs, "trains")
        jobs.create("ends", light_spec(**deadlines(active=3)))
        assert jobs.await_condition("ends", "Failed")["reason"] == "DeadlineExceeded"
        generation = jobs.status("trains")["rendezvous"]["generation"]
        machine.wrong.kill()
        wait_for(lambda: machine.lease()["holderIdentity"].startswith("right"), "the other one takes over")
        jobs.scale("trains", 3)
        jobs.await_world("trains", 3, above=generation)


@together
def test_a_clock_that_is_set_while_it_runs(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    jobs = Jobs(cluster, namespace)
    with start_machine(cluster, namespace, tmp_path, 0.0) as machine:
        jobs.create("trains", light_spec(**deadlines()))
        generation = jobs.await_world("trains", 2)["rendezvous"]["generation"]
        for ahead, size in ((5 * HOURS, 3), (-5 * HOURS, 2), (0.0, 3)):
            machine.set_ahead(ahead)
            machine.await_renewals(3)
            jobs.scale("trains", size)
            generation = jobs.await_world("trains", size, above=generation)["rendezvous"]["generation"]
            judge(machine, jobs, "trains")
