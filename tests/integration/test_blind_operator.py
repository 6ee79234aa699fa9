"""An operator that lives and does not see the cluster: it says so, and sees again once it can."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.fault_proxy import Do, DoEvent, EventFault, Fault, FaultProxy, Request
from elasticjob_devcluster import Cluster
from elasticjob_devcluster.system.addresses import free_port
from operator_fixture import Jobs, OperatorProcess, install_crd, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@dataclass
class Behind:
    """An operator behind a network that can fail."""

    operator: OperatorProcess
    proxy: FaultProxy
    port: int

    def find_unready(self) -> str:
        """Why it is not ready; "" if it is."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10):
                return ""
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            return "it does not listen"

    def cut(self, rule: Fault) -> None:
        """No request gets further, and the watches that are open are silent from their next event on."""
        self.proxy.event_rule = lambda event: EventFault(DoEvent.STALL, 3600)
        self.proxy.rule = lambda request: rule

    def mend(self) -> None:
        self.proxy.rule = lambda request: None
        self.proxy.event_rule = lambda event: None


@pytest.fixture
def behind(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Behind]:
    install_crd(cluster)
    proxy, port = FaultProxy(cluster.kubeconfig, tmp_path), free_port()
    proxy.start()
    flags = ("--namespace", namespace, "--stable-seconds", "1", "--http-port", str(port))
    operator = OperatorProcess(cluster, tmp_path, *flags, kubeconfig=proxy.own_kubeconfig)
    yield Behind(operator, proxy, port)
    operator.stop()
    proxy.stop()


def refuse(status: int) -> Fault:
    return Fault(Do.ANSWER, status)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(Do.DROP_REPLY), id="the network resets what was asked"),
        pytest.param(refuse(401), id="the token has expired"),
        pytest.param(refuse(410), id="what was asked for is compacted"),
    ],
)
def test_an_operator_that_starts_beside_a_fault_sees_all_in_the_end(
    behind: Behind, cluster: Cluster, namespace: str, fault: Fault
) -> None:
    jobs = Jobs(cluster, namespace)
    jobs.create("early", light_spec())
    refused: list[str] = []

    def rule(request: Request) -> Fault | None:
        """Each list and each watch fails twice."""
        if request.verb not in ("LIST", "WATCH") or refused.count(request.path) >= 2:
            return None
        refused.append(request.path)
        return fault

    behind.proxy.rule = rule
    behind.operator.start()
    jobs.await_world("early", 2)
    assert refused
    wait_for(lambda: not behind.find_unready(), "it is ready")
    assert "this is a bug" not in behind.operator.log


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        pytest.param(Fault(Do.HANG), "the API server has not answered", id="half-open connections"),
        pytest.param(refuse(401), "401", id="an expired token"),
    ],
)
def test_an_operator_that_sees_nothing_says_so_and_recovers(
    behind: Behind, cluster: Cluster, namespace: str, fault: Fault, told: str
) -> None:
    jobs = Jobs(cluster, namespace)
    jobs.create("goes-on", light_spec())
    behind.operator.start()
    before = jobs.await_world("goes-on", 2)
    wait_for(lambda: not behind.find_unready(), "it is ready")
    behind.cut(fault)
    behind.proxy.end_watches()
    cluster.kill_pod(namespace, before["rendezvous"]["members"][0]["pod"], signal.SIGKILL)
    wait_for(lambda: told in behind.find_unready(), "it is no longer ready", 60.0, 0.5)
    behind.mend()
    wait_for(lambda: not behind.find_unready(), "it is ready again", 70.0, 0.5)
    jobs.await_world("goes-on", 2, above=before["rendezvous"]["generation"], timeout=70.0)
    assert "this is a bug" not in behind.operator.log
