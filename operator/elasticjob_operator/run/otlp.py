"""Sends spans to a collector of OpenTelemetry: OTLP over HTTP, as JSON.

Nothing waits for a collector. Spans wait in a bounded queue, whose oldest ones are dropped; one that is away or refuses
them is told of once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import urllib.parse
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import aiohttp

from elasticjob_operator import __version__, numerals
from elasticjob_operator.backoff import find_pause, spread
from elasticjob_operator.history.spans import Note, Span, Value
from elasticjob_operator.text import clean

logger = logging.getLogger(__name__)

MOST_WAITING: Final = 2048  # spans
_AT_ONCE: Final = 64  # spans in a request; each has less than 64 KiB
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


def encode(spans: Iterable[Span]) -> dict[str, Any]:
    """An ExportTraceServiceRequest in the JSON of OTLP."""
    scope = {"name": "elasticjob_operator", "version": __version__}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _encode_all({"service.name": "elasticjob"})},
                "scopeSpans": [{"scope": scope, "spans": [_encode_span(span) for span in spans]}],
            }
        ]
    }


def _encode_span(span: Span) -> dict[str, Any]:
    return {
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


class Exporter:
    """Sends spans while `run` runs, and in the end what `finish` still can."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = {**headers, "Content-Type": "application/json"}
        self._waiting: deque[Span] = deque(maxlen=MOST_WAITING)
        self._arrived = asyncio.Event()
        self._dropped = 0
        self._is_away = False  # which has been told

    def put(self, spans: Sequence[Span]) -> None:
        self._dropped += max(0, len(self._waiting) + len(spans) - MOST_WAITING)
        self._waiting.extend(spans)
        if spans:
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
                while self._waiting and await self._send(session):
                    pass
        except TimeoutError:
            pass
        if self._waiting:
            logger.warning("%d spans could not be sent to %s", len(self._waiting), self._url)

    async def _send(self, session: aiohttp.ClientSession) -> bool:
        """Send some of the spans; False if they wait for the next try."""
        spans = [self._waiting[at] for at in range(min(_AT_ONCE, len(self._waiting)))]
        try:
            timeout = aiohttp.ClientTimeout(total=_PATIENCE)
            body = json.dumps(encode(spans)).encode()
            async with session.post(self._url, data=body, timeout=timeout, allow_redirects=False) as response:
                status, said = response.status, await _read_answer(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._tell_away(f"{type(error).__name__}: {error}")
            return False
        if status in _LATER:
            self._tell_away(f"HTTP {status}: {said[:_MOST_SAID]}")
            return False
        for span in spans:  # if the queue was full meanwhile, some are gone already
            if self._waiting and self._waiting[0] is span:
                self._waiting.popleft()
        refused, why = find_refused(said)
        if not 200 <= status < 300:
            self._dropped += len(spans)
            self._tell_away(f"HTTP {status}: {said[:_MOST_SAID]}; these spans are dropped")
        elif refused > 0:
            self._dropped += min(refused, len(spans))
            self._tell_away(f"{refused} of {len(spans)} spans are refused: {why[:_MOST_SAID]}")
        else:
            if self._is_away:
                logger.info("the collector of traces takes spans again; %d were dropped", self._dropped)
            self._is_away, self._dropped = False, 0
        if not self._waiting:
            self._arrived.clear()
        return True

    def _tell_away(self, why: str) -> None:
        if not self._is_away:
            logger.warning("%s does not take spans: %s; told once", self._url, clean(why))
            self._is_away = True
