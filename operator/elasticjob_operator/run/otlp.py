"""Sends spans to a collector of OpenTelemetry: OTLP over HTTP, as JSON.

Nothing waits for a collector. Spans wait in a bounded queue, in which namespaces take turns, and which drops the oldest
ones of the namespace that has the most; one that is away or refuses them is told of once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import urllib.parse
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import aiohttp

from elasticjob_operator import __version__, numerals
from elasticjob_operator.backoff import find_pause, spread
from elasticjob_operator.history.spans import Note, Span, Value
from elasticjob_operator.text import clean
from elasticjob_operator.turn import pause

logger = logging.getLogger(__name__)

MOST_WAITING: Final = 2048  # spans
_AT_ONCE: Final = 64  # spans in a request ...
_MOST_BODY: Final = 512 * 1024  # ... and bytes after which it has no more of them; each has less than 160 KiB
_GATHER_SECONDS: Final = 0.2  # for others that end with the first one
_PATIENCE: Final = 10.0  # seconds for an answer
_ANSWER_SECONDS: Final = 1.0  # for the rest of it, after its status
_MOST_ANSWER: Final = 4096  # bytes
_MOST_SAID: Final = 256  # characters of it in the log
_LAST_SECONDS: Final = 2.0  # for what waits when the operator ends
_LATER: Final = frozenset((429, 502, 503, 504))  # the answers to which OTLP lets a client try again
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # the name of one
_SPAN_KIND_INTERNAL: Final = 1
_STATUS_ERROR: Final = 2


def find_url(endpoint: str) -> str:
    """Where the traces of this endpoint go. Raises ValueError for what is no http or https URL."""
    parts = urllib.parse.urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{endpoint!r} must be the base URL of a collector, such as http://otel-collector:4318")
    return endpoint.rstrip("/") + "/v1/traces"


def parse_headers(text: str) -> dict[str, str]:
    """Parse `name=value,...`, as OTEL_EXPORTER_OTLP_HEADERS has it. Raises ValueError if it is not that."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = part.partition("=")
        name, value = name.strip(), urllib.parse.unquote(value.strip())
        if not separator or not _HEADER.fullmatch(name) or not value.isprintable():
            raise ValueError(
                "must be name=value,name=value, with special characters in the values percent-encoded, and no newlines"
            )
        found[name] = value
    return found


def encode(spans: Iterable[bytes]) -> bytes:
    """An ExportTraceServiceRequest with these encoded spans in the JSON of OTLP."""
    scope = json.dumps({"name": "elasticjob_operator", "version": __version__})
    resource = json.dumps({"attributes": _encode_all({"service.name": "elasticjob"})})
    before = f'{{"resourceSpans": [{{"resource": {resource}, "scopeSpans": [{{"scope": {scope}, "spans": ['
    return before.encode() + b", ".join(spans) + b"]}]}]}"


def encode_span(span: Span) -> bytes:
    found = {
        "traceId": span.trace,
        "spanId": span.id,
        "parentSpanId": span.parent,
        "name": span.name,
        "kind": _SPAN_KIND_INTERNAL,
        "startTimeUnixNano": _encode_time(span.start),
        "endTimeUnixNano": _encode_time(span.end),
        "attributes": _encode_all(span.attributes),
        "events": [_encode_note(note) for note in span.notes],
        "droppedEventsCount": span.left_out,
        "status": {"code": _STATUS_ERROR, "message": span.error} if span.error else {},
    }
    return json.dumps(found).encode()


def _encode_note(note: Note) -> dict[str, Any]:
    return {"timeUnixNano": _encode_time(note.time), "name": note.name, "attributes": _encode_all(note.attributes)}


def _encode_time(seconds: float) -> str:
    return str(round(seconds * 1000) * 1_000_000)  # the times of a status have milliseconds


def _encode_all(attributes: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _encode_value(value)} for key, value in attributes.items()]


def _encode_value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [_encode_value(one) for one in value]}}


def find_refused(answer: str) -> tuple[int, str]:
    """How many spans a collector has refused that took the others (a partial success of OTLP), and why."""
    try:
        found = json.loads(answer)["partialSuccess"]
        return numerals.read_count(found.get("rejectedSpans")) or 0, str(found.get("errorMessage", ""))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return 0, ""


