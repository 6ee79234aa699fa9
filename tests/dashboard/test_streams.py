"""The streams of changes: only what changed is sent, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dashboard.conftest import job, pod, visiting
from dashboard.fake_api import FakeApi, served
from elasticjob_operator.client import Client
from elasticjob_operator.dashboard import streams
from elasticjob_operator.dashboard.server import Dashboard

pytestmark = pytest.mark.timeout(300)

PATIENCE = 120.0


class Stream:
    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            async for line in self._answer.content:
                if line.startswith(b"data: "):
                    return dict(json.loads(line[6:]))
        raise AssertionError("the stream has ended")

    async def until_end(self) -> list[dict[str, Any]]:
        found = []
        with contextlib.suppress(AssertionError):
            while True:
                found.append(await self.next())
        return found


class Viewer:
    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self._session = session
        self._base = base

    @contextlib.asynccontextmanager
    async def listen(self, path: str) -> AsyncIterator[Stream]:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(self._base + path, timeout=timeout) as answer:
            assert answer.status == 200 and answer.content_type == "text/event-stream"
            yield Stream(answer)


@pytest.fixture
async def viewer(shown: tuple[Dashboard, str]) -> AsyncIterator[Viewer]:
    async with visiting() as session:
        base = shown[1].partition("/?")[0]
        await session.get(shown[1])
        await session.get(base + "/")  # answers once the jobs were listed
        yield Viewer(session, base)


async def test_only_changed_rows_are_sent(api: FakeApi, viewer: Viewer) -> None:
    async with viewer.listen("/events") as stream:
        first = await stream.next()
        assert first["order"] == list(first["rows"]) == ["job-uid-default-digits"]
        api.put(job("another"))
        second = await stream.next()
        assert second["order"] == ["job-uid-default-another", "job-uid-default-digits"]
        assert list(second["rows"]) == ["job-uid-default-another"]
        assert list(second["regions"]) == ["count"]
        api.put(job(phase="Failed"))
        third = await stream.next()
        assert list(third["rows"]) == ["job-uid-default-digits"] and third["regions"] == {}
        api.delete("default", "another")
        fourth = await stream.next()
        assert fourth["order"] == ["job-uid-default-digits"] and fourth["rows"] == {}


async def test_rows_outside_the_filter_and_the_page_are_not_sent(api: FakeApi, viewer: Viewer) -> None:
    async with viewer.listen("/events?q=wanted") as stream:
        assert "order" not in await stream.next()
        api.put(job("unwanted-not"))
        assert (await stream.next())["rows"].keys() == {"job-uid-default-unwanted-not"}
        api.put(job("else"))
        said = await stream.next()
        assert "rows" not in said and said["regions"] == {"count": "1 of 3 jobs"}


async def test_only_changed_parts_of_a_job_are_sent(api: FakeApi, viewer: Viewer) -> None:
    async with viewer.listen("/jobs/default/digits/events") as stream:
        assert "plots" in (await stream.next())["regions"]
        api.events.append(
            {"metadata": {"namespace": "default"}, "reason": "Pulled", "message": "m",
             "involvedObject": {"kind": "ElasticJob", "name": "digits", "uid": "uid-default-digits"}}
        )  # fmt: skip
        assert list((await stream.next())["regions"]) == ["events"]
        api.delete("default", "digits")
        last = (await stream.until_end())[-1]
        assert last["gone"] and "digits was deleted" in last["regions"]["state"]


async def test_jobs_deleted_while_the_server_was_away_are_gone(api: FakeApi, viewer: Viewer) -> None:
    async with viewer.listen("/events") as stream:
        await stream.next()
        api.is_down = True
        api.break_watches()
        assert "503" in (await stream.next())["regions"]["problem"]
        api.jobs.clear()
        api.is_down = False
        said: dict[str, Any] = {}
        while said.get("order") != [] or said["regions"].get("problem") != "":
            news = await stream.next()
            said = {**said, **news, "regions": {**said.get("regions", {}), **news["regions"]}}
        assert said["regions"]["count"] == "There are no ElasticJobs here yet."


async def test_a_line_that_is_cut_off_does_not_end_the_updates(api: FakeApi, viewer: Viewer) -> None:
    async with viewer.listen("/events") as stream:
        await stream.next()
        api.garble()
        assert "could not be read (JSONDecodeError" in (await stream.next())["regions"]["problem"]
        api.put(job(phase="Failed"))
        said = await stream.next()
        while "rows" not in said:
            said = await stream.next()
        assert "Failed" in said["rows"]["job-uid-default-digits"]


async def test_logs_of_a_rank_and_of_all(api: FakeApi, viewer: Viewer, shown: tuple[Dashboard, str]) -> None:
    api.pods += [pod("digits", 0), pod("digits", 1)]
    api.logs = {"digits-worker-0": ["zero"], "digits-worker-1": ["one\x1b[31m", "x" * 10_000]}
    done = job(conditions=[{"type": "Complete", "status": "True"}])
    async with viewer.listen("/jobs/default/digits/logs?rank=1") as stream:
        assert (await stream.next())["state"] == "Following."
        lines: list[str] = []
        while len(lines) < 2:
            lines += (await stream.next())["lines"]
        assert lines[0] == "one�[31m" and len(lines[1]) == 4000
    api.put(done)
    async with asyncio.timeout(PATIENCE):
        while (found := shown[0].board.find("default", "digits")) is None or not found.status.finished:
            await shown[0].board.wait(shown[0].board.version, 1)
    async with viewer.listen("/jobs/default/digits/logs") as stream:
        said = await stream.until_end()
        assert "[0] zero" in [line for message in said for line in message.get("lines", ())]
        assert said[-1] == {"state": "The log has ended.", "end": True}
    async with viewer.listen("/jobs/default/digits/logs?rank=7") as stream:
        last = (await stream.until_end())[-1]
        assert last["end"] and "the job has ranks 0 to 1" in last["state"]


async def test_one_stream_reads_the_logs_of_some_pods(
    api: FakeApi, viewer: Viewer, shown: tuple[Dashboard, str]
) -> None:
    """Each is a connection to the API server, and everybody who looks on has some streams."""
    count = streams.MOST_PODS + 8
    api.pods += [pod("digits", number) for number in range(count)]
    api.logs = {f"digits-worker-{number}": [f"line {number}"] for number in range(count)}
    api.put(job(replicas=count, conditions=[{"type": "Complete", "status": "True"}]))
    async with asyncio.timeout(PATIENCE):
        while (found := shown[0].board.find("default", "digits")) is None or not found.status.finished:
            await shown[0].board.wait(shown[0].board.version, 1)
    async with viewer.listen("/jobs/default/digits/logs") as stream:
        said = await stream.until_end()
    lines = [line.rpartition(" ")[2] for message in said for line in message.get("lines", ())]
    assert sorted(lines) == sorted(str(number) for number in range(streams.MOST_PODS))
    assert said[0]["state"] == f"Reading the first {streams.MOST_PODS} pods."


async def test_a_message_of_wide_lines_is_small_however_slowly_somebody_reads(
    api: FakeApi, viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in memory three times for each of all streams: as lines, as text and as what waits for the socket."""
    sizes: list[int] = []
    send = streams._send

    async def send_slowly(response: web.StreamResponse, message: Mapping[str, Any] | None) -> bool:
        await asyncio.sleep(0.05)
        sizes.append(len(json.dumps(message)))
        return await send(response, message)

    monkeypatch.setattr(streams, "_send", send_slowly)
    api.pods.append(pod("digits", 0))
    api.logs = {"digits-worker-0": [f"{number} {'é' * 5000}" for number in range(300)]}
    async with viewer.listen("/jobs/default/digits/logs") as stream:
        count = 0
        while count < 300:
            count += len((await stream.next()).get("lines", ()))
    assert max(sizes) < 200_000


