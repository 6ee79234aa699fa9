"""The cost of size: a small job's latency, and the operator with many pods: idle, and after a restart.

The pods name a scheduler that does not exist, so they never change, and no nodes are needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks import harness, start
from benchmarks.system import System
from elasticjob_devcluster import wait_until

REQUESTS = re.compile(r"^elasticjob_api_requests_total\{(?P<labels>[^}]*)\} (?P<count>\S+)$", re.MULTILINE)
PASSES = re.compile(r"^elasticjob_reconcile_seconds_count(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
LATENCY_PODS = 8
IDLE_SECONDS = 10.0
LISTS = 5  # the fastest counts


def measure_latency(system: System, namespace: str, create: Callable[[], object]) -> float | None:
    """Seconds from a user's request to all pods of a small job; None if they did not appear in a minute."""
    wanted = system.count_pods(namespace) + LATENCY_PODS
    began = time.time()
    create()
    try:
        wait_until(lambda: system.count_pods(namespace) >= wanted, 60.0, "", poll=0.002)
    except TimeoutError:
        return None
    return time.time() - began


@dataclass(frozen=True)
class Fleet:
    """The operator with `jobs` × `pods`."""

    jobs: int
    pods: int
    created: float  # seconds until all pods existed
    made_cpu: float  # the operator's CPU until then
    memory: float  # MiB, after it had created them
    memory_anew: float  # MiB of the new operator
    idle: Counter[str] = field(default_factory=Counter)  # the operator's requests while idle
    idle_cpu: float = 0.0  # seconds of CPU per second
    listed: float = 0.0  # seconds of `kubectl elasticjob list`
    start: tuple[harness.Result, ...] = ()  # where the time of the start went

    def lines(self) -> list[harness.Result]:
        label = f"{self.jobs} x {self.pods} at rest"

        def line(case: str, value: float, kind: harness.Kind = "seconds") -> harness.Result:
            return harness.Result("controlplane", f"{label}: {case}", [value], "none", [], kind)

        return [
            line("create to all pods exist", self.created),
            line("operator CPU until all pods exist", self.made_cpu),
            line("operator memory after making them (MiB)", self.memory, "rate"),
            line("operator memory after a start (MiB)", self.memory_anew, "rate"),
            line(f"operator requests in {IDLE_SECONDS:.0f} s but watches (count)", sum(self.idle.values()), "rate"),
            line("operator CPU per second", self.idle_cpu),
            line("kubectl elasticjob list", self.listed),
            *self.start,
        ]


def read_metrics(system: System) -> str:
    """The operator's metrics; "" if it does not respond yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{system.http_port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return ""


def count_passes(system: System) -> int:
    found = PASSES.search(read_metrics(system))
    return int(float(found[1])) if found else 0


def count_requests(system: System) -> Counter[str]:
    """The operator's own requests but watches, by verb and resource."""
    found = {match["labels"]: int(float(match["count"])) for match in REQUESTS.finditer(read_metrics(system))}
    return Counter({labels: count for labels, count in found.items() if 'verb="WATCH"' not in labels})


def measure_idle(system: System, seconds: float) -> Counter[str]:
    """The operator's requests to the API server while idle."""
    before = count_requests(system)
    time.sleep(seconds)
    return count_requests(system) - before


def _cpu(process: Any) -> float:
    return float(sum(process.cpu_times()[:2]))


def measure_fleet(
    system: System,
    namespace: str,
    create_all: Callable[[int, int], object],
    shape: tuple[int, int],
    bound: float,
) -> Fleet:
    """Create the pods, then restart the operator. Raises TimeoutError if a step takes longer than `bound` seconds."""
    jobs, pods = shape
    process = system.operator_process()
    began, cpu = time.time(), _cpu(process)
    create_all(jobs, pods)
    what = f"{jobs * pods} pods exist"
    wait_until(lambda: system.count_pods(namespace) >= jobs * pods, bound, what, poll=0.25)
    created, made_cpu = time.time() - began, _cpu(process) - cpu
    settle(system, bound)
    memory = process.memory_info().rss / 2**20

    system.kill_operator()
    lists = start.measure_lists(system)
    server, said = system.server_cpu(), len(system.read_log())
    system.start_operator()
    process = system.operator_process()
    # Not asked of the operator, which would have to answer meanwhile.
    wait_until(lambda: "every job" in start.read_phases(system.read_log()[said:]), bound, "every pass", poll=0.05)
    server, phases = system.server_cpu() - server, start.read_phases(system.read_log()[said:])
    settle(system, bound)
    cpu = _cpu(process)
    idle = measure_idle(system, IDLE_SECONDS)
    idle_cpu = (_cpu(process) - cpu) / IDLE_SECONDS
    memory_anew = process.memory_info().rss / 2**20
    listed = min(time_list(system, namespace) for _ in range(LISTS))
    found = start.describe(f"{jobs} x {pods}", phases, lists, server)
    return Fleet(jobs, pods, created, made_cpu, memory, memory_anew, idle, idle_cpu, listed, tuple(found))


def time_list(system: System, namespace: str) -> float:
    """Seconds from Enter until `kubectl elasticjob list` has shown all jobs."""
    where = ("--kubeconfig", str(system.cluster.kubeconfig), "-n", namespace)
    command = (sys.executable, "-m", "elasticjob_operator.cli", "list", *where)
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=60)
    return time.perf_counter() - began


def settle(system: System, bound: float) -> None:
    """Wait until the operator has had no pass for two seconds."""
    seen = [count_passes(system), time.time()]

    def is_still() -> bool:
        now = count_passes(system)
        if now != seen[0]:
            seen[:] = [now, time.time()]
        return time.time() - seen[1] > 2.0

    wait_until(is_still, bound, "the operator rests", poll=0.5)
