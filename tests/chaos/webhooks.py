"""Admission webhooks of others: each sees the pods of the namespaces that are labelled with its name."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from elasticjob_devcluster import Cluster
from elasticjob_devcluster.controlplane.certs import Authority

LABEL: Final = "chaos-hook"
# A late one answers in time; a busy one refuses with 429. From "blinds" on, they change what the trainer needs.
KINDS: Final = (
    *("denies", "fails", "slow", "late", "busy", "mutates", "shm", "spoils"),
    *("blinds", "unmounts", "empties", "remounts", "replaces", "wraps"),
)
SLOW_SECONDS: Final = 3.0
WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    asked: list[tuple[str, str]]  # of each request: the kind of webhook, and the pod's name

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The API server hangs up on a slow webhook."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        kind = self.path.split("?")[0].strip("/")
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, Server)
        self.server.asked.append((kind, review["request"].get("name", "")))
        if kind in ("slow", "late"):
            time.sleep(SLOW_SECONDS)
        answer = json.dumps(answer_review(kind, review)).encode()
        self.send_response(500 if kind == "fails" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


def answer_review(kind: str, review: dict[str, Any]) -> dict[str, Any]:
    request = review["request"]
    response: dict[str, Any] = {"uid": request["uid"], "allowed": kind not in ("denies", "busy")}
    if kind == "denies":
        response["status"] = {"message": "only pods with a cost centre", "code": 403}
    if kind == "busy":
        told = {"message": "the vault is sealed", "reason": "TooManyRequests", "code": 429}
        response["status"] = {**told, "details": {"retryAfterSeconds": 1}}
    if patch := list(find_patch(kind, request["object"])):
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def find_patch(kind: str, pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a webhook changes in a pod."""
    spec = pod["spec"]
    if kind == "mutates":
        proxy = {"name": "mesh-proxy", "image": "here/mesh:1", "command": ["sleep", "1000000"]}
        yield {"op": "add", "path": "/spec/containers/0", "value": proxy}
        tolerations = [*(spec.get("tolerations") or ()), {"key": "team", "operator": "Exists"}]
        yield {"op": "add", "path": "/spec/tolerations", "value": tolerations}
        labels = {**(pod["metadata"].get("labels") or {}), "mesh": "on"}
        yield {"op": "add", "path": "/metadata/labels", "value": labels}
        for at, container in enumerate(spec["containers"], start=1):  # behind the proxy
            path, (registry, _, image) = f"/spec/containers/{at}", container["image"].rpartition("/")
            yield {"op": "replace", "path": f"{path}/image", "value": f"{registry}/mirror/{image}"}
            env = [{"name": "HTTP_PROXY", "value": "http://proxy:1"}, *(container.get("env") or ())]
            yield {"op": "add", "path": f"{path}/env", "value": env}
    if kind == "shm":
        volumes = [*(spec.get("volumes") or ()), {"name": "hook-shm", "emptyDir": {"medium": "Memory"}}]
        yield {"op": "add", "path": "/spec/volumes", "value": volumes}
        for at, container in enumerate(spec["containers"]):
            mounts = [*(container.get("volumeMounts") or ()), {"name": "hook-shm", "mountPath": "/dev/shm"}]
            yield {"op": "add", "path": f"/spec/containers/{at}/volumeMounts", "value": mounts}
    trainer = spec["containers"][0]
    if kind == "blinds":
        kept = [one for one in trainer["env"] if one["name"] != "ELASTICJOB_HUB_URL"]
        yield {"op": "replace", "path": "/spec/containers/0/env", "value": kept}
    if kind == "unmounts":
        kept = [one for one in trainer["volumeMounts"] if "elasticjob-token" not in one["name"]]
        yield {"op": "replace", "path": "/spec/containers/0/volumeMounts", "value": kept}
    if kind == "empties":
        volumes = [{"name": one["name"], "emptyDir": {}} if "hostPath" in one else one for one in spec["volumes"]]
        yield {"op": "replace", "path": "/spec/volumes", "value": volumes}
    if kind == "remounts":
        mounts = [{**one, "name": "scratch"} if one["name"] == "data" else one for one in trainer["volumeMounts"]]
        yield {"op": "add", "path": "/spec/volumes/-", "value": {"name": "scratch", "emptyDir": {}}}
        yield {"op": "replace", "path": "/spec/containers/0/volumeMounts", "value": mounts}
    if kind in ("replaces", "wraps"):
        command = ["sleep", "1000000"] if kind == "replaces" else ["vault-env", *trainer["command"]]
        yield {"op": "replace", "path": "/spec/containers/0/command", "value": command}
    if kind == "spoils":
        yield {"op": "add", "path": "/spec/nodeSelector", "value": {"spoiled": "not a label value"}}


@contextlib.contextmanager
def serving(cluster: Cluster, directory: Path) -> Iterator[list[tuple[str, str]]]:
    """All webhooks of this module, on one port; what they are asked: the kind of webhook, and the pod's name."""
    authority = Authority(directory)
    pair = authority.issue("webhook", "webhook", addresses=("127.0.0.1",))
    server = Server(("127.0.0.1", 0), Handler)
    server.asked = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    bundle = base64.b64encode(authority.pair.certificate.read_bytes()).decode()
    hooks = [
        {
            "name": f"{kind}.hook.example",
            "clientConfig": {"url": f"https://127.0.0.1:{server.server_port}/{kind}", "caBundle": bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {LABEL: kind}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 1 if kind == "slow" else 10,
            "admissionReviewVersions": ["v1"],
        }
        for kind in KINDS
    ]
    cluster.kube.request("POST", WEBHOOKS, {"metadata": {"name": "chaos"}, "webhooks": hooks})
    try:
        yield server.asked
    finally:
        cluster.kube.request("DELETE", f"{WEBHOOKS}/chaos")
        server.shutdown()
        server.server_close()
        thread.join(10)
