"""Who may ask the dashboard for what: a table, and the same through the server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from dashboard.conftest import visiting
from dashboard.fake_api import FakeApi, served
from elasticjob_operator.client import Client
from elasticjob_operator.dashboard import guard
from elasticjob_operator.dashboard.guard import Access, Asked, Keys
from elasticjob_operator.dashboard.server import Dashboard

KEYS = Keys("token", "session", "form")
OWN = Access(frozenset({"a1b2.localhost"}))
PAGE = Asked("GET", "a1b2.localhost:8000", session="session")
FORM = replace(PAGE, method="POST", origin="http://a1b2.localhost:8000")


@pytest.mark.parametrize(
    ("asked", "access", "status"),
    [
        (PAGE, OWN, None),
        (replace(PAGE, method="HEAD"), OWN, None),
        (replace(PAGE, host="A1B2.localhost:9"), OWN, None),
        (replace(PAGE, host="127.0.0.1:8000"), Access(frozenset({guard.PLAIN})), None),
        (replace(PAGE, host="localhost:8000"), OWN, 403),
        (replace(PAGE, host="127.0.0.1:8000"), OWN, 403),
        (replace(PAGE, host="[::1]:8000"), OWN, 403),
        (replace(PAGE, host="other.localhost:8000"), OWN, 403),
        (replace(PAGE, host="evil.example:8000"), OWN, 403),
        (replace(PAGE, host="a1b2.localhost.evil.example"), OWN, 403),
        (replace(PAGE, host="evil@evil.example"), OWN, 403),
        (replace(PAGE, host="[::1"), OWN, 403),
        (replace(PAGE, host=""), OWN, 403),
        (replace(PAGE, session=""), OWN, 401),
        (replace(PAGE, session="sessio"), OWN, 401),
        (replace(PAGE, session="tokén"), OWN, 401),
        (replace(PAGE, session="token\udcff"), OWN, 401),
        (replace(PAGE, session="", token="token"), OWN, None),
        (replace(PAGE, session="", token="other"), OWN, 401),
        (replace(PAGE, session="token"), OWN, 401),
        (replace(PAGE, session=""), replace(OWN, behind_proxy=True), None),
        (replace(PAGE, host="jobs.example", session=""), Access(frozenset({"jobs.example"}), True), None),
        (replace(PAGE, host="other.example", session=""), Access(frozenset({"jobs.example"}), True), 403),
        (replace(PAGE, method="PUT"), OWN, 405),
        (FORM, OWN, None),
        (FORM, replace(OWN, read_only=True), 403),
        (replace(FORM, origin=""), OWN, 403),
        (replace(FORM, origin="null"), OWN, 403),
        (replace(FORM, origin="http://evil.example"), OWN, 403),
        (replace(FORM, origin="http://a1b2.localhost:9"), OWN, 403),
        (replace(FORM, origin="https://A1B2.localhost:8000"), OWN, None),
        (replace(FORM, origin="http://[::1"), OWN, 403),
        (replace(FORM, session="", token="token"), OWN, 401),
    ],
)
def test_requests(asked: Asked, access: Access, status: int | None) -> None:
    refusal = guard.judge(asked, KEYS, access)
    assert (refusal.status if refusal else None) == status


@pytest.mark.parametrize(("key", "is_good"), [("form", True), ("", False), ("session", False), ("\ud800", False)])
def test_keys_of_forms(key: str, is_good: bool) -> None:
    assert (guard.judge_form(key, KEYS) is None) == is_good


def test_secrets_are_long_and_new() -> None:
    one, other = Keys(), Keys()
    found = {one.token, one.session, one.form, other.token, other.session, other.form}
    assert len(found) == 6
    assert Access().hosts.isdisjoint(Access().hosts)
    assert min(map(len, found)) >= 43  # 256 bits


@pytest.fixture
async def visitor() -> AsyncIterator[aiohttp.ClientSession]:
    async with visiting() as session:
        yield session


async def test_the_token_becomes_a_cookie(
    api: FakeApi, shown: tuple[Dashboard, str], visitor: aiohttp.ClientSession
) -> None:
    dashboard, address = shown
    base = address.partition("/?")[0]
    async with visitor.get(f"{base}/") as answer:
        assert answer.status == 401
        assert "kubectl elasticjob dashboard" in await answer.text()
    async with visitor.get(address) as answer:
        assert answer.status == 200
        (cookie,) = answer.headers.getall("Set-Cookie")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert dashboard.keys.token not in cookie and dashboard.keys.token not in await answer.text()
    async with visitor.get(f"{base}/") as answer:
        assert answer.status == 200
        text = await answer.text()
        assert "/jobs/default/digits" in text and dashboard.keys.token not in text
        assert set(guard.HEADERS.items()) <= set(answer.headers.items())
        assert "unsafe" not in guard.HEADERS["Content-Security-Policy"]
    async with visitor.get(f"{base}/", headers={"Host": "rebound.example"}) as answer:
        assert answer.status == 403


async def test_every_address_is_guarded(
    api: FakeApi, shown: tuple[Dashboard, str], visitor: aiohttp.ClientSession
) -> None:
    base = shown[1].partition("/?")[0]
    for path in ("/", "/events", "/assets/dashboard.js", "/jobs/default/digits", "/jobs/default/digits/events",
                 "/jobs/default/digits/logs", "/no/such", f"/events?token={shown[0].keys.token}"):  # fmt: skip
        async with visitor.get(base + path) as answer:
            assert answer.status == 401, path
            assert "Content-Security-Policy" in answer.headers
    async with visitor.post(f"{base}/jobs/default/digits/suspend", data={"key": "x"}) as answer:
        assert answer.status == 401
    async with visitor.get(f"{base}/healthz") as answer:
        assert await answer.text() == "ok\n"
    assert api.patches == []


async def test_a_form_needs_its_key_and_its_own_page(
    api: FakeApi, shown: tuple[Dashboard, str], visitor: aiohttp.ClientSession
) -> None:
    dashboard, address = shown
    base = address.partition("/?")[0]
    await visitor.get(address)
    path, key = f"{base}/jobs/default/digits", {"key": dashboard.keys.form}
    await visitor.get(path)
    for data, origin, status in (
        ({}, base, 403),
        (key, "http://evil.example", 403),
        (key, "null", 403),
        (key | {"x": "y" * 20_000}, base, 413),
        (key, base, 200),
    ):
        async with visitor.post(f"{path}/suspend", data=data, headers={"Origin": origin}) as answer:
            assert answer.status == status, await answer.text()
    assert [body for _, body in api.patches] == [{"spec": {"runPolicy": {"suspend": True}}}]


@pytest.mark.parametrize(
    ("action", "replicas", "status", "said"),
    [
        ("scale", "3", 200, "digits is scaled to 3."),
        ("scale", "9", 400, "outside 1..4"),
        ("scale", "0", 400, "must be a number of pods"),
        ("scale", "-1", 400, "must be a number of pods"),
        ("scale", "²", 400, "must be a number of pods"),
        ("scale", "", 400, "must be a number of pods"),
        ("scale", "auto", 400, "is Manual"),
        ("resume", "", 200, "is being resumed"),
        ("explode", "", 404, ""),
    ],
)
async def test_buttons(
    api: FakeApi,
    shown: tuple[Dashboard, str],
    visitor: aiohttp.ClientSession,
    action: str,
    replicas: str,
    status: int,
    said: str,
) -> None:
    dashboard, address = shown
    base = address.partition("/?")[0]
    await visitor.get(address)
    await visitor.get(f"{base}/")
    data = {"key": dashboard.keys.form, "replicas": replicas}
    headers = {"Origin": base, "Accept": "application/json"}
    async with visitor.post(f"{base}/jobs/default/digits/{action}", data=data, headers=headers) as answer:
        assert answer.status == status
        assert said in (await answer.json())["message"]
    assert len(api.patches) == (status == 200)


FORM_TYPE = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param({"Content-Type": f"{FORM_TYPE}; charset=none"}, b"a=1", id="charset"),
        pytest.param({"Content-Type": f"{FORM_TYPE}; charset=utf-7"}, b"key=+2AA-", id="half a character"),
        pytest.param({"Content-Type": FORM_TYPE}, b"key=\xff", id="no text"),
        pytest.param({"Content-Type": FORM_TYPE, "Content-Encoding": "gzip"}, b"a=1", id="not compressed"),
        pytest.param({"Content-Type": "multipart/form-data"}, b"a=1", id="no boundary"),
        pytest.param({"Content-Type": "multipart/form-data; boundary=b"}, b"a=1", id="no parts"),
        pytest.param({"Content-Type": FORM_TYPE, "Origin": "http://[::1"}, b"a=1", id="origin"),
    ],
)
async def test_a_form_that_cannot_be_read_is_refused_without_a_traceback(
    shown: tuple[Dashboard, str],
    visitor: aiohttp.ClientSession,
    caplog: pytest.LogCaptureFixture,
    headers: dict[str, str],
    body: bytes,
) -> None:
    """Whoever reaches the port can send one: it is read only from those who may ask."""
    base = shown[1].partition("/?")[0]
    path, headers = f"{base}/jobs/default/digits/suspend", {"Origin": base} | headers
    async with visitor.post(path, data=body, headers=headers) as answer:
        assert answer.status == 401
    await visitor.get(shown[1])
    async with visitor.post(path, data=body, headers=headers) as answer:
        assert answer.status in (400, 403)
    assert caplog.records == []


@pytest.mark.parametrize(
    "request_line",
    [
        pytest.param(b"GET / HTTP/1.1\r\n", id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n", id="two hosts"),
        pytest.param(b"GET /?q=\xff HTTP/1.1\r\nHost: a\r\n", id="no text"),
    ],
)
async def test_what_is_no_request_leaves_no_traceback(
    shown: tuple[Dashboard, str], caplog: pytest.LogCaptureFixture, request_line: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(shown[1]).port)
    writer.write(request_line + b"\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.0 400 ")
    writer.close()
    assert caplog.records == []


async def test_a_lacking_right_is_said_in_words(
    api: FakeApi, shown: tuple[Dashboard, str], visitor: aiohttp.ClientSession
) -> None:
    api.denied |= {"patch", "list pods", "list events"}
    dashboard, address = shown
    base = address.partition("/?")[0]
    await visitor.get(address)
    async with visitor.get(f"{base}/jobs/default/digits") as answer:
        text = await answer.text()
        assert "pods is forbidden" in text and "events is forbidden" in text
        assert "digits-worker-1" in text, "the status names the members"
    data = {"key": dashboard.keys.form, "replicas": "2"}
    async with visitor.post(f"{base}/jobs/default/digits/scale", data=data, headers={"Origin": base}) as answer:
        assert answer.status == 400
        assert "cannot patch resource" in await answer.text()


async def test_jobs_that_may_not_be_listed(api: FakeApi, client: Client, visitor: aiohttp.ClientSession) -> None:
    api.denied.add("list jobs")
    async with Dashboard(client, all_namespaces=True).serve("127.0.0.1", 0) as address:
        await visitor.get(address)
        async with visitor.get(address.partition("?")[0]) as answer:
            text = await answer.text()
    assert "elasticjobs is forbidden" in text and "-n NAMESPACE" in text


async def test_a_page_that_only_shows_has_no_buttons(api: FakeApi, client: Client) -> None:
    access = Access(frozenset({"127.0.0.1"}), read_only=True, behind_proxy=True)
    reading = Dashboard(client, access=access)
    async with reading.serve("127.0.0.1", 0) as address, aiohttp.ClientSession() as visitor:
        assert "token" not in address
        async with visitor.get(f"{address}jobs/default/digits") as answer:
            assert answer.status == 200
            text = await answer.text()
        assert "data-act" not in text and reading.keys.form not in text
        data = {"key": reading.keys.form}
        headers = {"Origin": address.rstrip("/")}
        async with visitor.post(f"{address}jobs/default/digits/suspend", data=data, headers=headers) as answer:
            assert answer.status == 403
    assert api.patches == []


@pytest.mark.timeout(600)
async def test_in_a_cluster_it_only_shows_and_only_under_its_names(api: FakeApi, tmp_path: Path) -> None:
    async with served(api, tmp_path) as kubeconfig:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "elasticjob_operator.dashboard", "--allowed-host", "Jobs.example:443"),
            *("--host", "127.0.0.1", "--port", "0"),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"KUBECONFIG": kubeconfig, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(300), aiohttp.ClientSession() as visitor:
                address = (await process.stdout.readline()).decode().split()[-1]
                path = f"{address}jobs/default/digits"
                async with visitor.get(path, headers={"Host": "jobs.example"}) as answer:
                    text = await answer.text()
                    assert answer.status == 200 and "digits-worker-1" in text and "data-act" not in text
                for host in ("127.0.0.1", "evil.example"):
                    async with visitor.get(path, headers={"Host": host}) as answer:
                        assert answer.status == 403
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
