"""Delays of an operator's event loop, by its own metrics, and those of the API server, by writes of our own."""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from chaos.replicas import Replica
from elasticjob_devcluster import Cluster, KubeError

SCRAPE_SECONDS = 1.0
BUCKET = re.compile(r'^elasticjob_event_loop_(lag|busy)_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
# Says once a second how late it woke up from short sleeps, and what CPU time the same short work took: so late and so
# slow the machine is, whatever the operators do.
PROBE = """
import json, time
text = json.dumps([{"name": str(i), "value": [i]} for i in range(30_000)])  # a megabyte, as objects may have
while True:
    worst, end = 0.0, time.monotonic() + 1
    while (now := time.monotonic()) < end:
        time.sleep(0.02)
        worst = max(worst, time.monotonic() - now - 0.02)
    began = time.thread_time()
    json.loads(text)
    print(f"{worst:.3f} {time.thread_time() - began:.6f}", flush=True)
"""
MOST = re.compile(r'^elasticjob_event_loop_max_seconds\{clock="(lag|busy)"\} (\S+)$', re.MULTILINE)
BEYOND = 100.0  # seconds: what is in no bucket

Buckets = Mapping[float, float]  # counts up to each bound
CLOCKS = ("lag", "busy")


def parse_buckets(text: str, clock: str) -> Buckets:
    return {min(float(bound), BEYOND): float(count) for name, bound, count in BUCKET.findall(text) if name == clock}


def find_longest(before: Buckets, after: Buckets) -> float:
    """The bound of the highest histogram bucket that grew between the two; 0 if none did."""
    longest, below = 0.0, 0.0
    for bound in sorted(after):
        new = after[bound] - before.get(bound, 0.0)
        if new > below:
            longest, below = bound, new
    return longest


def parse_most(text: str) -> dict[str, float]:
    """The longest delay since the process started, by clock."""
    return {clock: float(value) for clock, value in MOST.findall(text)}


def find_slowdown(seconds: Sequence[float]) -> float:
    """The ratio of the largest to the smallest CPU time for the same work: caches and cores are shared."""
    return max(seconds) / min(seconds) if seconds and min(seconds) > 0 else 1.0


def scrape(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode(errors="replace")
    finally:
        connection.close()


class LagWatch:
    """Polls the replicas; the last second of a process that ends in between is lost."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._last: dict[int, dict[str, Buckets]] = {}  # by process, by clock
        self.longest: dict[str, float] = {}  # late, by phase
        self.busiest: dict[str, float] = {}  # computing at a stretch, by phase

    @contextlib.contextmanager
    def watching(self, phase: str) -> Iterator[None]:
        """Measure this phase separately from what was before it."""
        self._look()
        self.longest[phase] = self.busiest[phase] = 0.0
        stopped = threading.Event()

        def work() -> None:
            while not stopped.wait(SCRAPE_SECONDS):
                found = self._look()
                self.longest[phase] = max(self.longest[phase], found["lag"])
                self.busiest[phase] = max(self.busiest[phase], found["busy"])

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        probe = subprocess.Popen([sys.executable, "-c", PROBE], stdout=subprocess.PIPE, text=True)
        try:
            yield
        finally:
            stopped.set()
            thread.join(30)
            probe.kill()
            said, _ = probe.communicate()
            lines = [line.split() for line in said.split("\n")[:-1]]
            self.longest["machine"] = max((float(late) for late, _ in lines), default=0.0)
            self.busiest["slowdown"] = find_slowdown([float(cpu) for _, cpu in lines])

    def _look(self) -> dict[str, float]:
        longest = dict.fromkeys(CLOCKS, 0.0)
        for replica in self._replicas:
            if replica.paused:  # so late it is because the suite stopped it
                self._last.pop(replica.pid, None)
                continue
            with contextlib.suppress(OSError, http.client.HTTPException):
                pid, text = replica.pid, scrape(replica.http_port)
                found = {clock: parse_buckets(text, clock) for clock in CLOCKS}
                if pid in self._last:  # its start is not counted: imports, and the first lists
                    most = parse_most(text)  # a bucket's bound may be far above what fell into it
                    new = {c: min(find_longest(self._last[pid][c], found[c]), most.get(c, BEYOND)) for c in CLOCKS}
                    longest = {clock: max(longest[clock], new[clock]) for clock in CLOCKS}
                self._last[pid] = found
        return longest


class ServerWatch:
    """Writes an object once a second, as a leader does, and records how long that takes: what anybody would wait."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._kube = cluster.kube
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self.delays: list[tuple[float, float]] = []  # (when it ended, seconds)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        stopped = threading.Event()
        self._kube.request("POST", self._path, {"metadata": {"name": "witness"}})

        def work() -> None:
            while not stopped.wait(SCRAPE_SECONDS):
                began = time.monotonic()
                with contextlib.suppress(KubeError, OSError):
                    body = {"data": {"at": str(began)}}
                    path = f"{self._path}/witness"
                    self._kube.request("PATCH", path, body, content_type="application/merge-patch+json")
                self.delays.append((time.time(), time.monotonic() - began))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(30)
