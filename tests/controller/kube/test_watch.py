"""The watch, against a small server that sends what API servers send."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.kube import client, watch
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.watch import Watch, count_failures
from elasticjob_operator.rest.errors import MOST_MESSAGE, decode_watch_error
from elasticjob_operator.turn import SECONDS

pytestmark = pytest.mark.timeout(60)
PATH = "/api/v1/pods"


async def keep_all(items: object, version: str) -> None:
    """Nothing is dropped."""


class Server:
    """Answers lists with a version that grows; each watch gets the next of `scripts`, then stays open."""

    def __init__(self, *scripts: list[bytes]) -> None:
        self.scripts = list(scripts)
        self.lists = 0
        self.watched: list[str] = []  # the versions that were asked for
        self.encodings: set[str] = set()
        self.items: list[dict[str, Any]] = []
        self.skipped: list[tuple[str, str]] = []

    def count(self, kind: str, problem: str) -> None:
        self.skipped.append((kind, problem))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.encodings.add(request.headers["Accept-Encoding"])
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"items": self.items, "metadata": {"resourceVersion": str(10 * self.lists)}})
        self.watched.append(request.query["resourceVersion"])
        if self.scripts and self.scripts[0] == [b"410"]:
            self.scripts.pop(0)
            return web.json_response({"reason": "Expired", "message": "too old"}, status=410)
        out = web.StreamResponse(headers={"Content-Type": "application/json"})
        await out.prepare(request)
        if not self.scripts:
            await asyncio.sleep(60)
            return out
        for part in self.scripts.pop(0):
            if part:
                await out.write(part)
            else:
                await asyncio.sleep(60)
        return out


def event(name: str, version: int, **fields: Any) -> bytes:
    metadata = {"name": name, "resourceVersion": str(version), **fields}
    return json.dumps({"type": "MODIFIED", "object": {"metadata": metadata}}, separators=(",", ":")).encode() + b"\n"


@contextlib.asynccontextmanager
async def following(
    server: Server, directory: Path, refuse: str = ""
) -> AsyncIterator[tuple[asyncio.Queue[str], asyncio.Task[None]]]:
    """The names that the watch tells of, and its task. Whoever is told of the name `refuse` raises."""
    told: asyncio.Queue[str] = asyncio.Queue()

    def apply(kind: str, raw: Any) -> None:
        if raw["metadata"]["name"] == refuse:
            raise RecursionError("too deep")
        told.put_nowait(raw["metadata"]["name"])

    async with answering(server.answer, directory) as api:
        watch = Watch(api, PATH, replace=keep_all, apply=apply, intake=Intake(server.count))
        task = asyncio.create_task(watch.run())
        try:
            yield told, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody tells it
        await asyncio.sleep(0.01)


def follow(directory: Path, server: Server, count: int, refuse: str = "") -> list[str]:
    async def run() -> list[str]:
        async with following(server, directory, refuse) as (told, task):
            names = [await asyncio.wait_for(told.get(), 30) for _ in range(count)]
            assert not task.done(), "the watch goes on"
            return names

    return asyncio.run(run())


def test_an_object_may_be_larger_than_any_buffer(tmp_path: Path) -> None:
    large = event("large", 11, annotations={"x": "y" * 1_000_000})
    assert follow(tmp_path, Server([large[:70_000], large[70_000:], event("small", 12)]), 2) == ["large", "small"]


def test_two_events_in_one_piece_and_one_in_two(tmp_path: Path) -> None:
    server = Server([event("a", 11) + event("b", 12)[:9], event("b", 12)[9:]])
    assert follow(tmp_path, server, 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("script", "next_version"),
    [
        pytest.param([event("a", 11), event("b", 12)[:9]], "11", id="cut-off-in-the-middle"),
        pytest.param([event("a", 11), b"<html>gateway</html>\n"], "11", id="no-json"),
        pytest.param([b"410"], "20", id="gone-as-an-answer"),
    ],
)
def test_a_watch_that_breaks_is_made_again(script: list[bytes], next_version: str, tmp_path: Path) -> None:
    server = Server(script, [event("c", 30)])
    names = follow(tmp_path, server, 2 if len(script) > 1 else 1)
    assert names[-1] == "c"
    assert server.watched[1] == next_version


async def test_others_are_heard_between_events_that_have_arrived_together(tmp_path: Path) -> None:
    """A tenant who changes a thousand pods at once must not occupy the loop until all of them are read."""
    laps = 0
    told: list[int] = []
    all_told = asyncio.Event()

    async def count_laps() -> None:
        nonlocal laps
        while True:
            laps += 1
            await asyncio.sleep(0)

    def take_long(kind: str, raw: Any) -> None:
        told.append(laps)
        time.sleep(1.5 * SECONDS)
        if len(told) == 20:
            all_told.set()

    server = Server([b"".join(event(f"p{number}", 11 + number) for number in range(20))])
    async with answering(server.answer, tmp_path) as api:
        watch = Watch(api, PATH, replace=keep_all, apply=take_long)
        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(count_laps())]
        await all_told.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert len(set(told)) == 20


def test_the_server_is_not_asked_to_compress(tmp_path: Path) -> None:
    server = Server([event("a", 11)])
    assert follow(tmp_path, server, 1) == ["a"]
    assert server.encodings == {"identity"}


def test_an_object_that_cannot_be_taken_in_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = {"metadata": {"name": "bad", "namespace": "t"}}, {"metadata": {"name": "listed", "namespace": "t"}}
    server = Server([event("bad", 11, namespace="t"), event("good", 12)])
    server.items = [bad, good]
    assert follow(tmp_path, server, 2, refuse="bad") == ["listed", "good"]
    assert server.skipped == [("pods", "RecursionError")] * 2
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warnings == ["skipping pods t/bad: RecursionError('too deep')"], "told once"


def test_an_event_beyond_all_bounds_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    huge = event("huge", 11, namespace="t", annotations={"x": "y" * client.LARGEST_BYTES})
    parts = [huge[i : i + 2**20] for i in range(0, len(huge), 2**20)]
    server = Server([*parts, event("small", 12)])
    assert follow(tmp_path, server, 1) == ["small"]
    assert server.lists == 1, "the watch went on"
    assert server.skipped == [("pods", "Unreadable")]
    assert "skipping pods t/huge: watch of /api/v1/pods" in caplog.text


def test_a_version_that_is_always_too_old_is_asked_for_ever_more_rarely(tmp_path: Path) -> None:
    server = Server(*[[b"410"]] * 4, [event("late", 11)])
    began = time.monotonic()
    assert follow(tmp_path, server, 1) == ["late"]
    assert server.lists == 5, "each time it began anew"
    assert time.monotonic() - began > 0.8 * (0.2 + 0.4 + 0.8 + 1.6)


def test_a_silent_watch_is_made_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "IDLE_SECONDS", 1.1)
    silent = Server([b""], [b""], [event("late", 11)])
    caplog.set_level("INFO")
    assert follow(tmp_path, silent, 1) == ["late"]
    assert silent.watched == ["10", "10", "10"] and silent.lists == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    ("scripts", "is_failing"),
    [
        pytest.param([[], [], []], True, id="each ends at once"),
        pytest.param([[event("a", 11)[:9]], [event("a", 11)[:9]]], True, id="each breaks in its first event"),
        pytest.param([[], [event("a", 11), b""]], False, id="one has brought something"),
    ],
)
async def test_watches_that_are_answered_and_bring_nothing_are_failing(
    tmp_path: Path, scripts: list[list[bytes]], is_failing: bool
) -> None:
    server = Server(*scripts)
    async with answering(server.answer, tmp_path) as api:
        follower = Watch(api, PATH, replace=keep_all, apply=lambda kind, raw: None)
        task = asyncio.create_task(follower.run())
        await until(lambda: len(server.watched) == len(scripts) and bool(follower.failing) is is_failing)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_watch_that_stays_open_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BRINGS_SECONDS", 0.2)
    server = Server([], [b""])
    async with answering(server.answer, tmp_path) as api:
        follower = Watch(api, PATH, replace=keep_all, apply=lambda kind, raw: None)
        task = asyncio.create_task(follower.run())
        await until(lambda: follower.failing is not None)
        await until(lambda: follower.failing is None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("before", "failed", "seconds", "after"),
    [
        pytest.param(0, False, 240.0, 0, id="a watch that was renewed"),
        pytest.param(0, True, 0.1, 1, id="the first failure"),
        pytest.param(4, True, 0.1, 5, id="another"),
        pytest.param(4, True, 100.0, 1, id="the first one after a good time"),
        pytest.param(4, False, 2.0, 0, id="it goes on"),
        pytest.param(4, False, 0.1, 5, id="an end at once is a failure"),
    ],
)
def test_failures_in_a_row(before: int, failed: bool, seconds: float, after: int) -> None:
    assert count_failures(before, failed, seconds) == after


def test_the_error_that_ends_a_watch_is_cut() -> None:
    """The API server may repeat what a tenant wrote in it, at any length."""
    causes = [{"field": "x" * 9_000, "message": "y" * 9_000}] * 2_000
    said = {"code": 500, "reason": "r" * 9_000, "message": "m" * 1_000_000, "details": {"causes": causes}}
    error = decode_watch_error(said)
    assert error.status == 500
    assert len(error.message) <= MOST_MESSAGE and len(error.reason) <= 256
    assert len(str(error)) < MOST_MESSAGE + 300 and sum(map(len, error.causes)) <= MOST_MESSAGE
