"""One trace a job: what is in it, and that neither the operator nor a job waits for whoever collects it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.trace.v1 import trace_pb2

from controller.builders import NOW, make_job, make_world
from elasticjob_operator import api, turn
from elasticjob_operator.history import spans
from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan.reporting import Event
from elasticjob_operator.plan.values import Plan
from elasticjob_operator.run import otlp
from elasticjob_operator.run.otlp import Exporter
from elasticjob_operator.run.tracing import MOST_IN_ALL, MOST_NOTES, Tracer
from elasticjob_operator.times import format_time
from otlp_messages import read_request

UID = "7c0e3ec4-5d27-4be6-9a37-3c7a9f2c1e11"
TRACE = UID.replace("-", "")
HEADERS = {"authorization": "Bearer a b"}


class Collector:
    """Takes spans as a collector would, or refuses them."""

    def __init__(self) -> None:
        self.answers: list[int] = []  # to the next requests; then 200
        self.requests = 0
        self.spans: list[trace_pb2.Span] = []
        self.headers: dict[str, str] = {}
        self.has_all = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        assert request.path == "/v1/traces"
        assert request.content_type == "application/json"
        self.requests += 1
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        status = self.answers.pop(0) if self.answers else 200
        if status == 200:
            found = read_request(await request.read())
            assert attributes_of(found.resource) == {"service.name": "elasticjob"}
            self.spans += found.scope_spans[0].spans
        if len(self.spans) >= otlp.MOST_WAITING - otlp._AT_ONCE:
            self.has_all.set()
        return web.json_response({}, status=status)


@pytest.fixture
async def collector() -> AsyncIterator[tuple[Collector, str]]:
    made, app = Collector(), web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield made, otlp.find_url(f"http://127.0.0.1:{port}/")
    await runner.cleanup()


def make_tracer(url: str = "http://127.0.0.1:9/v1/traces", clock: float = NOW) -> Tracer:
    return Tracer(Exporter(url, HEADERS), lambda: clock)


def make_status(generation: int, *members: int, **fields: Any) -> api.Status:
    formed = {"formed_time": format_time(NOW - 100 + 10 * generation), "reason": "start" if generation == 1 else "lost"}
    world = make_world(generation, members or (0,), **formed)
    if not members:  # a suspended job
        world = revise(world, world_size=0, members=[], store=None)
    return api.Status(phase=api.Phase.RUNNING, rendezvous=world, **fields)


def make_traced_job(status: api.Status) -> Job:
    return replace(make_job(status=status), uid=UID, created=NOW - 200)


def attributes_of(found: Any) -> dict[str, Any]:
    def read(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return [read(v) for v in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {a.key: read(a.value) for a in found.attributes}


async def collect(tracer: Tracer, collector: Collector) -> list[trace_pb2.Span]:
    await tracer.exporter.finish()
    return collector.spans


async def test_a_job_is_a_trace_with_a_span_of_each_world(collector: tuple[Collector, str]) -> None:
    made, url = collector
    tracer = make_tracer(url)
    saved = [api.SavedStatus(tier="File", time=format_time(NOW - 85))]
    failure = api.FailureStatus(reason="Error", message="ValueError: no", generation=1, rank=1)
    first = make_status(1, 0, 1)
    trains = revise(
        first, goodput=api.GoodputStatus(training=True), progress=api.ProgressStatus(step=7, checkpoints=saved)
    )
    second = make_status(2, 0, last_failure=failure, progress=trains.progress)
    complete = api.Condition(type="Complete", status="True", reason="Succeeded", message="all members succeeded")
    ended = revise(second, phase=api.Phase.COMPLETE, conditions=[complete], completion_time=format_time(NOW - 5))
    passes: list[tuple[api.Status, tuple[Event, ...]]] = [
        (api.Status(), (Event("NoAgent", "its command starts no agent", warning=True),)),
        (first, (Event("WorldFormed", "generation 1 with 2 pods: the job starts"),)),
        (trains, ()),
        (second, (Event("WorkerFailed", "rank 1: no", warning=True), Event("WorldChanged", "to 1 pod"))),
        (ended, (Event("Completed", "all members succeeded"),)),
        (ended, ()),
    ]
    before = api.Status()
    for after, events in passes:
        tracer.observe(make_traced_job(before), Plan(after, events=events))
        before = after
    tracer.forget(("ml", "job"))

    one, two, job = await collect(tracer, made)
    assert {span.trace_id.hex() for span in (one, two, job)} == {TRACE}
    assert [span.span_id.hex() for span in (one, two, job)] == ["0" * 15 + "1", "0" * 15 + "2", spans.ROOT_SPAN]
    assert [span.parent_span_id.hex() for span in (one, two, job)] == [spans.ROOT_SPAN, spans.ROOT_SPAN, ""]
    assert [span.name for span in (one, two, job)] == ["world (start)", "world (lost)", "ElasticJob"]
    times = [(s.start_time_unix_nano / 1e9 - NOW, s.end_time_unix_nano / 1e9 - NOW) for s in (one, two, job)]
    assert times == [(-90, -80), (-80, -5), (-200, -5)]
    assert [(span.status.code, span.status.message) for span in (one, two, job)] == [
        (trace_pb2.Status.STATUS_CODE_ERROR, "Error: ValueError: no"),
        (trace_pb2.Status.STATUS_CODE_UNSET, ""),
        (trace_pb2.Status.STATUS_CODE_UNSET, ""),
    ]
    assert [event.name for event in one.events] == ["Saved", "Trains", "WorkerFailed", "Broke"]
    assert attributes_of(one.events[0]) == {"elasticjob.tier": "File", "elasticjob.saves": 1}
    assert attributes_of(one.events[2]) == {"message": "rank 1: no", "warning": True}
    assert [event.name for event in two.events] == ["Completed"]
    assert [event.name for event in job.events] == ["NoAgent"]
    said = attributes_of(one)
    assert (said["elasticjob.generation"], said["elasticjob.pods"], said["elasticjob.step"]) == (1, 2, 7)
    assert said["elasticjob.members"] == ["digits-worker-0 on node0", "digits-worker-1 on node1"]
    assert said["elasticjob.job.uid"] == attributes_of(job)["elasticjob.job.uid"] == UID
    assert attributes_of(job)["elasticjob.phase"] == "Complete"
    assert made.headers["authorization"] == HEADERS["authorization"]


ENDS = {
    "a new world": (make_status(1, 0), make_status(2, 0), ["world (start)"]),
    "suspended, and no pod is left": (make_status(1, 0), make_status(1), ["world (start)"]),
    "resumed": (make_status(1), make_status(2, 0), []),
    "nothing": (make_status(1, 0), make_status(1, 0), []),
    "it shrinks without a change of its number": (make_status(1, 0, 1), make_status(1, 0), []),
    "deleted": (make_status(1, 0), None, ["world (start)", "ElasticJob"]),
    "deleted before its first world": (api.Status(), None, ["ElasticJob"]),
    "deleted after its end": (
        make_status(1, 0, conditions=[api.Condition(type="Failed", status="True")]), None, [],
    ),
    "failed without a world": (
        api.Status(), api.Status(conditions=[api.Condition(type="Failed", status="True")]), ["ElasticJob"],
    ),
    "a cause of a newer operator": (
        revise(make_status(2, 0), rendezvous=make_world(2, (0,), reason="eclipse")), make_status(3, 0), ["world"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_what_ends_when(case: str) -> None:
    before, after, names = ENDS[case]
    assert [span.name for span in spans.list_ended(make_traced_job(before), before, after, NOW)] == names


async def test_another_operator_gives_the_same_ids_and_no_span_twice(collector: tuple[Collector, str]) -> None:
    made, url = collector
    for before, after in ((1, 2), (2, 3)):  # each in a life of its own
        tracer = make_tracer(url)
        job = make_traced_job(make_status(before, 0))
        tracer.observe(job, Plan(make_status(before, 0)))
        for _ in range(3):  # the API server does not take the status
            tracer.observe(job, Plan(make_status(after, 0)))
        await tracer.exporter.finish()
    assert [span.span_id.hex() for span in made.spans] == [spans.name_world(1), spans.name_world(2)]


async def test_a_job_with_a_name_of_one_before_is_another_trace(collector: tuple[Collector, str]) -> None:
    made, url = collector
    tracer = make_tracer(url)
    job = make_traced_job(make_status(1, 0))
    tracer.observe(job, Plan(job.status))
    tracer.observe(replace(job, uid="9" + UID[1:], status=api.Status()), Plan(api.Status()))
    tracer.forget(job.key)
    found = [(span.trace_id.hex()[0], span.name) for span in await collect(tracer, made)]
    assert found == [("7", "world (start)"), ("7", "ElasticJob"), ("9", "ElasticJob")]


async def test_the_notes_of_a_span_are_bounded(collector: tuple[Collector, str]) -> None:
    made, url = collector
    tracer = make_tracer(url)
    job = make_traced_job(make_status(1, 0))
    for number in range(MOST_NOTES + 10):
        tracer.observe(job, Plan(job.status, events=(Event("Straggler", f"{number} " + "x" * 5000),)))
    tracer.forget(job.key)
    world, _ = await collect(tracer, made)
    assert (len(world.events), world.dropped_events_count) == (MOST_NOTES, 10)
    assert max(len(str(attributes_of(event)["message"])) for event in world.events) == 256
    assert len(tracer._noted) == 0


async def test_a_collector_that_is_away_costs_nothing_and_is_told_once(
    collector: tuple[Collector, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(otlp, "find_pause", lambda *_, **__: 0.01)
    monkeypatch.setattr(otlp, "_GATHER_SECONDS", 0.01)
    made, url = collector
    made.answers = [503, 429, 502, 400]
    tracer = make_tracer(url)
    running = asyncio.create_task(tracer.exporter.run())
    for number in range(otlp.MOST_WAITING + 100):
        before = make_status(number + 1, 0)
        tracer.observe(make_traced_job(before), Plan(make_status(number + 2, 0)))
    async with asyncio.timeout(30):
        await made.has_all.wait()
    running.cancel()
    # The oldest hundred gave way to others, and a request of 64 was refused for good.
    assert made.spans[0].span_id.hex() == spans.name_world(100 + otlp._AT_ONCE + 1)
    assert caplog.text.count("does not take spans") == 1
    assert "takes spans again; 164 were dropped" in caplog.text


async def test_the_spans_of_a_namespace_neither_displace_those_of_another_nor_go_first(
    collector: tuple[Collector, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "_LAST_SECONDS", 60.0)  # a busy machine does not send them all in two
    made, url = collector
    tracer = make_tracer(url)
    quiet = replace(make_traced_job(make_status(1, 0)), namespace="quiet")
    tracer.observe(quiet, Plan(make_status(2, 0)))
    for number in range(otlp.MOST_WAITING + 100):
        before = make_status(number + 1, 0)
        tracer.observe(make_traced_job(before), Plan(make_status(number + 2, 0)))
    tracer.observe(replace(quiet, status=make_status(2, 0)), Plan(make_status(3, 0)))
    found = [attributes_of(one)["k8s.namespace.name"] for one in await collect(tracer, made)]
    assert found[:4].count("quiet") == 2
    assert len(found) == otlp.MOST_WAITING


async def test_a_namespace_does_not_take_the_room_of_the_events_of_others(collector: tuple[Collector, str]) -> None:
    made, url = collector
    tracer = make_tracer(url)
    status = make_status(1, 0)
    events = tuple(Event("Noise", str(number)) for number in range(MOST_NOTES))
    for number in range(MOST_IN_ALL // MOST_NOTES + 1):
        tracer.observe(replace(make_traced_job(status), name=f"noisy-{number}"), Plan(status, events=events))
    quiet = replace(make_traced_job(status), namespace="quiet")
    tracer.observe(quiet, Plan(status, events=(Event("Told", "x"),)))
    tracer.observe(quiet, Plan(make_status(2, 0)))
    (world,) = await collect(tracer, made)
    assert [event.name for event in world.events] == ["Told"]


async def test_spans_with_much_in_them_are_not_encoded_in_one_stretch(
    collector: tuple[Collector, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stretch of the event loop has what is encoded in one of its iterations, where each may take no time."""
    made, url = collector
    stretches: Counter[int] = Counter()
    iteration = 0

    async def count_iterations() -> None:
        nonlocal iteration
        while True:
            iteration += 1
            await asyncio.sleep(0)

    def dumps(value: Any, **more: Any) -> str:
        text = json.dumps(value, **more)
        stretches[iteration] += len(text)
        return text

    monkeypatch.setattr(turn, "SECONDS", 0.0)
    monkeypatch.setattr(otlp, "json", SimpleNamespace(dumps=dumps, loads=json.loads))
    tracer = make_tracer(url)
    events = tuple(Event("Failed", "\N{SNOWMAN}" * 300) for _ in range(MOST_NOTES))
    status = make_status(1, 0)
    for number in range(otlp._AT_ONCE):
        job = replace(make_traced_job(status), name=f"digits-{number}")
        tracer.observe(job, Plan(status, events=events))
        tracer.observe(job, Plan(make_status(2, 0)))
    counting = asyncio.create_task(count_iterations())
    assert len(await collect(tracer, made)) == otlp._AT_ONCE
    counting.cancel()
    assert max(stretches.values()) < 512 * 1024 < sum(stretches.values())


