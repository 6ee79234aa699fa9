"""Every metric in the documentation or the dashboard changes when the event that it measures happens."""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import promql_parser as promql
import pytest
from prometheus_client.parser import text_string_to_metric_families

from chaos.fault_proxy import Do, Fault, FaultProxy, Request
from elasticjob_devcluster import Cluster
from elasticjob_devcluster.system.addresses import free_port
from elasticjob_operator.api import names
from operator_fixture import ROOT, Jobs, OperatorProcess, install_crd, light_spec, wait_for

pytestmark = pytest.mark.cluster

DASHBOARD = ROOT / "manifests/chart/elasticjob/files/dashboard.json"
# Both count what no object and no answer of an API server brings about; what makes them move is in
# tests/controller/run/test_operator.py::test_what_is_left_out_and_what_begins_anew_is_counted.
QUIET = {"elasticjob_background_restarts", "elasticjob_objects_skipped"}
# Light agents are all as fast; what makes this one move is in tests/controller/run/test_metrics.py::
# test_a_slow_rank_has_a_series_as_long_as_it_is_slow.
QUIET |= {"elasticjob_straggler_slowdown_ratio"}
# Nor do they check the network: tests/controller/run/test_metrics.py::test_the_links_of_a_checked_node_have_series.
QUIET |= {"elasticjob_preflight_bytes_per_second", "elasticjob_preflight_round_trip_seconds"}
# It takes more than 10,000 jobs: tests/controller/run/test_metrics.py::
# test_ever_more_jobs_get_no_more_series_and_leave_some_to_others.
QUIET |= {"elasticjob_jobs_left_out"}
# Nor does this job have an archive: tests/controller/run/test_metrics.py looks at one that has.
QUIET |= {"elasticjob_archive_interval_seconds"}
# Nor does another release watch it: tests/controller/run/test_others.py.
QUIET |= {"elasticjob_jobs_of_others"}
Series = dict[str, list[tuple[dict[str, str], float]]]


class Watched:
    """An operator whose requests pass through a proxy, and its metrics."""

    def __init__(self, cluster: Cluster, namespace: str, directory: Path) -> None:
        self.proxy = FaultProxy(cluster.kubeconfig, directory)
        self.proxy.start()
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        flags = ("--namespace", namespace, "--stable-seconds", "1", "--metrics-address", address)
        self.operator = OperatorProcess(cluster, directory, *flags, kubeconfig=self.proxy.own_kubeconfig)

    def scrape(self) -> Series:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found: Series = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name].append((dict(sample.labels), sample.value))
        return found

    def sum_of(self, name: str) -> float:
        return sum(value for _, value in self.scrape().get(name, []))


@pytest.fixture
def watched(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Watched]:
    install_crd(cluster)
    made = Watched(cluster, namespace, tmp_path)
    made.operator.start()
    yield made
    made.operator.stop()
    made.proxy.stop()


def refuse_once(proxy: FaultProxy, is_meant: Callable[[Request], bool]) -> None:
    """The next such request is answered with an error of the server."""
    told: list[int] = []

    def rule(request: Request) -> Fault | None:
        if told or not is_meant(request):
            return None
        told.append(request.number)
        return Fault(Do.ANSWER, 500)

    proxy.rule = rule


