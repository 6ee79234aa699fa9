"""Helpers to create pods and wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticjob_devcluster import Cluster, wait_until

SECONDS = 45.0


class Pods:
    """Pods of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, pod_name: str, *command: str, container: dict[str, Any] | None = None, **spec: Any) -> str:
        main = {"name": "main", "image": "devcluster/test:1", "command": list(command), **(container or {})}
        grace = {"terminationGracePeriodSeconds": spec.pop("grace", 5)}
        labels = spec.pop("labels", {"app": "test"})
        body = {
            "metadata": {"name": pod_name, "labels": labels, "annotations": {"note": "a b"}},
            "spec": {"restartPolicy": "Never", "containers": [main], **grace, **spec},
        }
        self.cluster.kube.request("POST", self.path, body)
        return pod_name

    def get(self, name: str) -> dict[str, Any] | None:
        return self.cluster.kube.get(f"{self.path}/{name}")

    def status(self, name: str) -> dict[str, Any]:
        return (self.get(name) or {}).get("status") or {}

    def delete(self, name: str, **options: Any) -> None:
        self.cluster.kube.request("DELETE", f"{self.path}/{name}", options or None)

    def wait(self, name: str, condition: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """The status once it satisfies the condition."""
        try:
            wait_until(lambda: bool(condition(self.status(name))), SECONDS, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the status is {self.status(name)}") from None
        return self.status(name)

    def wait_phase(self, name: str, phase: str) -> dict[str, Any]:
        return self.wait(name, lambda s: s.get("phase") == phase, f"{name} is {phase}")

    def wait_waiting(self, name: str, reason: str) -> dict[str, Any]:
        return self.wait(name, lambda s: waiting_reason(s) == reason, f"{name} waits with {reason}")

    def wait_gone(self, name: str) -> None:
        wait_until(lambda: self.get(name) is None, SECONDS, f"{name} is gone")

    def wait_log(self, name: str, text: str) -> str:
        """The log once it contains the text."""
        self.wait(name, lambda s: first(s).get("containerID"), f"{name} started")
        wait_until(lambda: text in self.log(name), SECONDS, f"{name} prints {text!r}")
        return self.log(name)

    def log(self, name: str, *, previous: bool = False) -> str:
        return self.cluster.logs(self.namespace, name, previous=previous)

    def run(self, name: str, *command: str, **arguments: Any) -> dict[str, Any]:
        """Create a pod, wait for its end, return how the container ended."""
        self.create(name, *command, **arguments)
        return terminated(self.wait(name, lambda s: s.get("phase") in ("Succeeded", "Failed"), f"{name} ends"))


def first(status: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = (status.get("containerStatuses") or [{}])[0]
    return result


def waiting_reason(status: dict[str, Any]) -> str | None:
    return ((first(status).get("state") or {}).get("waiting") or {}).get("reason")


def terminated(status: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = first(status)["state"]["terminated"]
    return result


def condition(status: dict[str, Any], kind: str) -> str | None:
    return next((c["status"] for c in status.get("conditions") or () if c["type"] == kind), None)
