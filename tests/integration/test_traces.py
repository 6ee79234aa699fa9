"""A collector gets one trace of each job, and scripts know the span of their world."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from operator_fixture import ROOT, Jobs, OperatorProcess, wait_for
from otlp_messages import read_request

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PROGRAM = str(ROOT / "tests/integration/programs/traced.py")
JOB = "8000000000000000"


class Collector:
    def __init__(self) -> None:
        self.spans: dict[str, list[Any]] = {}  # by trace

        take = self.take

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, body: bytes) -> None:
        for span in read_request(body).scope_spans[0].spans:
            self.spans.setdefault(span.trace_id.hex(), []).append(span)

    def named(self, trace: str) -> list[str]:
        return [span.name for span in self.spans.get(trace, [])]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def spec_of(out: Path, *arguments: str, **changes: Any) -> dict[str, Any]:
    out.mkdir()
    command = ["torchrun", PROGRAM, str(out), *arguments]
    return {
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2, "gracefulShutdownTimeoutSeconds": 2},
        "template": {"spec": {"containers": [{"name": "trainer", "image": "a/b:1", "command": command}]}},
        **changes,
    }


def contexts(out: Path) -> dict[int, str]:
    """What the workers of each generation had in TRACEPARENT."""
    lines = (out / "contexts").read_text().splitlines() if (out / "contexts").exists() else []
    return {int(line.split()[0]): line.split()[1] for line in lines}


def test_a_trace_of_a_job_outlives_workers_pods_and_operator(
    cluster: Cluster,
    namespace: str,
    operator_factory: Callable[..., OperatorProcess],
    collector: Collector,
    tmp_path: Path,
) -> None:
    operator = operator_factory(["--namespace", namespace, "--stable-seconds", "1", "--otlp-endpoint", collector.url])
    jobs = Jobs(cluster, namespace)
    restarts, session = tmp_path / "restarts", tmp_path / "session"
    trace = jobs.create("restarts", spec_of(restarts, replicas=2))["metadata"]["uid"].replace("-", "")
    other = jobs.create("session", spec_of(session, "session", replicas=1))["metadata"]["uid"].replace("-", "")
    first = jobs.await_world("restarts", 2)["rendezvous"]
    jobs.await_world("session", 1)
    wait_for(lambda: contexts(restarts) and contexts(session), "both scripts run")
    cluster.kill_pod(namespace, first["members"][0]["pod"], signal.SIGKILL)
    jobs.scale("session", 2)
    second = jobs.await_world("restarts", 2, above=first["generation"])["rendezvous"]["generation"]
    grown = jobs.await_world("session", 2)["rendezvous"]["generation"]
    wait_for(lambda: second in contexts(restarts) and grown in contexts(session), "both scripts run in the next world")
    for out, uid in ((restarts, trace), (session, other)):
        assert contexts(out) == {number: f"00-{uid}-{number:016x}-01" for number in contexts(out)}

    wait_for(lambda: collector.spans.get(trace) and collector.spans.get(other), "the spans of the first worlds")
    operator.kill()  # what it has noted of the worlds of now is gone, and nothing else
    operator.start()
    (restarts / "stop").touch()
    jobs.await_condition("restarts", "Complete")
    wait_for(lambda: "ElasticJob" in collector.named(trace), "the span of the job")
    jobs.delete("session")
    wait_for(lambda: "ElasticJob" in collector.named(other), "the span of the deleted job")

    for uid, last in ((trace, second), (other, grown)):
        spans = {span.span_id.hex(): span for span in collector.spans[uid]}
        assert len(spans) == len(collector.spans[uid]), "a span was sent twice"
        job = spans.pop(JOB)
        assert sorted(spans) == [f"{number:016x}" for number in range(1, last + 1)]
        assert all(span.parent_span_id.hex() == JOB for span in spans.values())
        assert all(job.start_time_unix_nano <= span.start_time_unix_nano for span in spans.values())
        assert max(span.end_time_unix_nano for span in spans.values()) <= job.end_time_unix_nano
    lost = next(span for span in collector.spans[trace] if span.span_id.hex() == f"{first['generation']:016x}")
    assert "MemberLost" in [event.name for event in lost.events]


def test_without_a_collector_workers_have_no_context_but_their_own(jobs: Jobs, tmp_path: Path) -> None:
    theirs = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    spec = spec_of(tmp_path / "theirs", replicas=1)
    spec["template"]["spec"]["containers"][0]["env"] = [{"name": "TRACEPARENT", "value": theirs}]
    jobs.create("theirs", spec)
    jobs.create("none", spec_of(tmp_path / "none", replicas=1))
    wait_for(lambda: contexts(tmp_path / "theirs") and contexts(tmp_path / "none"), "both scripts run")
    assert contexts(tmp_path / "theirs") == {1: theirs}
    assert contexts(tmp_path / "none") == {1: "None"}