def test_every_metric_that_is_named_moves(watched: Watched, cluster: Cluster, namespace: str) -> None:
    jobs = Jobs(cluster, namespace)
    reported = [f"--metric={name}" for name in ("loss", *(f"loss/{part}" for part in range(8)))]  # one too many
    rule = {"name": "Above", "when": {"metric": {"name": "loss", "above": 0}}}
    jobs.create("digits", light_spec(*reported, health={"rules": [rule]}))
    started = jobs.await_world("digits", 2)
    # A pod is lost: an exit that nobody wanted, a regroup, a restart, a while without training. (One that is deleted
    # leaves, and counts as no restart.)
    cluster.kill_pod(namespace, started["rendezvous"]["members"][0]["pod"], signal.SIGKILL)
    again = jobs.await_world("digits", 2, above=started["rendezvous"]["generation"])
    wait_for(lambda: watched.sum_of("elasticjob_faults") >= 1, "the job trains again, and the loss is counted")
    stranger = {"metadata": {"name": "theirs", "labels": {names.LABEL_APP: names.LABEL_APP_VALUE}}}
    cluster.kube.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", stranger)
    refuse_once(watched.proxy, lambda request: request.resource == "elasticjobs/status")
    jobs.scale("digits", 3)
    jobs.await_world("digits", 3, above=again["rendezvous"]["generation"])
    wait_for(lambda: watched.sum_of("elasticjob_reconcile_errors_total") >= 1, "the refused write is counted")
    wait_for(lambda: watched.sum_of("elasticjob_rescale_seconds_count") >= 2, "both changes of the world are counted")
    wait_for(lambda: watched.sum_of("elasticjob_step_seconds") > 0, "a report is in the status")
    between = "elasticjob_mean_seconds_between_faults"
    wait_for(lambda: watched.sum_of(between) > 0, "training between losses is counted")
    wait_for(lambda: watched.sum_of("elasticjob_rule_incidents") >= 1, "the rule has fired")
    progress = jobs.status("digits")["progress"]
    assert progress["checkpoints"][0]["tier"] == "File"
    assert "loss" in progress["history"]["reports"][0]["metrics"], "the API server keeps what the job remembers"
    series = watched.scrape()
    moved = {name for name, samples in series.items() if any(value for _, value in samples)}
    named = named_metrics()
    assert len(named) > 15
    assert {n for n in named if n not in QUIET and not moved & {n, f"{n}_total", f"{n}_count", f"{n}_bucket"}} == set()
    for expression in expressions():
        for name, labels in selectors(expression):
            if name.removesuffix("_total") in QUIET:
                continue
            assert name in moved, f"{expression}: no such series after a job has trained"
            known = {key for sample, _ in series[name] for key in sample} | SCRAPED
            assert labels <= known, f"{expression}: {name} has no label {labels - known}"


SCRAPED = {"instance", "pod", "container", "endpoint", "service"}  # labels that Prometheus adds


def named_metrics() -> set[str]:
    """The names in the documentation, without their endings."""
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    text += "".join(path.read_text() for path in (ROOT / "manifests").rglob("*.yaml"))
    found = set(re.findall(r"`(?:\w+\()*(elasticjob_[a-z_]+)", text))
    return {name.removesuffix("_total") for name in found} - {"elasticjob_operator", "elasticjob_devcluster"}


def expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The series that an expression reads, with the labels that it asks of them. An expression that is none raises."""
    for variable in ("$__rate_interval", "$__interval", "$__range"):
        expression = expression.replace(variable, "5m")
    parsed = promql.parse(expression)
    asked = set(re.findall(r"\b(?:by|without|on)\s*\(([^)]*)\)", expression))
    grouped = {label.strip() for labels in asked for label in labels.split(",")} - {""}
    for selector in find_selectors(parsed):
        matched = {matcher.name for matcher in selector.matchers.matchers}
        yield str(selector.name), matched | grouped


def find_selectors(expression: object) -> Iterator[promql.VectorSelector]:
    if isinstance(expression, promql.VectorSelector):
        yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector", "vs", "param"):
        inner = getattr(expression, name, None)
        if inner is not None:
            yield from find_selectors(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from find_selectors(inner)


def test_limits_and_the_loop_are_told(watched: Watched) -> None:
    """The limit of open files is the process's, raised by itself, and what it makes of it is told."""
    wait_for(lambda: _answers(watched), "the metrics are served")
    series = watched.scrape()
    limits = {labels["stage"]: value for labels, value in series["elasticjob_hub_places_limit"]}
    assert limits["agents"] > 0 and limits.keys() == {
        "newcomers",
        "strangers",
        "kept",
        "arriving",
        "pending",
        "agents",
        "unread",
    }
    assert f"open files allows {limits['agents']:.0f} agents" in watched.operator.log
    before = watched.sum_of("elasticjob_event_loop_lag_seconds_count")
    began = time.monotonic()
    wait_for(lambda: watched.sum_of("elasticjob_event_loop_lag_seconds_count") > before + 5, "the loop is looked at")
    assert time.monotonic() - began < 30


def _answers(watched: Watched) -> bool:
    try:
        return bool(watched.scrape())
    except OSError:
        return False
