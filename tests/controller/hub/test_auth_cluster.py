"""Tokens against a real API server: only a live worker pod's own token, for our audience, opens the hub."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from kubernetes.aio import client, config

from controller.hub_fixture import running_hub, seated
from elasticjob_devcluster import Cluster
from elasticjob_operator.hub import auth, certificate_secret
from elasticjob_operator.kube.client import Api

pytestmark = pytest.mark.cluster

ADDRESS = "10.0.0.1"


@pytest.fixture
async def api_client(cluster: Cluster) -> AsyncIterator[client.ApiClient]:
    configuration = client.Configuration()
    await config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    async with client.ApiClient(configuration) as made:
        yield made


def make_pod(cluster: Cluster, namespace: str, name: str) -> str:
    """A pod that stays pending: its token is as good as that of one that runs."""
    spec = {"nodeSelector": {"no": "such-node"}, "containers": [{"name": "c", "image": "none"}]}
    made = cluster.kube.request(
        "POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": spec}
    )
    return str(made["metadata"]["uid"])


def make_token(cluster: Cluster, namespace: str, pod: str, uid: str, audience: str = "elasticjob.dev") -> str:
    spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 600}
    if pod:
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    return str(cluster.kube.request("POST", path, {"spec": spec})["status"]["token"])


class Pods:
    """The operator's view: which pods work for which job."""

    def __init__(self) -> None:
        self.jobs: dict[tuple[str, str, str], str] = {}

    def find(self, namespace: str, name: str, uid: str) -> str | None:
        return self.jobs.get((namespace, name, uid))


def authenticator(api_client: client.ApiClient, pods: Pods) -> auth.TokenAuthenticator:
    return auth.TokenAuthenticator(auth.review_with(api_client), pods.find, find_seconds=0.2)


async def status_of(answer: auth.Identity | auth.Refusal) -> int:
    return answer.status if isinstance(answer, auth.Refusal) else 200


async def test_a_workers_token_opens_the_hub_and_names_the_pod(
    cluster: Cluster, namespace: str, api_client: client.ApiClient
) -> None:
    uid = make_pod(cluster, namespace, "digits-worker-0")
    pods = Pods()
    pods.jobs[namespace, "digits-worker-0", uid] = "digits"
    token = make_token(cluster, namespace, "digits-worker-0", uid)
    check = authenticator(api_client, pods)
    assert await check(token, ADDRESS) == auth.Identity(namespace, "digits-worker-0", uid, "digits")

    async def by_token(_: str, address: str) -> auth.Identity | auth.Refusal:
        return await check(token, address)

    async with running_hub(authenticate=by_token) as running, seated(running):
        assert set(running.hub.agents((namespace, "digits"))) == {uid}