async def test_all_streams_together_read_the_logs_of_few_pods(
    api: FakeApi, shown: tuple[Dashboard, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the API server has sent, and nobody has read, is in memory for each of them."""
    monkeypatch.setattr(streams, "MOST_PODS_IN_ALL", 12)
    api.pods += [pod("digits", number) for number in range(40)]
    api.logs = {f"digits-worker-{number}": [f"line {number}"] for number in range(40)}
    api.put(job(replicas=40))
    async with asyncio.timeout(PATIENCE):
        while (found := shown[0].board.find("default", "digits")) is None or found.status.replicas < 40:
            await shown[0].board.wait(shown[0].board.version, 1)
    base, said = shown[1].partition("/?")[0], []
    async with visiting() as session, contextlib.AsyncExitStack() as held:
        await session.get(shown[1])
        await session.get(base + "/")
        for _ in range(4):
            path = f"{base}/jobs/default/digits/logs"
            stream = Stream(await held.enter_async_context(session.get(path)))
            said.append((await stream.next())["state"])
    assert said == [f"Following the first {number} pods." for number in (6, 3, 1, 1)]


async def test_a_viewer_of_few_pods_leaves_the_others_to_more_viewers(
    shown: tuple[Dashboard, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_PODS_IN_ALL", 80)
    base, said = shown[1].partition("/?")[0], []
    async with visiting() as session, contextlib.AsyncExitStack() as held:
        await session.get(shown[1])
        await session.get(base + "/")
        for _ in range(8):
            stream = Stream(await held.enter_async_context(session.get(f"{base}/jobs/default/digits/logs")))
            said.append((await stream.next())["state"])
    assert said == ["Following."] * 8, "all of its pods"


async def test_one_viewer_leaves_places_to_others(shown: tuple[Dashboard, str]) -> None:
    """In a cluster all of them come through the proxy, which appends the address of each."""
    base = shown[1].partition("/?")[0]
    one, other = {"X-Forwarded-For": "8.8.8.8, 10.0.0.1"}, {"X-Forwarded-For": "10.0.0.2"}
    async with visiting() as session, contextlib.AsyncExitStack() as held:
        await session.get(shown[1])
        for _ in range(16):
            answer = await held.enter_async_context(session.get(f"{base}/events", headers=one))
            assert answer.status == 200
        async with session.get(f"{base}/events", headers=one) as refused:
            assert refused.status == 503 and "Close some" in await refused.text()
        async with session.get(f"{base}/events", headers=other) as answer:
            assert answer.status == 200


class SlowApi(FakeApi):
    """Its lists of pods and events wait until they may be answered, and it counts how many do at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = self.most = 0
        self.may_answer, self.changed = asyncio.Event(), asyncio.Condition()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith(("/pods", "/events")):
            async with self.changed:
                self.waiting += 1
                self.most = max(self.most, self.waiting)
                self.changed.notify_all()
            await self.may_answer.wait()
            self.waiting -= 1
        return await super().answer(request)


async def test_pages_that_are_loaded_at_once_read_the_cluster_in_turns(tmp_path: Path) -> None:
    """Each list holds megabytes, as many as there are events of the namespace."""
    api = SlowApi()
    api.put(job())
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(kubeconfig=await stack.enter_async_context(served(api, tmp_path)))
        )
        address = await stack.enter_async_context(Dashboard(client, all_namespaces=True).serve("127.0.0.1", 0))
        base, session = address.partition("/?")[0], await stack.enter_async_context(visiting())
        await session.get(address)

        async def load(who: str) -> int:
            async with session.get(f"{base}/jobs/default/digits", headers={"X-Forwarded-For": who}) as answer:
                return answer.status

        greedy = [asyncio.create_task(load("10.0.0.1")) for _ in range(40)]
        async with asyncio.timeout(PATIENCE):
            refused = [await done for done in itertools.islice(asyncio.as_completed(greedy), 24)]
            other = asyncio.create_task(load("10.0.0.2"))
            async with api.changed:
                await api.changed.wait_for(lambda: api.waiting >= 6)
            api.may_answer.set()
            assert refused == [503] * 24 and await other == 200
            assert sorted(await asyncio.gather(*greedy)) == [200] * 16 + [503] * 24
    assert api.most == 6, "two of one viewer, of pods and of events, and one of the other"
