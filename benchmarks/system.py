"""The whole product on this machine: a devcluster and a real operator process."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import yaml

from benchmarks import harness, launchers
from benchmarks.launchers.torchrun import find_port
from benchmarks.processes import MARK, RUN
from elasticjob_devcluster import Cluster, NodeSpec, Tuning, wait_until

CRD = harness.ROOT / "crds" / "elasticjob.dev_elasticjobs.yaml"
JOBS = "/apis/elasticjob.dev/v1alpha1"
WRITES = ("POST", "PUT", "PATCH", "DELETE")
_REQUESTS = re.compile(r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<count>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def parse_requests(text: str) -> Counter[tuple[str, str]]:
    """(verb, resource) -> requests, from the API server's metrics."""
    found: Counter[tuple[str, str]] = Counter()
    for match in _REQUESTS.finditer(text):
        labels = dict(_LABEL.findall(match["labels"]))
        name = labels.get("resource", "") + (f"/{labels['subresource']}" if labels.get("subresource") else "")
        found[labels.get("verb", ""), name] += int(float(match["count"]))
    return found


class System:
    """A devcluster with an operator. Use it as a context manager."""

    def __init__(
        self,
        directory: Path,
        nodes: tuple[NodeSpec, ...] = (),
        flags: tuple[str, ...] = (),
        operator_flags: tuple[str, ...] = (),
    ) -> None:
        self.directory, self.operator_flags = directory, operator_flags
        directory.mkdir(parents=True, exist_ok=True)
        self.cluster = Cluster.start(nodes=nodes, tuning=Tuning(controller_manager_flags=flags))
        self.operator: subprocess.Popen[bytes] | None = None
        self.hub_port, self.http_port = find_port("127.0.0.1"), find_port("127.0.0.1")
        try:
            self._install()
            self.start_operator()
        except BaseException:
            self.close()
            raise

    def _install(self) -> None:
        kube = self.cluster.kube
        kube.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(CRD.read_text()))
        wait_until(lambda: kube.get(f"{JOBS}/elasticjobs") is not None, 30, "the CRD is served")

    def start_operator(self) -> float:
        """Start the operator and return the start time; it leads as soon as it gets the Lease."""
        began = time.time()
        with (self.directory / "operator.log").open("ab") as log:
            self.operator = subprocess.Popen(
                [
                    *(sys.executable, "-m", "elasticjob_operator", "run", "--kubeconfig", str(self.cluster.kubeconfig)),
                    *("--hub-host", "127.0.0.1", "--hub-port", str(self.hub_port)),
                    *("--hub-url", f"ws://127.0.0.1:{self.hub_port}"),
                    *("--http-host", "127.0.0.1", "--http-port", str(self.http_port), "--no-leader-election"),
                    *self.operator_flags,
                ],
                env={**launchers.base_environment(), MARK: f"{RUN}/operator/"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return began

    def kill_operator(self) -> None:
        if self.operator is not None:
            self.operator.kill()
            self.operator.wait()

    def make_namespace(self) -> str:
        """A namespace that accepts pods."""
        name = f"bench-{secrets.token_hex(4)}"
        self.cluster.make_namespace(name)
        return name

    def count_pods(self, namespace: str) -> int:
        """The number of pods, without listing them: one object is read, the server reports how many remain."""
        page = self.cluster.kube.request("GET", f"/api/v1/namespaces/{namespace}/pods?limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    def requests(self) -> Counter[tuple[str, str]]:
        return parse_requests(self.cluster.kube.raw("GET", "/metrics").decode())

    def controller_manager(self) -> psutil.Process:
        """The process of Kubernetes' own controllers."""
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if words and "kube-controller-manager" in words[0] and str(self.cluster.directory) in " ".join(words):
                return process
        raise RuntimeError("no kube-controller-manager is running")

    def operator_process(self) -> psutil.Process:
        assert self.operator is not None
        return psutil.Process(self.operator.pid)

    def close(self) -> None:
        self.kill_operator()
        self.cluster.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
