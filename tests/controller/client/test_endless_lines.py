"""A pod may write a line without an end; whoever reads its log must not keep all of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.api_fixture import kubeconfig
from elasticjob_operator.client import Job, execute, logs
from elasticjob_operator.client.connection import Connection, connect
from elasticjob_operator.client.logs import MOST_LINE, read_pod
from elasticjob_operator.client.model import Pod

pytestmark = pytest.mark.timeout(60)
STAMP = "2026-01-01T00:00:00.5Z"
PIECE = b"x" * 2**16


@pytest.mark.parametrize("pieces", [1, 400], ids=["an ordinary line", "25 MiB"])
async def test_of_a_line_without_an_end_its_beginning_is_kept(pieces: int, tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse()
        await out.prepare(request)
        await out.write(f"{STAMP} begins ".encode())
        for _ in range(pieces):
            await out.write(PIECE)
        await out.write(f"\n{STAMP} next\n{STAMP} last".encode())
        return out

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    pod = Pod({"metadata": {"name": "j-worker-0", "uid": "u"}, "spec": {"containers": [{"name": "w"}]}})
    async with TestServer(app) as server:
        config = tmp_path / "kubeconfig"
        config.write_text(json.dumps(kubeconfig(str(server.make_url("")).rstrip("/"))))
        connection = await connect(str(config))
        tracemalloc.start()
        try:
            lines = [line async for line in read_pod(connection, pod, "t", follow=True, tail=None)]
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            await connection.close()
    assert [stamp for stamp, _ in lines] == [STAMP] * 3
    long, *others = [text for _, text in lines]
    assert others == ["next", "last"]
    whole = "begins " + "x" * (pieces * len(PIECE))
    assert long == whole if len(whole) < MOST_LINE else long.startswith("begins x") and long.endswith("x…")
    assert len(long) <= MOST_LINE
    assert most < 12_000_000


@pytest.mark.parametrize("size", [50, 2**20], ids=["ordinary lines", "lines of a megabyte"])
async def test_long_lines_that_nobody_takes_are_not_read(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows a log may be slow, and a dashboard has 64 viewers who do."""
    made = 0

    async def read(*_: object, **__: object) -> AsyncGenerator[tuple[str | None, str]]:
        nonlocal made
        for number in range(2000):
            made += 1
            yield f"2026-01-01T00:00:00.{number:04d}Z", "x" * size

    async def look() -> tuple[Job | None, list[Pod]]:
        state = {"name": "w", "state": {"running": {}}}
        metadata = {"name": "j-worker-0", "uid": "u"}
        spec = {"containers": [{"name": "w"}]}
        return None, [Pod({"metadata": metadata, "spec": spec, "status": {"containerStatuses": [state]}})]

    monkeypatch.setattr(logs, "read_pod", read)
    lines = logs.Merger(cast(Connection, None), "t", look, follow=False, tail=None).lines()
    assert (await anext(lines)).text == "x" * size
    for _ in range(3000):
        await asyncio.sleep(0)
    assert made * size <= 2**25, f"{made} lines of {size} bytes wait"
    assert sum([1 async for _ in lines]) == 1999, "and none is lost"


@pytest.mark.parametrize("count", [5, 200])
async def test_pods_take_turns_with_lines_that_a_slow_reader_takes(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that writes without a pause does not silence the others, nor one with short lines another with long ones."""

    async def read(_: object, pod: Pod, *__: object, **___: object) -> AsyncGenerator[tuple[str | None, str]]:
        while True:
            yield None, "x" * (200_000 if pod.uid == "1" else 2_000)

    async def look() -> tuple[Job | None, list[Pod]]:
        state = {"name": "w", "state": {"running": {}}}
        spec = {"containers": [{"name": "w"}]}
        found = [{"name": f"j-worker-{number}", "uid": str(number)} for number in range(count)]
        return None, [
            Pod({"metadata": metadata, "spec": spec, "status": {"containerStatuses": [state]}}) for metadata in found
        ]

    monkeypatch.setattr(logs, "read_pod", read)
    seen: Counter[str] = Counter()
    async with contextlib.aclosing(
        logs.Merger(cast(Connection, None), "t", look, follow=False, tail=None).lines()
    ) as lines:
        async for line in lines:
            seen[line.pod] += 1
            if seen.total() == 5 * count + 1000:
                break
    assert len(seen) == count, "each is heard"
    assert min(seen.values()) >= 3


async def test_a_command_that_writes_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is the author's, and so is what its shell does."""

    async def stream(
        connection: Connection,
        namespace: str,
        pod: Pod,
        command: list[str],
        on_output: Callable[[int, bytes], object],
        *,
        patience: float | None = None,
    ) -> int:
        for _ in range(64):
            on_output(execute.STDOUT, bytes(2**20))
        return 0

    monkeypatch.setattr(execute, "stream_in_pod", stream)
    pod = Pod({"metadata": {"name": "j-worker-0", "uid": "u"}})
    with pytest.raises(execute.ExecUnavailableError, match="exec in pod j-worker-0: it writes more than 16 MiB"):
        await execute.run_in_pod(cast("Connection", None), "team", pod, ["sh"])
