"""Authentication: the meaning of a review, caching, and failed requests to the API server."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest

from elasticjob_operator.hub import auth

NOW = time.time()
ADDRESS = "10.0.0.1"
CLAIMS: dict[str, Any] = {
    "aud": ["elasticjob.dev"],
    "exp": NOW + 3600,
    "kubernetes.io": {"namespace": "default", "pod": {"name": "digits-worker-0", "uid": "uid-0"}},
}


def make_token(claims: Any = CLAIMS, signature: str = "ccc") -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"aaa.{payload}.{signature}"


TOKEN = make_token()
POD = auth.BoundPod("default", "digits-worker-0", "uid-0")


def status(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "authenticated": True,
        "audiences": ["elasticjob.dev"],
        "user": {
            "username": "system:serviceaccount:default:trainer",
            "extra": {
                "authentication.kubernetes.io/pod-name": ["digits-worker-0"],
                "authentication.kubernetes.io/pod-uid": ["uid-0"],
            },
        },
    }
    user = changes.pop("user", {})
    return {**found, **changes, "user": {**found["user"], **user}}


@pytest.mark.parametrize(
    ("review", "expected"),
    [
        pytest.param(status(), POD, id="bound to a pod"),
        pytest.param(status(authenticated=False), 401, id="expired or revoked"),
        pytest.param(status(authenticated="yes"), 401, id="not a plain yes"),
        pytest.param({}, 401, id="empty"),
        pytest.param({"authenticated": True, "audiences": ["elasticjob.dev"]}, 403, id="nobody"),
        pytest.param(status(audiences=["https://kubernetes.default.svc"]), 401, id="for the API server"),
        pytest.param(status(audiences=None), 401, id="a server that ignores audiences"),
        pytest.param(status(user={"username": "admin"}), 403, id="a person"),
        pytest.param(status(user={"username": "system:serviceaccount:default"}), 403, id="no account"),
        pytest.param(status(user={"username": "system:serviceaccount:a:b:c"}), 403, id="too many parts"),
        pytest.param(status(user={"username": "x:system:serviceaccount:default:a"}), 403, id="a prefix"),
        pytest.param(status(user={"extra": None}), 403, id="a token of no pod"),
        pytest.param(status(user={"extra": {"authentication.kubernetes.io/pod-name": ["a"]}}), 403, id="no pod uid"),
    ],
)
def test_read_review(review: dict[str, Any], expected: auth.BoundPod | int) -> None:
    found = auth.read_review(review)
    assert (found.status if isinstance(found, auth.Refusal) else found) == expected


class ApiServer:
    """Answers reviews from a table, counts them, and may be held up."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: auth.BoundPod | auth.Refusal = POD
        self.began, self.free = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def review(self, token: str) -> auth.BoundPod | auth.Refusal:
        self.asked += 1
        self.began.set()
        await self.free.wait()
        return self.answer


class Pods:
    def __init__(self) -> None:
        self.jobs: dict[tuple[str, str, str], str] = {("default", "digits-worker-0", "uid-0"): "digits"}

    def find(self, namespace: str, name: str, uid: str) -> str | None:
        return self.jobs.get((namespace, name, uid))


async def test_a_worker_is_who_the_server_says() -> None:
    authenticator = auth.TokenAuthenticator(ApiServer().review, Pods().find)
    assert await authenticator(TOKEN, ADDRESS) == auth.Identity("default", "digits-worker-0", "uid-0", "digits")


async def test_what_a_token_claims_is_not_believed() -> None:
    """It says where to look before the review, and anybody can write it."""
    server, pods = ApiServer(), Pods()
    server.answer = auth.BoundPod("default", "digits-worker-1", "uid-1")
    authenticator = auth.TokenAuthenticator(server.review, pods.find)
    assert await authenticator(TOKEN, ADDRESS) == auth.NO_WORKER
    pods.jobs[("default", "digits-worker-1", "uid-1")] = "digits"
    assert await authenticator(TOKEN, ADDRESS) == auth.Identity("default", "digits-worker-1", "uid-1", "digits")


