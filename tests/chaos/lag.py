"""How long an operator's event loop stood still, as its own metric has it: the upper end of the bucket it fell into."""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from chaos.replicas import Replica

SCRAPE_SECONDS = 1.0
BUCKET = re.compile(r'^elasticjob_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
# Says once a second how late it woke up from short sleeps: so late the machine is, whatever the operators do.
SLEEPER = """
import time
while True:
    worst, end = 0.0, time.monotonic() + 1
    while (now := time.monotonic()) < end:
        time.sleep(0.02)
        worst = max(worst, time.monotonic() - now - 0.02)
    print(f"{worst:.3f}", flush=True)
"""
BEYOND = 100.0  # seconds: what is in no bucket

Buckets = Mapping[float, float]  # counts up to each bound


def parse_buckets(text: str) -> Buckets:
    return {min(float(bound), BEYOND): float(count) for bound, count in BUCKET.findall(text)}


def find_longest(before: Buckets, after: Buckets) -> float:
    """The bound of the highest bucket that something fell into between the two; 0 where nothing did."""
    longest, below = 0.0, 0.0
    for bound in sorted(after):
        new = after[bound] - before.get(bound, 0.0)
        if new > below:
            longest, below = bound, new
    return longest


def scrape(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode(errors="replace")
    finally:
        connection.close()


class LagWatch:
    """Asks the replicas again and again; a process that ends in between takes its last second with it."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._last: dict[int, Buckets] = {}  # by process
        self.longest: dict[str, float] = {}

    @contextlib.contextmanager
    def watching(self, phase: str) -> Iterator[None]:
        """What is seen meanwhile counts for this phase, what was before it for none."""
        self._look()
        self.longest[phase] = 0.0
        stopped = threading.Event()

        def work() -> None:
            while not stopped.wait(SCRAPE_SECONDS):
                self.longest[phase] = max(self.longest[phase], self._look())

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        sleeper = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
        try:
            yield
        finally:
            stopped.set()
            thread.join(30)
            sleeper.kill()
            said, _ = sleeper.communicate()
            self.longest["machine"] = max((float(line) for line in said.split("\n")[:-1]), default=0.0)

    def _look(self) -> float:
        longest = 0.0
        for replica in self._replicas:
            if replica.paused:  # so late it is because the suite stopped it
                self._last.pop(replica.pid, None)
                continue
            with contextlib.suppress(OSError, http.client.HTTPException):
                pid, found = replica.pid, parse_buckets(scrape(replica.http_port))
                if pid in self._last:  # its start is not counted: imports, and the first lists
                    longest = max(longest, find_longest(self._last[pid], found))
                self._last[pid] = found
        return longest
