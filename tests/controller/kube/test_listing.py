"""Lists whose objects are too large or too deeply nested to be read together."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from controller.api_fixture import answering
from elasticjob_operator.kube.client import LARGEST_BYTES, Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.listing import METADATA_LIST, Listing
from elasticjob_operator.rest.errors import ApiError, no_reply

pytestmark = pytest.mark.timeout(60)
DEEP = "[" * 200_000 + "]" * 200_000


class Server:
    """Holds objects as (name, JSON of what is not metadata); pages them as an API server does.

    `more`: what else is in the metadata of each, by name.
    """

    def __init__(self, *objects: tuple[str, str], more: Mapping[str, str] = MappingProxyType({})) -> None:
        self.objects = objects
        self.more = more
        self.asked: list[int] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        self.asked.append(limit)
        end = start + limit
        rest = str(end) if end < len(self.objects) else ""
        short = request.headers["Accept"] == METADATA_LIST
        items = [
            f'{{"metadata":{{"name":"{name}","namespace":"t"{self.more.get(name, "")}}},"data":{0 if short else data}}}'
            for name, data in self.objects[start:end]
        ]
        text = f'{{"metadata":{{"resourceVersion":"7","continue":"{rest}"}},"items":[{",".join(items)}]}}'
        return web.Response(text=text, content_type="application/json")


async def read(server: Server, directory: Path, intake: Intake, **options: Any) -> tuple[list[str], list[str]]:
    """The names of the objects that were read, and of all that are there."""
    read: list[str] = []
    async with answering(server.answer, directory) as api:
        listing = Listing(api, "/api/v1/pods", intake, key="name", **options)
        listed = await listing.read(lambda item: read.append(item["metadata"]["name"]))
    assert listed.version == "7"
    return read, listed.present


async def test_pages(tmp_path: Path) -> None:
    objects = [(f"p{i}", "1") for i in range(1200)]
    server = Server(*objects)
    read_, present = await read(server, tmp_path, Intake())
    assert read_ == present == [name for name, _ in objects]
    assert server.asked == [500, 500, 500]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(DEEP, "RecursionError", id="deep"),
        pytest.param(json.dumps("x" * LARGEST_BYTES), "the response is larger than", id="large"),
    ],
)
async def test_one_object_does_not_hide_the_others(
    data: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[tuple[str, str]] = []
    names = [f"p{i}" for i in range(9)]
    server = Server(*((name, data if name == "p4" else "1") for name in names))
    read_, present = await read(server, tmp_path, Intake(lambda *skipped: counted.append(skipped)))
    assert read_ == [n for n in names if n != "p4"]
    assert sorted(present) == names, "it is there, though it cannot be read"
    assert counted == [("pods", "Unreadable")]
    assert "skipping pods t/p4" in caplog.text and why in caplog.text


LABELS = json.dumps({f"l{number}": "" for number in range(80_000)})
FIELDS = '{"f:a":' * 9000 + "{}" + "}" * 9000
OWNED = ',"labels":{"a":"b"},"managedFields":[{"fieldsV1":'


@pytest.mark.parametrize("is_metadata_enough", [False, True])
@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param(f',"labels":{LABELS}', "more than 75000 values", id="very many labels"),
        pytest.param(f"{OWNED}{FIELDS}}}]", "RecursionError", id="fields as deep as those of a spec"),
    ],
)
async def test_nor_does_one_whose_metadata_cannot_be_read(
    more: str, why: str, is_metadata_enough: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"p{i}" for i in range(9)]
    server = Server(*((name, "1") for name in names), more={"p4": more})
    read_, present = await read(server, tmp_path, Intake(), is_metadata_enough=is_metadata_enough)
    assert read_ == [n for n in names if n != "p4"]
    assert sorted(present) == names
    assert "skipping pods t/p4" in caplog.text and why in caplog.text


async def test_of_one_of_very_many_values_there_is_an_outline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    identity = ',"uid":"u","resourceVersion":"3"'
    server = Server(("p0", "1"), ("p1", "1"), ("p2", "1"), more={"p1": f'{identity},"labels":{LABELS}'})
    found: list[Any] = []
    async with answering(server.answer, tmp_path) as api:
        listed = await Listing(api, "/api/v1/pods", Intake()).read(found.append)
    assert [item["metadata"]["name"] for item in found] == ["p0", "p1", "p2"]
    assert (found[1]["metadata"]["uid"], listed.present) == ("u", ["", "u", ""])
    assert server.asked == [500], "the page need not be read again in pieces"
    assert "skipping pods t/p1: more than 75000 values" in caplog.text


async def test_of_an_object_little_is_kept_until_all_are_listed(tmp_path: Path) -> None:
    """Nobody limits the objects with the operator's label, and none of others is kept afterwards."""
    names = [f"{number:06d}{'n' * 100}" for number in range(10_000)]
    more = {name: f',"uid":"{uuid.UUID(int=number)}","resourceVersion":"{number}"' for number, name in enumerate(names)}
    server = Server(*((name, "1") for name in names), more=more)
    async with answering(server.answer, tmp_path) as api:
        listing = Listing(api, "/api/v1/configmaps", Intake())
        gc.collect()
        tracemalloc.start()
        try:
            listed = await listing.read(lambda item: None)
            gc.collect()
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert len(listed.present) == len(names)
    assert kept < 250 * len(names)


