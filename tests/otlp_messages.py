"""What a collector of OpenTelemetry would read."""

from __future__ import annotations

import base64
import json

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans


def read_request(body: bytes) -> ResourceSpans:
    """An ExportTraceServiceRequest in JSON. Raises ParseError for an unknown field, or one of another type.

    Ids are hexadecimal in the JSON of OTLP, and base64 in that of protobuf.
    """
    raw = json.loads(body)
    for span in raw["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in ("traceId", "spanId", "parentSpanId"):
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    (found,) = json_format.ParseDict(raw, ExportTraceServiceRequest()).resource_spans
    assert isinstance(found, ResourceSpans)
    return found
