"""Authenticates agents by their token, which the API server, never the pod, verifies.

A worker's token has the audience `elasticjob.dev` and is bound to its pod, so a TokenReview identifies the pod exactly,
and rejects a token whose pod was deleted. A failed request to the API server is never the pod's fault: the response is
503, and the agent retries. Only a clear rejection is 401 or 403.

A token that cannot belong to a worker costs no review: its claims are read first, without trusting them, and the API
server is asked only if they name a pod that the operator knows. An unauthenticated client cannot name one: it would
have to guess the UID.

An accepted token is cached for a few seconds, by its hash: a reconnecting agent costs no request. The pod itself is
looked up every time, so an accepted token does not outlive its pod. Tokens are neither stored nor logged.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubernetes.aio import client

from elasticjob_operator import numerals, shares
from elasticjob_operator.api import names

logger = logging.getLogger(__name__)

_SERVICE_ACCOUNT: Final = "system:serviceaccount:"
_EXTRA_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_EXTRA_POD_UID: Final = "authentication.kubernetes.io/pod-uid"
_JWT = re.compile(r"[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]+")
_MAX_TOKEN: Final = 8192
_SKEW_SECONDS: Final = 60.0  # tolerated clock skew between the operator and the API server


@dataclass(frozen=True, slots=True)
class Identity:
    """The authenticated worker pod."""

    namespace: str
    pod: str
    pod_uid: str
    job: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a token is rejected: 401 (bad token), 403 (not a worker pod), 503 (could not be checked)."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class BoundPod:
    """The pod that the API server confirms."""

    namespace: str
    pod: str
    pod_uid: str


Authenticator = Callable[[str, str], Awaitable[Identity | Refusal]]  # of a token, and the address that it came from
Review = Callable[[str], Awaitable[BoundPod | Refusal]]
FindPod = Callable[[str, str, str], str | None]  # namespace, name, uid -> the job it works for

TRY_AGAIN: Final = Refusal(503, "the API server could not check the token; retry")

NO_WORKER: Final = Refusal(403, "this pod is not a worker of an ElasticJob")


def read_review(status: Mapping[str, Any]) -> BoundPod | Refusal:
    """The pod that the token is bound to, from the status of a TokenReview. Pure."""
    if status.get("authenticated") is not True:
        return Refusal(401, "the API server does not accept this token (expired, or its pod is gone)")
    if names.TOKEN_AUDIENCE not in (status.get("audiences") or ()):
        return Refusal(401, f"the token is not for the audience {names.TOKEN_AUDIENCE}")
    user = status.get("user") or {}
    parts = str(user.get("username", "")).removeprefix(_SERVICE_ACCOUNT).split(":")
    if not str(user.get("username", "")).startswith(_SERVICE_ACCOUNT) or len(parts) != 2:
        return Refusal(403, "the token is not that of a service account")
    extra = user.get("extra") or {}
    pod, uid = extra.get(_EXTRA_POD_NAME) or [], extra.get(_EXTRA_POD_UID) or []
    if len(pod) != 1 or len(uid) != 1:
        return Refusal(403, "the token is not bound to a pod")
    return BoundPod(namespace=parts[0], pod=pod[0], pod_uid=uid[0])


def read_claims(token: str, now: float) -> BoundPod | Refusal:
    """The pod that an unverified token claims to be bound to. Pure."""
    payload = token.split(".")[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        audience, ends = claims["aud"], numerals.read_real(claims["exp"])
    except (ValueError, TypeError, KeyError, RecursionError):
        ends = None
    if ends is None:
        return Refusal(401, "this is not a service-account token")
    if names.TOKEN_AUDIENCE not in (audience if isinstance(audience, list) else [audience]):
        return Refusal(401, f"the token is not for the audience {names.TOKEN_AUDIENCE}")
    if not now < ends + _SKEW_SECONDS:
        return Refusal(401, "the token has expired")
    try:
        bound = claims["kubernetes.io"]
        return BoundPod(str(bound["namespace"]), str(bound["pod"]["name"]), str(bound["pod"]["uid"]))
    except (TypeError, KeyError):
        return Refusal(403, "the token is not bound to a pod")


def review_with(api_client: client.ApiClient, *, timeout: float = 5.0) -> Review:
    """A review through the API server. Requires `create` on `tokenreviews.authentication.k8s.io`."""
    api = client.AuthenticationV1Api(api_client)

    async def review(token: str) -> BoundPod | Refusal:
        spec = client.V1TokenReviewSpec(token=token, audiences=[names.TOKEN_AUDIENCE])
        try:
            async with asyncio.timeout(timeout):
                # Without preload: the client would log the response, which contains the token.
                response = await api.create_token_review_without_preload_content(client.V1TokenReview(spec=spec))
                data = await response.read()
            if not 200 <= response.status < 300:
                logger.warning("TokenReview answered %d %s", response.status, _hint(response.status))
                return TRY_AGAIN
            return read_review(json.loads(data).get("status") or {})
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a failed request is never the agent's fault
            logger.warning("TokenReview failed: %s", type(error).__name__)
            return TRY_AGAIN

    return review


def _hint(status: int) -> str:
    if status == 403:
        return "(the operator's ClusterRole needs create on tokenreviews.authentication.k8s.io)"
    return ""


class TokenAuthenticator:
    """Maps tokens to worker pods, with one review for concurrent connections with the same token."""

    def __init__(
        self,
        review: Review,
        find_pod: FindPod,
        *,
        remember_seconds: float = 10.0,
        find_seconds: float = 2.0,
        parallel: int = 16,
        waiting: int = 2048,
        capacity: int = 20_000,
        unseen: int = 64,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._review = review
        self._find_pod = find_pod
        self._remember_seconds = remember_seconds
        self._find_seconds = find_seconds
        self._waiting = waiting
        self._capacity = capacity
        self._clock = clock
        self._unseen = shares.Room(unseen)  # by address: anybody can write any namespace into a token
        self._slots = asyncio.Semaphore(parallel)
        self._known: OrderedDict[bytes, tuple[float, BoundPod]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[BoundPod | Refusal]] = {}

    async def __call__(self, token: str, address: str) -> Identity | Refusal:
        if len(token) > _MAX_TOKEN or not _JWT.fullmatch(token):
            return Refusal(401, "this is not a service-account token")
        claimed = read_claims(token, self._clock())
        if isinstance(claimed, Refusal):
            return claimed
        unknown = await self._await_pod(claimed, address)
        if unknown is not None:
            return unknown
        bound = await self._bound(token)
        if isinstance(bound, Refusal):
            return bound
        job = self._find_pod(bound.namespace, bound.pod, bound.pod_uid)
        return NO_WORKER if job is None else Identity(bound.namespace, bound.pod, bound.pod_uid, job)

    async def _bound(self, token: str) -> BoundPod | Refusal:
        key = hashlib.sha256(token.encode()).digest()
        known = self._known.get(key)
        if known is not None and asyncio.get_running_loop().time() < known[0]:
            return known[1]
        task = self._asking.get(key)
        if task is None:
            if len(self._asking) >= self._waiting:
                return TRY_AGAIN
            task = asyncio.create_task(self._ask(key, token))
            self._asking[key] = task
        # A caller that is cancelled must not cancel the review for the others.
        return await asyncio.shield(task)

    async def _ask(self, key: bytes, token: str) -> BoundPod | Refusal:
        try:
            async with self._slots:
                answer = await self._review(token)
            if isinstance(answer, BoundPod):
                self._remember(key, answer)
            return answer
        except Exception as error:
            logger.warning("a token could not be checked: %s", type(error).__name__)
            return TRY_AGAIN
        finally:
            self._asking.pop(key, None)

    def _remember(self, key: bytes, bound: BoundPod) -> None:
        now = asyncio.get_running_loop().time()
        self._known[key] = (now + self._remember_seconds, bound)
        self._known.move_to_end(key)
        # Oldest first, so expired entries are at the front.
        while self._known:
            until, _ = next(iter(self._known.values()))
            if until > now and len(self._known) <= self._capacity:
                return
            self._known.popitem(last=False)

    async def _await_pod(self, pod: BoundPod, address: str) -> Refusal | None:
        """None if the pod works for a job. It may connect before the watch reports it, so look several times.

        Any client may name a pod that does not exist, so only a few may wait at a time; the others have to retry.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._find_seconds
        if self._find_pod(pod.namespace, pod.pod, pod.pod_uid) is not None:
            return None
        if not self._unseen.enter(address):
            return TRY_AGAIN
        try:
            while self._find_pod(pod.namespace, pod.pod, pod.pod_uid) is None:
                if loop.time() >= deadline:
                    return NO_WORKER
                await asyncio.sleep(0.05)
        finally:
            self._unseen.leave(address)
        return None
