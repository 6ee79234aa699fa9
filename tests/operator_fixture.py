"""The real operator as a process next to the session's cluster, and helpers for jobs."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from elasticjob_devcluster import Cluster, KubeError
from elasticjob_devcluster.system.addresses import free_port

ROOT = Path(__file__).resolve().parents[1]
LIGHT_AGENT = ROOT / "tests/integration/light_agent.py"
GROUP = "/apis/elasticjob.dev/v1alpha1"
MERGE = "application/merge-patch+json"

T = TypeVar("T")


class OperatorProcess:
    """`elasticjob-operator run` against a cluster; can be killed and restarted on the same hub port."""

    def __init__(self, cluster: Cluster, directory: Path, *flags: str, kubeconfig: Path | None = None) -> None:
        self.cluster = cluster
        self.directory = directory
        self.flags = flags
        self.kubeconfig = kubeconfig or cluster.kubeconfig
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.hub_port = free_port()

    @property
    def log(self) -> str:
        return (self.directory / f"operator-{self.starts}.log").read_text()

    def start(self) -> None:
        self.starts += 1
        with (self.directory / f"operator-{self.starts}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "elasticjob_operator", "run", "--kubeconfig", str(self.kubeconfig)),
                    *("--hub-host", "127.0.0.1", "--hub-port", str(self.hub_port)),
                    *("--http-host", "127.0.0.1", "--http-port", "0", "--no-leader-election", *self.flags),
                ],
                stdout=log,
                stderr=log,
            )

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None, "it was started"
        self.process.send_signal(number)
        code = self.process.wait(20)
        self.process = None
        return code

    def stop(self) -> None:
        if self.process is not None:
            stop_process(self.process)
        self.process = None


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process, and kill it if it does not end."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def install_crd(cluster: Cluster) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        try:
            cluster.kube.request("POST", path, yaml.safe_load(file.read_text()))
        except KubeError as error:
            if error.status != 409:
                raise
    # In one namespace only: another test may have left a job that is nested too deeply for this process to read.
    wait_for(lambda: cluster.kube.get(f"{GROUP}/namespaces/default/elasticjobs"), "the CRD is served")


def wait_for(look: Callable[[], T | None], what: str, timeout: float = 60.0, poll: float = 0.05) -> T:
    """The first true value that `look` returns."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not seen within {timeout:.0f} s: {what}")
        time.sleep(poll)


class Jobs:
    """ElasticJobs of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.kube = cluster.kube
        self.cluster = cluster
        self.namespace = namespace
        self.path = f"{GROUP}/namespaces/{namespace}/elasticjobs"

    def create(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}, "spec": spec}
        return self.kube.request("POST", self.path, body)

    def get(self, name: str) -> dict[str, Any]:
        found = self.kube.get(f"{self.path}/{name}")
        return found or {}

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.get(name).get("status") or {}
        return status

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        self.kube.request("PATCH", f"{self.path}/{name}", {"spec": spec}, content_type=MERGE)

    def scale(self, name: str, replicas: int) -> None:
        path = f"{self.path}/{name}/scale"
        self.kube.request("PATCH", path, {"spec": {"replicas": replicas}}, content_type=MERGE)

    def delete(self, name: str) -> None:
        self.kube.request("DELETE", f"{self.path}/{name}")

    def pods(self, name: str) -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=elasticjob.dev/job-name={name}"
        items: list[dict[str, Any]] = self.kube.request("GET", path)["items"]
        return items

    def events(self, name: str) -> list[tuple[str, str]]:
        items = self.kube.request("GET", f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [(e["reason"], e["message"]) for e in items if e["involvedObject"]["name"] == name]

    def condition(self, name: str, type: str) -> dict[str, Any]:
        for condition in self.status(name).get("conditions", []):
            if condition["type"] == type:
                return dict(condition)
        return {}

    def await_condition(self, name: str, type: str, timeout: float = 60.0) -> dict[str, Any]:
        """The condition, once it is True."""

        def look() -> dict[str, Any] | None:
            found = self.condition(name, type)
            return found if found.get("status") == "True" else None

        return wait_for(look, f"{name} has the condition {type}; status: {self.status(name)}", timeout)

    def await_world(self, name: str, size: int, above: int = 0, timeout: float = 60.0) -> dict[str, Any]:
        """The status, once a world of this size trains in a generation above this one."""

        def look() -> dict[str, Any] | None:
            status = self.status(name)
            trains = status.get("readyReplicas") == size and status.get("phase") == "Running"
            return status if trains and status["rendezvous"]["generation"] > above else None

        try:
            return wait_for(look, f"{name} trains with {size} pods above generation {above}", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {self.status(name)}") from None


def light_spec(*arguments: str, **changes: Any) -> dict[str, Any]:
    """A spec whose workers are light agents; `changes` are spec fields."""
    spec: dict[str, Any] = {
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "gracefulShutdownTimeoutSeconds": 2},
        "replicas": 2,
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "worker",
                        "image": "light/agent:1",
                        "command": [sys.executable, str(LIGHT_AGENT), *arguments],
                        "resources": {"requests": {"cpu": "10m"}},
                    }
                ]
            }
        },
    }
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(spec.get(key), dict):
            spec[key] = {**spec[key], **value}
        else:
            spec[key] = value
    return copy.deepcopy(spec)


@pytest.fixture(scope="session")
def operator_factory(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., OperatorProcess]]:
    """Starts operators for one test."""
    made: list[OperatorProcess] = []

    def start(flags: Sequence[str] = (), **options: Any) -> OperatorProcess:
        install_crd(cluster)
        operator = OperatorProcess(cluster, tmp_path_factory.mktemp("operator"), *flags, **options)
        operator.start()
        made.append(operator)
        return operator

    yield start
    for operator in made:
        operator.stop()


@pytest.fixture(scope="module")
def lasting_operator(operator_factory: Callable[..., OperatorProcess]) -> Iterator[OperatorProcess]:
    """One operator for all namespaces and all tests of a file, with short delays."""
    started = operator_factory(["--stable-seconds", "1"])
    yield started
    started.stop()


@pytest.fixture
def operator(lasting_operator: OperatorProcess, namespace: str) -> Iterator[OperatorProcess]:
    """The file's operator; it is running when a test starts, whatever the previous test did to it."""
    if lasting_operator.process is None or lasting_operator.process.poll() is not None:
        lasting_operator.start()
    starts, before = lasting_operator.starts, len(lasting_operator.log)
    yield lasting_operator
    said = lasting_operator.log[before if lasting_operator.starts == starts else 0 :]
    print(f"the operator of this test said:\n{said[-8000:]}")  # pytest shows it where the test failed
    if "this is a bug" in said:
        raise AssertionError(f"{os.environ.get('PYTEST_CURRENT_TEST')}: the operator has a bug:\n{said[-4000:]}")


@pytest.fixture
def jobs(cluster: Cluster, namespace: str, operator: OperatorProcess) -> Iterator[Jobs]:
    jobs = Jobs(cluster, namespace)
    yield jobs
    with contextlib.suppress(KubeError):  # the jobs first: the operator must not replace pods that go
        cluster.kube.request("DELETE", jobs.path)