async def test_a_pod_that_is_deleted_during_its_review_is_refused() -> None:
    server, pods = ApiServer(), Pods()
    server.free.clear()
    asking = asyncio.create_task(auth.TokenAuthenticator(server.review, pods.find)(TOKEN, ADDRESS))
    await server.began.wait()
    pods.jobs.clear()
    server.free.set()
    assert await asking == auth.NO_WORKER


async def test_a_yes_is_remembered_for_a_moment() -> None:
    server = ApiServer()
    authenticator = auth.TokenAuthenticator(server.review, Pods().find, remember_seconds=0.3)
    for _ in range(5):
        assert isinstance(await authenticator(TOKEN, ADDRESS), auth.Identity)
    assert server.asked == 1
    await asyncio.sleep(0.35)
    await authenticator(TOKEN, ADDRESS)
    assert server.asked == 2


async def test_a_no_is_not_remembered() -> None:
    server = ApiServer()
    server.answer = auth.TRY_AGAIN
    authenticator = auth.TokenAuthenticator(server.review, Pods().find)
    assert await authenticator(TOKEN, ADDRESS) == auth.TRY_AGAIN
    server.answer = POD
    assert isinstance(await authenticator(TOKEN, ADDRESS), auth.Identity)


async def test_a_deleted_pods_token_is_refused_even_while_its_review_is_remembered() -> None:
    pods = Pods()
    authenticator = auth.TokenAuthenticator(ApiServer().review, pods.find, find_seconds=0.1)
    assert isinstance(await authenticator(TOKEN, ADDRESS), auth.Identity)
    pods.jobs.clear()
    refused = await authenticator(TOKEN, ADDRESS)
    assert isinstance(refused, auth.Refusal) and refused.status == 403


async def test_a_pod_of_the_same_name_with_another_uid_is_another_pod() -> None:
    pods = Pods()
    pods.jobs = {("default", "digits-worker-0", "uid-1"): "digits"}
    refused = await auth.TokenAuthenticator(ApiServer().review, pods.find, find_seconds=0.1)(TOKEN, ADDRESS)
    assert isinstance(refused, auth.Refusal) and refused.status == 403


async def test_a_pod_may_be_faster_than_the_operators_watch() -> None:
    pods = Pods()
    jobs, pods.jobs = pods.jobs, {}
    authenticator = auth.TokenAuthenticator(ApiServer().review, pods.find, find_seconds=30)
    asking = asyncio.create_task(authenticator(TOKEN, ADDRESS))
    await asyncio.sleep(0.1)
    assert not asking.done()
    pods.jobs = jobs
    assert isinstance(await asking, auth.Identity)


async def test_many_connections_of_one_token_are_one_review() -> None:
    server = ApiServer()
    server.free.clear()
    authenticator = auth.TokenAuthenticator(server.review, Pods().find)
    asking = [asyncio.create_task(authenticator(TOKEN, ADDRESS)) for _ in range(50)]
    await asyncio.sleep(0.05)
    asking[0].cancel()  # the first one gives up; the others still get their answer
    server.free.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert all(isinstance(answer, auth.Identity) for answer in answers[1:])
    assert server.asked == 1


async def test_a_flood_of_tokens_asks_a_bounded_number_at_a_time() -> None:
    server = ApiServer()
    server.free.clear()
    authenticator = auth.TokenAuthenticator(server.review, Pods().find, parallel=4, waiting=20)
    asking = [asyncio.create_task(authenticator(make_token(signature=f"c{i}"), ADDRESS)) for i in range(100)]
    await asyncio.sleep(0.05)
    assert server.asked == 4
    server.free.set()
    answers = await asyncio.gather(*asking)
    assert answers.count(auth.TRY_AGAIN) == 80 and server.asked == 20