PARTIAL = b'{"partialSuccess": {"rejectedSpans": "1", "errorMessage": "no such tenant"}}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ANSWERS = {
    "it refuses a span": (
        HEAD + b"Content-Length: %d\r\n\r\n" % len(PARTIAL) + PARTIAL, "1 of 1 spans are refused: no such tenant",
    ),
    "a number of no int64": (
        HEAD + b'Content-Length: 42\r\n\r\n{"partialSuccess":{"rejectedSpans":1e999}}', "",
    ),
    "no JSON": (HEAD + b"Content-Length: 3\r\n\r\n[[[", ""),
    "the end of its answer never comes": (HEAD + b"Content-Length: 9\r\n\r\n", ""),
    "its answer cannot be decompressed": (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
async def test_what_a_collector_has_taken_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    monkeypatch.setattr(otlp, "_ANSWER_SECONDS", 0.1, raising=False)
    answer, told = ANSWERS[case]
    requests = 0

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        writer.write(answer)
        await writer.drain()
        await reader.read()  # until the client closes it
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    tracer = make_tracer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/traces")
    tracer.observe(make_traced_job(make_status(1, 0)), Plan(make_status(2, 0)))
    async with asyncio.timeout(10):
        await tracer.exporter.finish()
    server.close()
    assert requests == 1
    assert "could not be sent" not in caplog.text
    assert ("does not take spans" in caplog.text) is bool(told)
    assert told in caplog.text


async def test_the_end_of_the_operator_waits_for_no_collector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "_LAST_SECONDS", 0.1)

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # and answer nothing
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    tracer = make_tracer(f"http://127.0.0.1:{port}/v1/traces")
    tracer.observe(make_traced_job(make_status(1, 0)), Plan(make_status(2, 0)))
    async with asyncio.timeout(10):
        await tracer.exporter.finish()
    server.close()
    assert "1 spans could not be sent" in caplog.text


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://otel:4318", "http://otel:4318/v1/traces"),
        ("https://gateway/otlp/", "https://gateway/otlp/v1/traces"),
        ("otel:4318", None),
        ("grpc://otel:4317", None),
        ("http://", None),
        ("http://otel?x=1", None),
    ],
)
def test_an_endpoint_is_a_base_url(endpoint: str, url: str | None) -> None:
    if url is not None:
        assert otlp.find_url(endpoint) == url
        return
    with pytest.raises(ValueError, match="must be the base URL of a collector"):
        otlp.find_url(endpoint)


def test_headers_are_those_of_the_variable() -> None:
    assert otlp.parse_headers(" authorization=Bearer%20a%20b, x-org = 7 ,") == {**HEADERS, "x-org": "7"}
    with pytest.raises(ValueError, match="must be name=value"):
        otlp.parse_headers("Bearer a b")


@pytest.mark.parametrize("text", ["authorization=Bearer%20a%0A", "a=%0D%0Ab: c", "a b=c", "ä=b", "=b"])
def test_headers_that_no_request_can_have_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be name=value"):
        otlp.parse_headers(text)
