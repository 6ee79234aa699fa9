"""An operator that lives and does not see the cluster: it says so, and sees again once it can."""

from __future__ import annotations

import contextlib
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.fault_proxy import Do, DoEvent, Event, EventFault, Fault, FaultProxy, Request, Rule
from elasticjob_devcluster import Cluster
from elasticjob_devcluster.system.addresses import free_port
from operator_fixture import Jobs, OperatorProcess, install_crd, light_spec, wait_for
from side_by_side import MAKERS, together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

AT_ONCE = 12  # see `side_by_side`: nearly all that they do is to wait
STARTS = 200.0  # seconds: but for their start, of all at once


SILENCE = EventFault(DoEvent.STALL, 3600)


@dataclass(frozen=True)
class Cut:
    """What a network does to requests, and to the watches that are open."""

    rule: Rule
    told: str  # why the operator is not ready
    events: EventFault = SILENCE
    ends_watches: bool = True


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

    def cut(self, cut: Cut) -> None:
        self.proxy.event_rule = lambda event: cut.events
        self.proxy.rule = cut.rule
        if cut.ends_watches:
            self.proxy.end_watches()

    def mend(self) -> None:
        self.proxy.rule = lambda request: None
        self.proxy.event_rule = lambda event: None


@contextlib.contextmanager
def make_behind(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Behind]:
    install_crd(cluster)
    proxy, port = FaultProxy(cluster.kubeconfig, tmp_path), free_port()
    proxy.start()
    flags = ("--namespace", namespace, "--stable-seconds", "1", "--http-port", str(port))
    operator = OperatorProcess(cluster, tmp_path, *flags, kubeconfig=proxy.own_kubeconfig)
    try:
        yield Behind(operator, proxy, port)
    finally:
        operator.stop()
        proxy.stop()


MAKERS["behind"] = make_behind


def refuse(status: int) -> Fault:
    return Fault(Do.ANSWER, status)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(Do.RESET), id="the network resets what was asked"),
        pytest.param(Fault(Do.DROP_REPLY), id="the network resets what is answered"),
        pytest.param(refuse(401), id="the token has expired"),
        pytest.param(refuse(410), id="what was asked for is compacted"),
    ],
)
@together
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
    jobs.await_world("early", 2, timeout=STARTS)
    assert refused
    wait_for(lambda: not behind.find_unready(), "it is ready")
    assert "this is a bug" not in behind.operator.log


def to_all(fault: Fault) -> Rule:
    return lambda request: fault


def to_reads(fault: Fault) -> Rule:
    """Lists and watches; what asks for one object is answered."""
    return lambda request: fault if request.verb in ("LIST", "WATCH") else None


NO_ANSWER = "the API server has not answered"


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(Cut(to_all(Fault(Do.HANG)), NO_ANSWER), id="half-open connections"),
        pytest.param(
            Cut(to_all(Fault(Do.HANG)), NO_ANSWER, ends_watches=False), id="half-open connections of watches too"
        ),
        pytest.param(Cut(to_all(refuse(401)), "401"), id="an expired token"),
        pytest.param(Cut(to_reads(refuse(410)), "410"), id="what is asked for is compacted"),
        pytest.param(Cut(to_reads(Fault(Do.RESET)), "the watch of "), id="lists and watches are reset"),
        pytest.param(
            Cut(lambda request: None, "the watch of ", EventFault(DoEvent.BREAK), ends_watches=False),
            id="watches are reset at each event",
        ),
    ],
)
@together
def test_an_operator_that_sees_nothing_says_so_and_recovers(
    behind: Behind, cluster: Cluster, namespace: str, cut: Cut
) -> None:
    """Side by side, since each of them waits for a minute or more."""
    jobs = Jobs(cluster, namespace)
    jobs.create("goes-on", light_spec())
    behind.operator.start()
    before = jobs.await_world("goes-on", 2, timeout=STARTS)
    wait_for(lambda: not behind.find_unready(), "it is ready")
    behind.cut(cut)
    cluster.kill_pod(namespace, before["rendezvous"]["members"][0]["pod"], signal.SIGKILL)
    wait_for(lambda: cut.told in behind.find_unready(), "it is no longer ready", 60.0, 0.5)
    behind.mend()
    wait_for(lambda: not behind.find_unready(), "it is ready again", 70.0, 0.5)
    jobs.await_world("goes-on", 2, above=before["rendezvous"]["generation"], timeout=70.0)
    assert "this is a bug" not in behind.operator.log


@together
def test_watches_that_are_open_and_silent_are_made_anew(behind: Behind, cluster: Cluster, namespace: str) -> None:
    """Their silence lasts, and proves nothing, so the operator is ready; new watches bring what has happened."""
    jobs = Jobs(cluster, namespace)
    jobs.create("goes-on", light_spec())
    behind.operator.start()
    before = jobs.await_world("goes-on", 2, timeout=STARTS)
    silent: set[str] = set()

    def silence(event: Event) -> EventFault | None:
        """The watch of this resource that is open now, from its next event on."""
        if event.resource in silent:
            return None
        silent.add(event.resource)
        return SILENCE

    behind.proxy.event_rule = silence
    cluster.kill_pod(namespace, before["rendezvous"]["members"][0]["pod"], signal.SIGKILL)
    wait_for(lambda: not behind.find_unready(), "it is ready")
    jobs.await_world("goes-on", 2, above=before["rendezvous"]["generation"], timeout=80.0)
    assert {"pods", "elasticjobs"} <= silent
    assert not behind.find_unready()