@pytest.mark.parametrize("token", ["", "a", "a.b", "a.b.c.d", "a.b.c\n", "a.b.ü", "a." * 9000 + "c", "..", "a b.c.d"])
async def test_what_is_no_token_is_not_asked_about(token: str) -> None:
    server = ApiServer()
    refused = await auth.TokenAuthenticator(server.review, Pods().find)(token, ADDRESS)
    assert isinstance(refused, auth.Refusal) and refused.status == 401 and server.asked == 0


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        pytest.param(CLAIMS, POD, id="a worker's"),
        pytest.param({**CLAIMS, "aud": "elasticjob.dev"}, POD, id="one audience as a text"),
        pytest.param({**CLAIMS, "exp": NOW - 30}, POD, id="clocks that differ"),
        pytest.param({**CLAIMS, "exp": NOW - 90}, 401, id="expired"),
        pytest.param({**CLAIMS, "exp": "soon"}, 401, id="an end that is no number"),
        pytest.param({**CLAIMS, "exp": 10**400}, 401, id="an end beyond all numbers"),
        pytest.param({**CLAIMS, "exp": float("nan")}, 401, id="an end that is never before anything"),
        pytest.param({**CLAIMS, "aud": ["https://kubernetes.default.svc"]}, 401, id="for the API server"),
        pytest.param({**CLAIMS, "aud": None}, 401, id="for nobody"),
        pytest.param({"exp": NOW + 1}, 401, id="no audience"),
        pytest.param([], 401, id="a list"),
        pytest.param({**CLAIMS, "kubernetes.io": {"namespace": "default"}}, 403, id="of no pod"),
        pytest.param({**CLAIMS, "kubernetes.io": []}, 403, id="of nothing"),
    ],
)
def test_what_a_token_claims(claims: Any, expected: auth.BoundPod | int) -> None:
    found = auth.read_claims(make_token(claims), NOW)
    assert (found.status if isinstance(found, auth.Refusal) else found) == expected


def test_claims_that_are_nested_without_end_are_no_claims() -> None:
    payload = base64.urlsafe_b64encode(b"[" * 6000).decode()
    found = auth.read_claims(f"a.{payload}.c", NOW)
    assert isinstance(found, auth.Refusal) and found.status == 401


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({}, id="garbage"),
        pytest.param({**CLAIMS, "aud": ["other"]}, id="for somebody else"),
        pytest.param({**CLAIMS, "exp": 0}, id="expired"),
        pytest.param(
            {**CLAIMS, "kubernetes.io": {"namespace": "default", "pod": {"name": "digits-worker-0", "uid": "guessed"}}},
            id="of a pod that nobody knows",
        ),
    ],
)
async def test_a_token_that_cannot_be_a_workers_costs_the_api_server_nothing(claims: Any) -> None:
    server = ApiServer()
    refused = await auth.TokenAuthenticator(server.review, Pods().find, find_seconds=0.1)(make_token(claims), ADDRESS)
    assert isinstance(refused, auth.Refusal) and refused.status in (401, 403) and server.asked == 0


async def test_only_a_few_wait_for_a_pod_that_nobody_has_seen_and_others_are_not_held_up() -> None:
    server = ApiServer()
    authenticator = auth.TokenAuthenticator(server.review, Pods().find, find_seconds=30, unseen=4)
    unseen = {**CLAIMS, "kubernetes.io": {"namespace": "evil", "pod": {"name": "a", "uid": "b"}}}
    waiting = [asyncio.create_task(authenticator(make_token(unseen), ADDRESS)) for _ in range(10)]
    answered, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result() for task in answered} == {auth.TRY_AGAIN}
    assert isinstance(await authenticator(TOKEN, "10.0.0.2"), auth.Identity)
    assert sum(not task.done() for task in waiting) == 2, "half of the places, for one address alone"
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_review_that_breaks_is_try_again_and_never_tells_the_token(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(token: str) -> auth.BoundPod | auth.Refusal:
        raise RuntimeError(f"cannot review {token}")

    assert await auth.TokenAuthenticator(broken, Pods().find)(TOKEN, ADDRESS) == auth.TRY_AGAIN
    assert TOKEN not in caplog.text and "RuntimeError" in caplog.text


async def test_what_is_remembered_is_bounded() -> None:
    server = ApiServer()
    authenticator = auth.TokenAuthenticator(server.review, Pods().find, capacity=10)
    for i in range(100):
        await authenticator(make_token(signature=f"c{i}"), ADDRESS)
    await authenticator(make_token(signature="c99"), ADDRESS)
    assert server.asked == 100
    await authenticator(make_token(signature="c5"), ADDRESS)
    assert server.asked == 101