async def _read_answer(response: aiohttp.ClientResponse) -> str:
    """The beginning of an answer. Its status counts also if the rest does not come."""
    said = b""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            while len(said) < _MOST_ANSWER and (more := await response.content.read(_MOST_ANSWER)):
                said += more
    except (aiohttp.ClientError, TimeoutError, OSError):
        pass
    return said.decode(errors="replace")


class _Waiting:
    """Spans by namespace. These take turns; of too many spans, the oldest of the namespace with the most gives way."""

    def __init__(self) -> None:
        self._spans: dict[str, deque[Span]] = {}  # the namespace with the next turn is first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, namespace: str, span: Span, most: int) -> bool:
        """Add a span to at most so many; returns whether one gave way."""
        self._spans.setdefault(namespace, deque()).append(span)
        self._count += 1
        is_full = self._count > most
        if is_full:
            crowd = max(self._spans, key=lambda name: len(self._spans[name]))
            self._pop(crowd)
        return is_full

    def take(self) -> Span:
        namespace = next(iter(self._spans))
        span = self._pop(namespace)
        if namespace in self._spans:
            self._spans[namespace] = self._spans.pop(namespace)
        return span

    def _pop(self, namespace: str) -> Span:
        same = self._spans[namespace]
        self._count -= 1
        span = same.popleft()
        if not same:
            del self._spans[namespace]
        return span


class Exporter:
    """Sends spans while `run` runs, and in the end what `finish` still can."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = {**headers, "Content-Type": "application/json"}
        self._waiting = _Waiting()
        self._sending: list[bytes] = []  # spans of the present request, until it is answered
        self._arrived = asyncio.Event()
        self._dropped = 0
        self._is_away = False  # which has been told

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sending)

    def put(self, namespace: str, span: Span) -> None:
        self._dropped += self._waiting.put(namespace, span, MOST_WAITING - len(self._sending))
        self._arrived.set()

    async def run(self) -> None:
        failures = 0
        async with aiohttp.ClientSession(headers=self._headers) as session:
            while True:
                await self._arrived.wait()
                await asyncio.sleep(_GATHER_SECONDS if not failures else spread(find_pause(failures, first=1.0)))
                failures = 0 if await self._send(session) else failures + 1

    async def finish(self) -> None:
        """Send what waits, if the collector answers soon."""
        try:
            async with asyncio.timeout(_LAST_SECONDS), aiohttp.ClientSession(headers=self._headers) as session:
                while len(self) and await self._send(session):
                    pass
        except TimeoutError:
            pass
        if len(self):
            logger.warning("%d spans could not be sent to %s", len(self), self._url)

    async def _send(self, session: aiohttp.ClientSession) -> bool:
        """Send some of the spans; False if they wait for the next try."""
        await self._fill()
        try:
            timeout, body = aiohttp.ClientTimeout(total=_PATIENCE), encode(self._sending)
            async with session.post(self._url, data=body, timeout=timeout, allow_redirects=False) as response:
                status, said = response.status, await _read_answer(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._tell_away(f"{type(error).__name__}: {error}")
            return False
        if status in _LATER:
            self._tell_away(f"HTTP {status}: {said[:_MOST_SAID]}")
            return False
        sent, self._sending = len(self._sending), []
        refused, why = find_refused(said)
        if not 200 <= status < 300:
            self._dropped += sent
            self._tell_away(f"HTTP {status}: {said[:_MOST_SAID]}; these spans are dropped")
        elif refused > 0:
            self._dropped += min(refused, sent)
            self._tell_away(f"{refused} of {sent} spans are refused: {why[:_MOST_SAID]}")
        else:
            if self._is_away:
                logger.info("the collector of traces takes spans again; %d were dropped", self._dropped)
            self._is_away, self._dropped = False, 0
        if not len(self._waiting):
            self._arrived.clear()
        return True

    async def _fill(self) -> None:
        """Encode spans for a request, if the last one has been answered."""
        size = sum(map(len, self._sending))
        while len(self._waiting) and len(self._sending) < _AT_ONCE and size < _MOST_BODY:
            self._sending.append(encode_span(self._waiting.take()))
            size += len(self._sending[-1])
            await pause()

    def _tell_away(self, why: str) -> None:
        if not self._is_away:
            logger.warning("%s does not take spans: %s; told once", self._url, clean(why))
            self._is_away = True