async def test_large_objects_come_in_small_pages(tmp_path: Path) -> None:
    names = [f"p{i}" for i in range(8)]
    large = json.dumps("x" * (LARGEST_BYTES // 3))
    read_, _ = await read(Server(*((n, large) for n in names)), tmp_path, Intake())
    assert read_ == names


async def test_large_pages_of_many_lists_are_not_decoded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica lists eight kinds when it starts, and a namespace may fill pages of each with labelled objects."""
    lists, pages = 8, 3
    items = [
        {"metadata": {"name": f"c{n}", "namespace": "evil", "annotations": {"a": "x" * 250_000}}} for n in range(16)
    ]
    bodies = [
        json.dumps({"metadata": {"resourceVersion": "5", "continue": token}, "items": items}).encode()
        for token in [*map(str, range(1, pages)), ""]
    ]

    async def fetch(path: str, query: Mapping[str, str], accept: str) -> bytearray:
        await asyncio.sleep(0)
        return bytearray(bodies[int(query.get("continue", "0"))])

    async with answering(Server().answer, tmp_path) as api:
        monkeypatch.setattr(api, "fetch", fetch)
        found = list[str]()
        tracemalloc.start()
        try:
            read_ = (
                Listing(api, f"/api/v1/kind{n}", Intake()).read(lambda item: found.append(item["metadata"]["name"]))
                for n in range(lists)
            )
            await asyncio.gather(*read_)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(found) == lists * pages * len(items)
    assert most < (lists + 5) * len(bodies[0]), "a page of each, and once more what it takes to decode one"


async def test_a_page_that_does_not_come_in_time_is_requested_in_smaller_pieces(tmp_path: Path) -> None:
    """Of sixty jobs of a megabyte each, a busy API server did not write one page in half a minute."""
    server, read_ = Server(*((f"p{i}", "1") for i in range(60))), list[str]()

    async def answer_slowly(request: web.Request) -> web.StreamResponse:
        reply = await server.answer(request)
        if int(request.query["limit"]) > 40:
            await asyncio.sleep(60)
        return reply

    async with answering(answer_slowly, tmp_path, timeout=2.0) as api:
        await Listing(api, "/api/v1/pods", Intake()).read(lambda item: read_.append(item["metadata"]["name"]))
    assert read_ == [name for name, _ in server.objects]
    assert server.asked == [500, 125, 31, 31], "what was in time once is asked for again"


async def test_a_server_that_never_answers_in_time_is_not_asked_for_ever(tmp_path: Path) -> None:
    async def sleep(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with answering(sleep, tmp_path, timeout=0.1) as api:
        with pytest.raises(ApiError, match="TimeoutError"):
            await Listing(api, "/api/v1/pods", Intake()).read(lambda item: None)


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        pytest.param(TimeoutError(), [500, 125, 31, 7, 1], id="too slow"),
        pytest.param(aiohttp.SocketTimeoutError(), [500, 125, 31, 7, 1], id="too slow within its answer"),
        pytest.param(aiohttp.ConnectionTimeoutError(), [500], id="away"),
        pytest.param(aiohttp.ServerDisconnectedError(), [500], id="gone"),
    ],
)
async def test_a_server_that_takes_no_connection_is_not_asked_for_less(error: Exception, asked: list[int]) -> None:
    """Each smaller page would wait for a connection as long as the first."""
    limits = list[int]()

    class Away:
        async def fetch(self, path: str, query: Mapping[str, str], accept: str) -> bytearray:
            limits.append(int(query["limit"]))
            raise no_reply(path, error) from error

    with pytest.raises(ApiError):
        await Listing(cast("Api", Away()), "/api/v1/pods", Intake()).read(lambda item: None)
    assert limits == asked


async def test_the_metadata_alone_may_be_enough(tmp_path: Path) -> None:
    server = Server(("p0", DEEP), ("p1", DEEP))
    read_, _ = await read(server, tmp_path, Intake(), is_metadata_enough=True)
    assert read_ == ["p0", "p1"]
    assert server.asked == [500]


def test_what_is_skipped_is_told_once() -> None:
    told: list[tuple[str, str]] = []
    intake = Intake(tell=lambda kind, raw, why: told.append((raw["metadata"]["name"], why)))

    def fail() -> None:
        raise KeyError("spec.x")

    for _ in range(3):
        intake.take("elasticjobs", {"metadata": {"namespace": "n", "name": "j"}}, fail)
    assert told == [("j", "KeyError('spec.x')")]
