"""Where the time of an operator's start goes: its own phases, and what the API server needs for the same lists.

The operator logs when its phases ended. The server's share is measured with the lists that the operator asks for: a
client reads them one after the other and throws the bytes away, so what it waits for is the server.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks import harness
from benchmarks.system import JOBS, System
from elasticjob_operator.kube.listing import METADATA_LIST, PAGE, PLAIN
from elasticjob_operator.run.cluster import SELECTOR

# What an operator lists at its start, in Kubernetes 1.20: path, query and type.
LISTS: Final = (
    (f"{JOBS}/elasticjobs", "", PLAIN),
    ("/api/v1/pods", f"&labelSelector={SELECTOR}", PLAIN),
    ("/apis/networking.k8s.io/v1/networkpolicies", f"&labelSelector={SELECTOR}", METADATA_LIST),
    ("/apis/policy/v1beta1/poddisruptionbudgets", f"&labelSelector={SELECTOR}", METADATA_LIST),
)
MARK: Final = "since the start of the process: "
_PHASE = re.compile(r"([a-z][a-z ]*) ([\d.]+) s \(CPU ([\d.]+) s\)")
_TOKEN = re.compile(rb'"continue":"([^"]+)"')


@dataclass(frozen=True)
class Phase:
    """When a phase ended: seconds since the start of the process, and its CPU time until then."""

    seconds: float
    cpu: float


def read_phases(log: str) -> dict[str, Phase]:
    """The phases of one start by their names, in the order in which they ended."""
    lines = [line.partition(MARK)[2] for line in log.splitlines() if MARK in line]
    return {name: Phase(float(seconds), float(cpu)) for name, seconds, cpu in _PHASE.findall("\n".join(lines))}


@dataclass(frozen=True)
class ListCost:
    """One list, read by a client that does nothing with it."""

    path: str
    pages: int
    megabytes: float
    seconds: float
    server_cpu: float


def measure_lists(system: System) -> list[ListCost]:
    """The lists of a start, one after the other."""
    return [_measure_list(system, *one) for one in LISTS]


def _measure_list(system: System, path: str, query: str, accept: str) -> ListCost:
    cpu, began = system.server_cpu(), time.perf_counter()
    sizes = [
        len(page) for page in read_pages(lambda url: system.cluster.kube.raw("GET", url, accept=accept), path, query)
    ]
    seconds = time.perf_counter() - began
    return ListCost(path, len(sizes), sum(sizes) / 1e6, seconds, system.server_cpu() - cpu)


def read_pages(get: Callable[[str], bytes], path: str, query: str) -> Iterator[bytes]:
    """The pages of a list. The token of the next one is in the metadata, before the items or after them."""
    token = ""
    while True:
        page = get(f"{path}?limit={PAGE}{query}{token}")
        yield page
        found = _TOKEN.search(page, 0, 4096) or _TOKEN.search(page, max(0, len(page) - 4096))
        if found is None:
            return
        token = f"&continue={found[1].decode()}"


def describe(
    label: str, phases: Mapping[str, Phase], lists: Sequence[ListCost], server_cpu: float
) -> list[harness.Result]:
    """All of it as results. `server_cpu`: seconds of API server and etcd, until every job had a pass."""

    def line(case: str, value: float, kind: harness.Kind = "seconds") -> harness.Result:
        return harness.Result("controlplane", f"{label}: {case}", [value], "none", [], kind)

    found = []
    for name, phase in phases.items():
        found += [line(f"start until {name}", phase.seconds), line(f"start until {name}, CPU", phase.cpu)]
    found.append(line("start until every job, CPU of API server and etcd", server_cpu))
    for one in lists:
        name = f"list of {one.path.rpartition('/')[2]} without an operator"
        found.append(line(name, one.seconds))
        found.append(line(f"{name}, CPU of API server and etcd", one.server_cpu))
        found.append(line(f"{name} (MB in {one.pages} pages)", one.megabytes, "rate"))
    return found
