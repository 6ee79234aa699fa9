"""The devcluster's decisions: tables of inputs and exact outputs."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import flags
from elasticjob_devcluster.api import drain, kube
from elasticjob_devcluster.controlplane import debian
from elasticjob_devcluster.node import environ, status
from elasticjob_devcluster.node.backoff import Backoff
from elasticjob_devcluster.node.status import ContainerState, Ended, Running, Waiting
from elasticjob_devcluster.runtime import containerlog, images, probes
from elasticjob_devcluster.system import addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param("$(A)-$(B)", "1-2", id="two references"),
        pytest.param("$(MISSING)", "$(MISSING)", id="unknown stays"),
        pytest.param("$$(A)", "$(A)", id="escaped"),
        pytest.param("$$$(A)", "$1", id="escaped dollar, then a reference"),
        pytest.param("cost: 5$", "cost: 5$", id="dollar at the end"),
        pytest.param("$A ${A}", "$A ${A}", id="shell syntax is not ours"),
    ],
)
def test_expand(text: str, expected: str) -> None:
    assert environ.expand(text, {"A": "1", "B": "2"}) == expected


POD: dict[str, Any] = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"app": "x", "b.io/c": 'q"'},
        "annotations": {"note": "hello"},
    },
    "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {"cpu": "1500m"}}}]},
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "x"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['note']", "hello"),
        ("metadata.labels", 'app="x"\nb.io/c="q\\""'),
        ("spec.nodeName", "n"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.1.0.2"),
        ("status.hostIP", "127.1.0.1"),
    ],
)
def test_field_value(path: str, expected: str) -> None:
    assert environ.field_value(POD, path, pod_ip="127.1.0.2", host_ip="127.1.0.1") == expected


@pytest.mark.parametrize(
    ("resource", "divisor", "expected"),
    [
        pytest.param("limits.cpu", None, "2", id="rounded up"),
        pytest.param("limits.cpu", "1m", "1500", id="divided"),
        pytest.param("requests.cpu", "1m", "1500", id="requests fall back to limits"),
        pytest.param("limits.memory", "1Mi", "1024", id="limits fall back to the node"),
        pytest.param("limits.nvidia.com/gpu", None, "0", id="nothing anywhere"),
    ],
)
def test_resource_value(resource: str, divisor: str | None, expected: str) -> None:
    container = POD["spec"]["containers"][0]
    assert environ.resource_value(container, {"memory": "1Gi"}, resource, divisor) == expected


def build(container: dict[str, Any], objects: Any = None) -> dict[str, str]:
    return environ.build_env(
        POD,
        {"name": "main", **container},
        objects or {},
        base={"PATH": "/bin"},
        allocatable={},
        pod_ip="127.1.0.2",
        host_ip="127.1.0.1",
    )


def test_build_env_orders_and_expands() -> None:
    container = {
        "envFrom": [{"prefix": "C_", "configMapRef": {"name": "cm"}}],
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)$(C_x)"},
            {"name": "LATER", "value": "$(Z)"},
            {"name": "Z", "value": "z"},
            {"name": "EMPTY"},
            {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "O", "valueFrom": {"secretKeyRef": {"name": "s", "key": "none", "optional": True}}},
        ],
    }
    objects = {("ConfigMap", "cm"): {"x": "9", "bad key": "ignored"}, ("Secret", "s"): {"k": "v"}}
    assert environ.references(container) == {("ConfigMap", "cm"), ("Secret", "s")}
    assert build(container, objects) == {
        "PATH": "/bin",
        "C_x": "9",
        "A": "1",
        "B": "19",
        "LATER": "$(Z)",
        "Z": "z",
        "EMPTY": "",
        "K": "v",
    }


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param({"configMapKeyRef": {"name": "no", "key": "k"}}, 'configmap "no" not found', id="object"),
        pytest.param({"configMapKeyRef": {"name": "cm", "key": "k"}}, "couldn't find key k in ConfigMap cm", id="key"),
        pytest.param({"fieldRef": {"fieldPath": "spec.nope"}}, "spec.nope", id="field"),
    ],
)
def test_build_env_refuses(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(environ.ConfigError, match=message.replace("'", ".")):
        build({"env": [{"name": "X", "valueFrom": entry}]}, {("ConfigMap", "cm"): {}})


def test_build_argv() -> None:
    assert environ.build_argv({"command": ["run", "$(A)"], "args": ["$$(A)"]}, {"A": "1"}) == ["run", "1", "$(A)"]
    with pytest.raises(environ.ConfigError, match="`command` must be set"):
        environ.build_argv({"args": ["x"]}, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/real"),
        ("/data/train.py", "/real/train.py"),
        ("--in=/data:/data/sub", "--in=/real:/real/sub"),
        ("/database /mnt/data", "/database /mnt/data"),
        ("cat '/data'", "cat '/real'"),
    ],
)
def test_rewrite_path(text: str, expected: str) -> None:
    assert environ.rewrite_path(text, [("/data", "/real")]) == expected


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("python:3.11", None),
        ("ghcr.io/org/image@sha256:" + "0" * 64, None),
        ("localhost:5000/a/b:tag", None),
        ("registry.invalid/x:1", "ErrImagePull"),
        ("a.registry.invalid:5000/x", "ErrImagePull"),
        ("invalid/x", None),
        ("org/UPPER", "InvalidImageName"),
        ("has space", "InvalidImageName"),
        ("", "InvalidImageName"),
    ],
)
def test_pull_error(image: str, reason: str | None) -> None:
    error = images.pull_error(image)
    assert (error[0] if error else None) == reason


def test_backoff_doubles_and_forgets() -> None:
    backoff = Backoff(10, 300)
    assert [backoff.delay(n) for n in range(9)] == [0, 0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.pull_delay(1) == 10
    assert backoff.failures_after(5, 10) == 6
    assert backoff.failures_after(5, 600) == 1


def make_state(name: str, state: Any, **fields: Any) -> ContainerState:
    return ContainerState(name, "i", state, **fields)


def ended(code: int) -> Ended:
    return Ended(code, status.ended_reason(code), 1.0, 2.0)


WAIT, RUN, OK, BAD = Waiting(), Running(1.0), ended(0), ended(3)


@pytest.mark.parametrize(
    ("policy", "init", "main", "phase"),
    [
        pytest.param("Never", [], [WAIT], "Pending", id="created"),
        pytest.param("Never", [RUN], [WAIT], "Pending", id="init runs"),
        pytest.param("Never", [BAD], [WAIT], "Failed", id="init failed for good"),
        pytest.param("Always", [BAD], [WAIT], "Pending", id="init is tried again"),
        pytest.param("Never", [OK], [RUN], "Running", id="runs"),
        pytest.param("Never", [], [RUN, BAD], "Running", id="one of two failed"),
        pytest.param("Never", [], [RUN, WAIT], "Pending", id="one of two has not begun"),
        pytest.param("Never", [], [OK, OK], "Succeeded", id="all well"),
        pytest.param("Never", [], [OK, BAD], "Failed", id="one failed"),
        pytest.param("OnFailure", [], [BAD], "Running", id="is restarted"),
        pytest.param("OnFailure", [], [OK], "Succeeded", id="not restarted after success"),
        pytest.param("Always", [], [OK], "Running", id="always restarted"),
    ],
)
def test_phase(policy: str, init: list[Any], main: list[Any], phase: str) -> None:
    inits = [make_state(f"i{n}", s) for n, s in enumerate(init)]
    mains = [make_state(f"m{n}", s) for n, s in enumerate(main)]
    assert status.compute_phase(policy, inits, mains) == phase


@pytest.mark.parametrize(
    ("sidecar", "started", "main", "phase"),
    [
        pytest.param(RUN, False, WAIT, "Pending", id="starts"),
        pytest.param(RUN, True, WAIT, "Pending", id="the main one has not begun"),
        pytest.param(RUN, True, RUN, "Running", id="runs"),
        pytest.param(BAD, False, RUN, "Running", id="is started again"),
        pytest.param(BAD, False, WAIT, "Pending", id="is started again before the main one begins"),
        pytest.param(RUN, True, BAD, "Running", id="the main one failed and it is stopped"),
        pytest.param(ended(143), False, BAD, "Failed", id="over"),
        pytest.param(ended(143), False, OK, "Succeeded", id="its exit code counts for nothing"),
    ],
)
def test_phase_with_a_sidecar(sidecar: Any, started: bool, main: Any, phase: str) -> None:
    proxy = make_state("proxy", sidecar, started=started, sidecar=True)
    assert status.compute_phase("Never", [proxy], [make_state("m", main)]) == phase


def test_crash_loop_is_running_not_pending() -> None:
    state = make_state("m", Waiting("CrashLoopBackOff"), last=BAD, restarts=1)
    assert status.compute_phase("Always", [], [state]) == "Running"


@pytest.mark.parametrize(
    ("phase", "main", "gates", "ready"),
    [
        pytest.param("Running", [make_state("m", RUN, ready=True)], {}, True, id="ready"),
        pytest.param("Running", [make_state("m", RUN)], {}, False, id="probe has not succeeded"),
        pytest.param("Running", [make_state("m", RUN, ready=True)], {"g": False}, False, id="gate closed"),
        pytest.param("Running", [make_state("m", RUN, ready=True)], {"g": True}, True, id="gate open"),
        pytest.param("Succeeded", [make_state("m", OK)], {}, False, id="over"),
    ],
)
def test_ready_condition(phase: str, main: list[ContainerState], gates: dict[str, bool], ready: bool) -> None:
    assert status.compute_conditions(phase, [], main, gates)["Ready"][0] is ready


def test_condition_keeps_its_transition_time() -> None:
    old = [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]
    same = status.merge_conditions(old, {"Ready": (True, "", "")}, 0.0)
    changed = status.merge_conditions(old, {"Ready": (False, "Why", "")}, 0.0)
    assert same[0]["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert changed[0]["lastTransitionTime"] == "1970-01-01T00:00:00Z"


def test_what_runs_has_what_its_pod_asks_for() -> None:
    asked = {"requests": {"cpu": "1"}}
    pod = {
        "spec": {"containers": [{"name": "a", "resources": asked}, {"name": "b"}, {"name": "c", "resources": asked}]}
    }
    main = [make_state("a", RUN), make_state("b", RUN), make_state("c", WAIT)]
    told = status.compute_status(pod, [], main, pod_ip="", host_ip="", start_time=0.0, now=0.0)
    assert [c.get("resources") for c in told["containerStatuses"]] == [asked, {}, None]


def test_probe_thresholds() -> None:
    limits = probes.Thresholds(success=2, failure=3)
    tally, verdicts = probes.Tally(healthy=False), []
    for result in (True, True, False, False, True, False, False, False):
        tally = tally.judge(result, limits)
        verdicts.append(tally.healthy)
    assert verdicts == [False, True, True, True, True, True, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100m", "0.1"), ("2", "2"), ("1Ki", "1024"), ("1e3", "1000"), ("1.5Gi", "1610612736")],
)
def test_quantity(text: str, expected: str) -> None:
    assert environ.parse_quantity(text) == environ.parse_quantity(expected)


@pytest.mark.parametrize("text", ["", "abc", "1Zi", "--1"])
def test_not_a_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        environ.parse_quantity(text)


def test_log_lines() -> None:
    now = "2026-01-01T00:00:00.000000000Z"
    raw = containerlog.format_line(now, "stdout", b"a b  c")
    assert raw == b"2026-01-01T00:00:00.000000000Z stdout F a b  c\n"
    assert containerlog.show(raw, times=False, since="") == b"a b  c\n"
    assert containerlog.show(raw, times=True, since="") == now.encode() + b" a b  c\n"
    assert containerlog.show(raw, times=False, since="2026-01-01T00:00:01Z") == b""
    part = containerlog.format_line(now, "stderr", b"no newline", partial=True)
    assert containerlog.show(part, times=False, since="") == b"no newline"


def test_a_free_port_is_none_that_a_connection_may_be_given() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if first < 32_000:
        pytest.skip("this machine gives lower ports to connections than Linux does by default")
    assert not any(first <= addresses.free_port() <= last for _ in range(50))


def test_a_port_that_is_taken_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(addresses, "_PORTS", range(port, port + 1))
        with pytest.raises(RuntimeError, match=f"none of 100 ports of 127.0.0.1 between {port} and {port} is free"):
            addresses.free_port()


def test_addresses() -> None:
    assert addresses.node_address(7, 3) == "127.7.3.1"
    used = {"127.7.3.2", "127.7.3.3"}
    assert addresses.pod_address("127.7.3.1", used) == "127.7.3.4"
    assert addresses.pod_address("127.7.3.1", {f"127.7.3.{i}" for i in range(2, 255)}) is None


def test_two_clusters_never_share_a_number() -> None:
    one, first = addresses.claim_cluster(5)
    two, second = addresses.claim_cluster(5)
    with first, second:
        assert one != two


def make_layout(version: flags.Version) -> flags.Layout:
    return flags.Layout(Path("/d"), Path("/b"), version, Path("/e"), 1, 2, 3, "127.7.255.254")


@pytest.mark.parametrize(
    ("version", "insecure", "config"),
    [((1, 20), True, "v1beta1"), ((1, 23), True, "v1beta2"), ((1, 25), False, "v1"), ((1, 36), False, "v1")],
)
def test_flags_follow_the_version(version: flags.Version, insecure: bool, config: str) -> None:
    layout = make_layout(version)
    assert ("--port=0" in flags.build_controller_manager_argv(layout)) is insecure
    assert ("--port=0" in flags.build_scheduler_argv(layout)) is insecure
    file = flags.build_scheduler_config(layout)
    assert file["apiVersion"] == f"kubescheduler.config.k8s.io/{config}"
    assert (file.get("healthzBindAddress") == "127.7.255.254:20251") is (config == "v1beta1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Kubernetes v1.20.2", (1, 20)), ("Kubernetes v1.36.0-alpha.1", (1, 36))],
)
def test_parse_version(text: str, expected: flags.Version) -> None:
    assert flags.parse_version(text) == expected


@pytest.mark.parametrize(
    ("changes", "evict"),
    [
        pytest.param({}, True, id="plain"),
        pytest.param({"status": {"phase": "Succeeded"}}, False, id="over"),
        pytest.param(
            {"metadata": {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}}, False, id="DaemonSet"
        ),
    ],
)
def test_should_evict(changes: dict[str, Any], evict: bool) -> None:
    assert drain.should_evict({"metadata": {}, "status": {"phase": "Running"}, **changes}) is evict


@pytest.mark.parametrize(
    ("method", "status", "retry_after", "wait"),
    [
        pytest.param("GET", 429, "1", 1, id="the storage of a CRD begins"),
        pytest.param("GET", 429, None, None, id="without a time"),
        pytest.param("GET", 503, "1", None, id="does not serve"),
        pytest.param("POST", 429, "10", None, id="a budget forbids the eviction"),
    ],
)
def test_when_a_request_is_sent_again(method: str, status: int, retry_after: str | None, wait: int | None) -> None:
    assert kube.find_wait(method, status, retry_after) == wait


def test_apt_sources_get_their_source_packages() -> None:
    listed = "deb http://archive.example/debian bookworm main\n# a comment\ndeb http://other.example/apt x main\n"
    assert debian.add_source_entries(listed, deb822=False) == (
        "deb http://archive.example/debian bookworm main\ndeb-src http://archive.example/debian bookworm main\n"
    )
    stanzas = "Types: deb\nURIs: http://archive.example/debian\nSuites: bookworm\n\nTypes: deb\nURIs: http://x/apt\n"
    assert debian.add_source_entries(stanzas, deb822=True) == (
        "Types: deb deb-src\nURIs: http://archive.example/debian\nSuites: bookworm\n"
    )
