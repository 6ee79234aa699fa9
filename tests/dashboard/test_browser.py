"""The dashboard in a real browser: live updates, hostile text, the keyboard, two themes, ten thousand pods."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller import client_fixture as given
from dashboard.browser import CHROMIUM, Browser, started
from dashboard.conftest import job, pod
from dashboard.fake_api import FakeApi
from elasticjob_operator.api import names
from elasticjob_operator.dashboard.server import Dashboard

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not installed: the dashboard is not looked at in a browser"
    ),
    pytest.mark.timeout(900),
]

Shown = tuple[Dashboard, str]
LIVE = "document.getElementById('live').textContent === 'Live'"
HOSTILE = "</pre><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>\x1b[31mred"


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with started(tmp_path) as browser:
        yield browser
        assert browser.complaints == []
        here = re.compile(r"about:|data:|http://(127\.0\.0\.1|([0-9a-f]+\.)?localhost):")
        assert all(map(here.match, browser.requested))


def text_of(element: str) -> str:
    return f"(document.querySelector({element!r}) || {{innerText: ''}}).innerText"


async def test_a_story_of_two_pages(api: FakeApi, shown: Shown, browser: Browser) -> None:
    """One browser for several stories: to start one takes longer than they do."""
    await browser.open(shown[1])
    assert await browser.value("location.search") == "", "the token is not in the address any more"
    await follow_the_list(api, browser)
    await use_the_keyboard(browser)
    await follow_a_job(api, browser)
    await follow_incidents(api, browser)
    await press_buttons(api, browser)
    await read_logs(api, browser)
    await show_both_themes(browser)
    await see_it_deleted(api, browser)


@contextlib.asynccontextmanager
async def neighbour() -> AsyncIterator[tuple[int, list[str]]]:
    """A server of another user of this machine: its port, and the cookies that browsers have sent to it."""
    cookies: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie", ""))
        return web.Response(text='<main id="main">hello</main>', content_type="text/html")

    app = web.Application()
    app.add_routes([web.get("/{any:.*}", answer)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield int(runner.addresses[0][1]), cookies
    finally:
        await runner.cleanup()


async def test_no_other_server_of_this_machine_gets_the_cookie(api: FakeApi, shown: Shown, browser: Browser) -> None:
    """Cookies know no ports: what is sent to one server of a name is sent to all of that name."""
    async with neighbour() as (port, cookies):
        await browser.open(shown[1])
        for name in ("127.0.0.1", "localhost"):
            await browser.open(f"http://{name}:{port}/")
        assert cookies, "the other server was asked"
        assert not any(cookies)


async def follow_the_list(api: FakeApi, browser: Browser) -> None:
    await browser.until(LIVE)
    assert await browser.value("document.querySelectorAll('#jobs tbody tr').length") == 1
    api.put(job("another"))
    await browser.until(f"{text_of('#jobs tbody')}.includes('another')")
    await browser.value("document.getElementById('to-job-uid-default-digits').focus()")
    api.put(job(phase="Rescaling"))
    await browser.until(f"{text_of('#job-uid-default-digits')}.includes('Rescaling')")
    assert await browser.value("document.activeElement.id") == "to-job-uid-default-digits", "the focus stays"
    api.delete("default", "another")
    await browser.until("document.querySelectorAll('#jobs tbody tr').length === 1")
    api.put(job(HOSTILE, "team <b>"))
    await browser.until(f"{text_of('#jobs tbody')}.includes('<script>window.hit')")
    api.is_down = True
    api.break_watches()
    await browser.until(f"{text_of('#problem')}.includes('503')", "the page says that it is out of date")
    api.is_down = False
    await browser.until(f"{text_of('#problem')} === ''")
    assert await browser.value("window.hit") is None


async def use_the_keyboard(browser: Browser) -> None:
    await browser.value("document.activeElement.blur(), window.getSelection().removeAllRanges(), scrollTo(0, 0)")
    await browser.value("document.body.tabIndex = -1, document.body.focus(), document.body.removeAttribute('tabindex')")
    seen = []
    for _ in range(6):
        await browser.press("Tab")
        seen.append(await browser.value("(e => e.id || e.className || e.textContent)(document.activeElement)"))
    assert seen[:4] == ["skip", "brand", "q", "Filter"]
    assert seen[4] == "jobs" and seen[5] == "to-job-uid-default-digits"
    assert await browser.value("getComputedStyle(document.activeElement).outlineStyle") != "none"
    await browser.value("document.getElementById('q').focus()")
    await browser.type("digits resc")
    await browser.until("document.querySelectorAll('#jobs tbody tr').length === 1")
    assert await browser.value(text_of("#count")) == "1 of 2 jobs"
    await browser.value("document.getElementById('to-job-uid-default-digits').focus()")
    await browser.press("Enter")
    await browser.until("location.pathname === '/jobs/default/digits' && document.readyState === 'complete'")


async def follow_a_job(api: FakeApi, browser: Browser) -> None:
    await browser.until(LIVE)
    landmarks = await browser.value("['header', 'nav', 'main', 'h1'].map(t => document.querySelectorAll(t).length)")
    assert landmarks == [1, 1, 1, 1]
    grown = job()
    grown["status"]["rendezvous"] |= {"generation": 4, "worldSize": 3, "reason": "failed", "members": [
        {"pod": f"digits-worker-{i}", "node": f"<node-{i}>", "rank": i} for i in range(3)
    ]}  # fmt: skip
    grown["status"]["lastFailure"] = {"pod": "digits-worker-1", "rank": 1, "exitCode": 1, "traceback": HOSTILE}
    api.pods += [pod("digits", i, node=f"<node-{i}>") for i in range(3)]
    api.put(grown)
    await browser.until(f"{text_of('#state')}.includes('generation 4')")
    await browser.until(f"{text_of('#worlds')}.includes('a worker failed')")
    await browser.until(f"{text_of('#members')}.includes('<node-2>')")
    assert await browser.value("document.querySelectorAll('#plots svg').length") == 4
    assert "window.hit = 1" in await browser.value(text_of("#failures"))
    assert await browser.value("window.hit") is None


async def follow_incidents(api: FakeApi, browser: Browser) -> None:
    """They appear when a rule fires, with what it found as it is, and change when they are over."""
    heading = "document.getElementById('h-incidents').offsetParent"
    assert await browser.value(f"{heading} === null"), "nothing is to be seen where nothing has fired"
    sick = job()
    found = {
        "rule": "LossNotFinite", "count": 1, "lastTime": "2026-01-01T00:01:00Z", "since": "2026-01-01T00:01:00Z",
        "lastAction": "Replace", "step": 812, "rank": 1, "pod": "digits-worker-1", "node": "<node-1>",
        "message": HOSTILE,
    }  # fmt: skip
    sick["status"]["incidents"] = [found]
    api.put(sick)
    row = "#incidents tbody tr"
    await browser.until(f"{text_of(row)}.includes('LossNotFinite')")
    told = await browser.value(text_of(row))
    assert all(word in told for word in ("sick", "digits-worker-1", "<node-1>", "812", "Replace", "window.hit = 1"))
    assert await browser.value(f"{heading} !== null")
    sick["status"]["incidents"] = [{key: value for key, value in found.items() if key != "since"} | {"count": 2}]
    api.put(sick)
    await browser.until(f"{text_of(row)}.includes('over')")
    api.put(job())
    await browser.until(f"{heading} === null")
    assert await browser.value("window.hit") is None


async def press_buttons(api: FakeApi, browser: Browser) -> None:
    await browser.value("document.getElementById('replicas').focus(), document.getElementById('replicas').select()")
    await browser.type("3")
    api.put(job(phase="Pending"))  # the form is not taken away from somebody who fills it in
    await browser.until(f"{text_of('#state')}.includes('Pending')")
    assert await browser.value("document.getElementById('replicas').value") == "3"
    await browser.press("Enter")
    await browser.until(f"{text_of('#said')} === 'digits is scaled to 3.'")
    assert api.patches[-1][1] == {"spec": {"replicas": 3}}
    api.denied.add("patch")
    await browser.value("document.getElementById('do-suspend').focus()")
    await browser.press("Space")
    await browser.until(f"{text_of('#said')}.includes('cannot patch resource')")


async def read_logs(api: FakeApi, browser: Browser) -> None:
    api.logs["digits-worker-1"] = ["first line", HOSTILE]
    await browser.until("!!document.getElementById('log-1')")
    await browser.value("document.getElementById('log-1').click()")
    await browser.until(f"{text_of('#log')}.includes('window.hit = 2')")
    assert "\x1b" not in await browser.value("document.getElementById('log').textContent")
    api.logs["digits-worker-1"] += ["a needle", "hay"]
    await browser.until(f"{text_of('#log')}.includes('needle')", "the log is followed")
    await browser.value("document.getElementById('find').focus()")
    await browser.type("NEEDLE")
    await browser.until(f"{text_of('#log')}.trim() === 'a needle'")
    assert await browser.value("window.hit") is None


async def show_both_themes(browser: Browser) -> None:
    backs = []
    for scheme in ("light", "dark"):
        await browser.show_scheme(scheme)
        backs.append(await browser.value("getComputedStyle(document.body).backgroundColor"))
    assert backs == ["rgb(255, 255, 255)", "rgb(18, 24, 31)"]


async def see_it_deleted(api: FakeApi, browser: Browser) -> None:
    api.delete("default", "digits")
    await browser.until(f"{text_of('#state')}.includes('digits was deleted')")
    assert await browser.value("document.getElementById('do-suspend')") is None


@pytest.mark.long
async def test_a_thousand_jobs_and_ten_thousand_pods(
    api: FakeApi, shown: Shown, browser: Browser, record_property: Any
) -> None:
    """The numbers in docs/dashboard.md: run with `-s` on an idle machine. Only what a page holds is asserted."""
    for i in range(1000):
        status = given.running_status(pods=10)
        api.put(job(f"job-{i:04}", f"team-{i % 20:02}") | {"status": status})
        for rank in range(10):
            made = pod(f"job-{i:04}", rank, f"team-{i % 20:02}", f"node-{rank}")
            made["metadata"]["labels"][names.LABEL_JOB] = f"job-{i:04}"
            api.pods.append(made)
    while shown[0].board.view("", 1).total < 1001:
        await shown[0].board.wait(shown[0].board.version, 1)
    base = shown[1].partition("?")[0]
    await browser.open(shown[1])
    for name, path in (("list", ""), ("filtered", "?q=job-0500"), ("job", "jobs/team-00/job-0500")):
        begin = time.monotonic()
        await browser.open(base + path)
        took = time.monotonic() - begin
        size = await browser.value("performance.getEntriesByType('navigation')[0].decodedBodySize")
        loaded = await browser.value("performance.getEntriesByType('navigation')[0].duration")
        print(f"{name}: {took:.2f} s, {loaded:.0f} ms in the browser, {size} bytes")
    await browser.open(base)
    assert await browser.value("document.querySelectorAll('#jobs tbody tr').length") == 50
    await browser.until(LIVE)
    begin = time.monotonic()
    api.put(job("digits", phase="Failed"))
    await browser.until(f"{text_of('#jobs tbody')}.includes('Failed')")
    print(f"a change: {time.monotonic() - begin:.2f} s")