async def test_tokens_that_open_nothing(
    cluster: Cluster, namespace: str, api_client: client.ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    uid = make_pod(cluster, namespace, "digits-worker-0")
    other = make_pod(cluster, namespace, "somebody-elses")
    pods = Pods()
    pods.jobs[namespace, "digits-worker-0", uid] = "digits"
    good = make_token(cluster, namespace, "digits-worker-0", uid)
    head, payload, signature = good.split(".")
    tokens = {
        "another audience": (make_token(cluster, namespace, "digits-worker-0", uid, "elsewhere.example"), 401),
        "a pod that is no worker": (make_token(cluster, namespace, "somebody-elses", other), 403),
        "of no pod": (make_token(cluster, namespace, "", ""), 403),
        "forged signature": (f"{head}.{payload}.{'A' * len(signature)}", 401),
        "expired": (resign(cluster, good, exp=int(time.time()) - 60, iat=int(time.time()) - 660), 401),
        "nonsense": ("a.b.c", 401),
    }
    check = authenticator(api_client, pods)
    for name, (token, status) in tokens.items():
        assert await status_of(await check(token, ADDRESS)) == status, name
    same = resign(cluster, good)
    assert await status_of(await check(same, ADDRESS)) == 200, "the forger of these tests knows the trade"
    assert not any(token in caplog.text for token, _ in tokens.values() if len(token) > 5)


async def test_a_deleted_pods_token_is_refused_by_the_server_itself(
    cluster: Cluster, namespace: str, api_client: client.ApiClient
) -> None:
    """Our list of pods is made to lag: it still knows the pod. A second pod of the name has another token."""
    uid = make_pod(cluster, namespace, "digits-worker-0")
    pods = Pods()
    pods.jobs[namespace, "digits-worker-0", uid] = "digits"
    token = make_token(cluster, namespace, "digits-worker-0", uid)
    assert await status_of(await authenticator(api_client, pods)(token, ADDRESS)) == 200
    path = f"/api/v1/namespaces/{namespace}/pods/digits-worker-0"
    cluster.kube.request("DELETE", path, {"gracePeriodSeconds": 0})
    again = make_pod(cluster, namespace, "digits-worker-0")
    pods.jobs[namespace, "digits-worker-0", again] = "digits"
    deadline = time.monotonic() + 30
    # The server may remember its own answers for a few seconds.
    while await status_of(await authenticator(api_client, pods)(token, ADDRESS)) != 401:
        assert time.monotonic() < deadline, "the token outlives its pod"
    fresh = make_token(cluster, namespace, "digits-worker-0", again)
    assert await status_of(await authenticator(api_client, pods)(fresh, ADDRESS)) == 200


async def test_an_api_server_that_cannot_be_asked_is_503(cluster: Cluster, namespace: str) -> None:
    uid = make_pod(cluster, namespace, "digits-worker-0")
    token = make_token(cluster, namespace, "digits-worker-0", uid)
    pods = Pods()
    pods.jobs[namespace, "digits-worker-0", uid] = "digits"
    nowhere = client.Configuration(host="http://127.0.0.1:1")
    async with client.ApiClient(nowhere) as unreachable:
        assert await authenticator(unreachable, pods)(token, ADDRESS) == auth.TRY_AGAIN
    unowned = client.Configuration()
    await config.load_kube_config(str(cluster.kubeconfig), client_configuration=unowned)
    unowned.cert_file = unowned.key_file = None
    unowned.api_key = {"authorization": f"Bearer {make_token(cluster, namespace, '', '', cluster_audience(cluster))}"}
    async with client.ApiClient(unowned) as not_allowed:
        assert await authenticator(not_allowed, pods)(token, ADDRESS) == auth.TRY_AGAIN, "no RBAC: the operator's fault"


def cluster_audience(cluster: Cluster) -> str:
    return "https://kubernetes.default.svc.cluster.local"


def resign(cluster: Cluster, token: str, **claims: Any) -> str:
    """The same token with other claims, signed with the server's own key."""
    head, payload, _ = token.split(".")
    padded = payload + "=" * (-len(payload) % 4)
    changed = json.dumps({**json.loads(base64.urlsafe_b64decode(padded)), **claims}).encode()
    body = base64.urlsafe_b64encode(changed).rstrip(b"=").decode()
    path = next(Path(cluster.directory).rglob("service-account.key"))
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    signed = key.sign(f"{head}.{body}".encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{head}.{body}.{base64.urlsafe_b64encode(signed).rstrip(b'=').decode()}"


# --- certificates in a Secret ----------------------------------------------------------------------------

SANS = ("elasticjob-hub.elasticjob.svc", "10.96.0.17")


@pytest.fixture
async def leader(cluster: Cluster) -> AsyncIterator[Api]:
    api = await Api.connect(str(cluster.kubeconfig))
    api.leadership.lend(math.inf)
    yield api
    await api.close()


async def test_replicas_that_start_together_end_with_one_bundle(namespace: str, leader: Api) -> None:
    now = datetime.now(UTC)
    bundles = await asyncio.gather(
        *(certificate_secret.ensure_certificates(leader, namespace, "hub", SANS, now) for _ in range(5))
    )
    assert all(bundle == bundles[0] for bundle in bundles)
    again = await certificate_secret.ensure_certificates(leader, namespace, "hub", SANS, now + timedelta(days=1))
    assert again == bundles[0]


async def test_rotation_is_written_once_and_a_foreign_secret_is_left_alone(
    cluster: Cluster, namespace: str, leader: Api
) -> None:
    now = datetime.now(UTC)
    first = await certificate_secret.ensure_certificates(leader, namespace, "hub", SANS, now)
    later = now + timedelta(days=70)
    rotated = await asyncio.gather(
        *(certificate_secret.ensure_certificates(leader, namespace, "hub", SANS, later) for _ in range(3))
    )
    assert all(bundle == rotated[0] for bundle in rotated)
    assert rotated[0].certificate != first.certificate and rotated[0].trust == first.trust

    path = f"/api/v1/namespaces/{namespace}/secrets"
    foreign = {"metadata": {"name": "theirs"}, "type": "Opaque", "data": {"password": "c2VjcmV0"}}
    cluster.kube.request("POST", path, foreign)
    with pytest.raises(certificate_secret.UnusableSecretError, match=rf"secret {namespace}/theirs: tls.crt"):
        await certificate_secret.ensure_certificates(leader, namespace, "theirs", SANS, now)
    assert cluster.kube.request("GET", f"{path}/theirs")["data"] == foreign["data"]
