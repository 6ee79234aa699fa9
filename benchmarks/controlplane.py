"""Pods for jobs: our operator compared with Kubernetes' own Job controller, on one API server, with the same objects.

The pods name a scheduler that does not exist, so only the controllers touch them. Measured times start with the user's
first request: until all pods exist, from deletion until all are gone, from the loss of a pod until it is replaced. The
writes over a job's lifetime are read from the API server's own counters, without those of the user.

The peer's pods have the same spec as our operator's pods, so both controllers move the same bytes. The Job controller
limits its own requests: to 20 per second by default (`--qps 20`), to 200 in the devcluster; `--qps 1000` removes the
limit in practice. Ours sends up to 32 requests concurrently and is limited by the API server.

`--shape 1x100 --repeats 9 --latency 9` alone takes about a minute: nine runs of one job of 8 and of 100 pods.
`--fleet 1000x10` adds the operator with 10,000 pods: its memory, its start, and its activity while idle.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks import harness, plots, scale
from benchmarks.processes import install_clean_up
from benchmarks.system import JOBS, WRITES, System
from elasticjob_devcluster import wait_until
from elasticjob_operator.apply import manifests
from elasticjob_operator.model import observe
from elasticjob_operator.plan.values import NewPod

BATCH = "/apis/batch/v1"
BOUND = 240.0
FLEET_BOUND = 1200.0
SHAPES = ((1, 100), (100, 5), (1000, 1), (1, 1000))
FLEET = (1000, 10)
QUICK_SHAPES = ((1, 50), (20, 2))
DEVCLUSTER_QPS = 200  # the devcluster's limit for its controllers
POD: dict[str, Any] = {
    "schedulerName": "nobody",
    "terminationGracePeriodSeconds": 0,
    "containers": [{"name": "worker", "image": "none", "command": ["torchrun", "train.py"]}],
}


@dataclass(frozen=True)
class Kind:
    """The kind of job that a user creates."""

    name: str
    root: str
    plural: str
    build: Callable[[str, int], dict[str, Any]]
    own_pods: str = "pods"


def build_elastic_job(name: str, pods: int) -> dict[str, Any]:
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"elasticPolicy": {"minReplicas": 1, "maxReplicas": pods}, "template": {"spec": POD}},
    }


def build_job(name: str, pods: int, *, indexed: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"parallelism": pods, "completions": pods, "backoffLimit": 1000}
    if indexed:
        spec["completionMode"] = "Indexed"
    template = build_template(name, pods)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {**spec, "template": template}}


def build_template(name: str, pods: int) -> dict[str, Any]:
    """The pod that our operator would create, as a template."""
    metadata = {"name": name, "namespace": "default", "uid": "11111111-2222-3333-4444-555555555555"}
    job = observe.observe_job({**build_elastic_job(name, pods), "metadata": metadata})
    assert job.spec is not None
    pod = manifests.build_pod(job, job.spec, NewPod(0), manifests.Settings(hub_url="ws://127.0.0.1:8443"))
    del pod["spec"]["hostname"]  # it differs by pod, so it cannot be in a template
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if "index" not in key}
    return {"metadata": {"labels": labels, "annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}


def find_kinds(version: str) -> tuple[Kind, Kind]:
    """Ours and the peer. Indexed Jobs exist since Kubernetes 1.22."""
    minor = int(version.split(".")[1].rstrip("+")) if "." in version else 0
    indexed = minor >= 22
    peer = Kind(
        f"Job controller {version}" + ("" if indexed else ", not indexed"),
        BATCH,
        "jobs",
        lambda name, pods: build_job(name, pods, indexed=indexed),
    )
    return Kind("ours", JOBS, "elasticjobs", build_elastic_job), peer


@dataclass
class Life:
    """One run of J jobs with P pods each."""

    created: float | None
    replaced: float | None
    deleted: float | None
    writes: Counter[tuple[str, str]]
    cpu: float
    memory: float

    def writes_per_job(self, jobs: int) -> float:
        return sum(self.writes.values()) / jobs


def wait_for(condition: Callable[[], bool], began: float, bound: float = BOUND) -> float | None:
    try:
        wait_until(condition, bound, "", poll=0.01)
    except TimeoutError:
        return None
    return time.time() - began


def in_parallel(calls: Sequence[Callable[[], object]]) -> None:
    """Eight calls at a time, so that the user is not the bottleneck."""
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()


def only_writes(counts: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """The controller's creations and updates. Deletions are excluded: one for each object, whoever sends it."""
    others: tuple[str, ...] = (
        "leases",
        "events",
        "serviceaccounts",
        "tokenreviews",
        "namespaces",
        "secrets",
        "endpoints",
    )
    others += ("poddisruptionbudgets/status", "configmaps")  # written by the cluster's own controllers
    return Counter(
        {
            (verb, resource): count
            for (verb, resource), count in counts.items()
            if verb in WRITES and verb != "DELETE" and not resource.startswith(others) and count > 0
        }
    )


def live(system: System, kind: Kind, jobs: int, pods: int) -> Life:
    """Create jobs, lose a pod, delete the jobs."""
    kube, namespace = system.cluster.kube, system.make_namespace()
    process = system.operator_process() if kind.root == JOBS else system.controller_manager()
    path = f"{kind.root}/namespaces/{namespace}/{kind.plural}"
    before, cpu = system.requests(), sum(process.cpu_times()[:2])
    began = time.time()
    names = [f"job-{number}" for number in range(jobs)]
    in_parallel([lambda name=name: kube.request("POST", path, kind.build(name, pods)) for name in names])  # type: ignore[misc]
    total = jobs * pods
    created = wait_for(lambda: system.count_pods(namespace) >= total, began)
    replaced = replace(system, namespace, total) if created is not None else None
    memory = process.memory_info().rss / 2**20
    began = time.time()
    policy = {"propagationPolicy": "Background"}
    in_parallel([lambda name=name: kube.request("DELETE", f"{path}/{name}", policy) for name in names])  # type: ignore[misc]
    deleted = wait_for(lambda: system.count_pods(namespace) == 0, began)
    used = sum(process.cpu_times()[:2]) - cpu
    writes = only_writes(system.requests() - before)
    ours_to_ask = Counter({("POST", kind.plural): jobs, ("POST", "pods"): 1})  # one pod's replacement
    return Life(created, replaced, deleted, writes - ours_to_ask, used, memory)


def warm_up(system: System, *kinds: Kind) -> None:
    """Create and delete a job of each kind first: the garbage collector takes half a minute to discover a new kind."""
    for kind in kinds:
        live(system, kind, 1, 1)


def replace(system: System, namespace: str, total: int) -> float | None:
    """Delete one pod and wait until another one replaces it."""
    kube = system.cluster.kube
    victim = kube.request("GET", f"/api/v1/namespaces/{namespace}/pods?limit=1")["items"][0]["metadata"]
    began = time.time()
    kube.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{victim['name']}", {"gracePeriodSeconds": 0})

    def is_back() -> bool:
        pod = kube.get(f"/api/v1/namespaces/{namespace}/pods/{victim['name']}")
        gone = pod is None or pod["metadata"]["uid"] != victim["uid"]
        return gone and system.count_pods(namespace) >= total

    return wait_for(is_back, began, 60.0)


def compare(shape: tuple[int, int], ours: Sequence[Life], theirs: Sequence[Life], peer: str) -> list[harness.Result]:
    jobs, pods = shape
    label = f"{jobs} x {pods}"
    total = jobs * pods

    def rate(lives: Sequence[Life]) -> list[float | None]:
        return [None if life.created is None else total / life.created for life in lives]

    def add(case: str, read: Callable[[Life], float | None]) -> harness.Result:
        return harness.Result("controlplane", f"{label}: {case}", [*map(read, ours)], peer, [*map(read, theirs)])

    return [
        add("create to all pods exist", lambda life: life.created),
        add("one pod lost to replaced", lambda life: life.replaced),
        add("delete to all pods gone", lambda life: life.deleted),
        add("controller CPU", lambda life: life.cpu),
        harness.Result("controlplane", f"{label}: pods created a second", rate(ours), peer, rate(theirs), "rate"),
        harness.Result(
            "controlplane",
            f"{label}: writes in a job's life (count)",
            [life.writes_per_job(jobs) for life in ours],
            peer,
            [life.writes_per_job(jobs) for life in theirs],
            "rate",
        ),
        harness.Result(
            "controlplane",
            f"{label}: controller memory (MiB)",
            [life.memory for life in ours],
            peer,
            [life.memory for life in theirs],
            "rate",
        ),
    ]


def measure_small(system: System, kinds: Sequence[Kind], options: harness.Options) -> list[list[float | None]]:
    """The latency of small jobs, one after the other, each kind in turn."""
    kube, namespaces = system.cluster.kube, [system.make_namespace() for _ in kinds]
    found: list[list[float | None]] = [[] for _ in kinds]
    for number in range(options.extra.latency or (5 if options.quick else 20)):
        for kind, namespace, seconds in zip(kinds, namespaces, found, strict=True):
            path = f"{kind.root}/namespaces/{namespace}/{kind.plural}"
            body = kind.build(f"small-{number}", scale.LATENCY_PODS)
            seconds.append(scale.measure_latency(system, namespace, lambda: kube.request("POST", path, body)))  # noqa: B023
            if kind.root == JOBS:
                scale.settle(system, BOUND)  # what the operator does afterwards is not in the peer's time
    return found


def measure_fleet(system: System, kind: Kind, shape: tuple[int, int]) -> scale.Fleet:
    """Our operator with many idle pods."""
    kube, namespace = system.cluster.kube, system.make_namespace()
    path = f"{kind.root}/namespaces/{namespace}/{kind.plural}"

    def create_all(jobs: int, pods: int) -> None:
        names = [f"job-{number}" for number in range(jobs)]
        in_parallel([lambda name=name: kube.request("POST", path, kind.build(name, pods)) for name in names])  # type: ignore[misc]

    return scale.measure_fleet(system, namespace, create_all, shape, FLEET_BOUND)


def parse_shape(text: str) -> tuple[int, int]:
    """`100x5`: a hundred jobs of five pods."""
    jobs, _, pods = text.partition("x")
    return int(jobs), int(pods)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--qps",
        type=int,
        default=0,
        help="requests a second that the Job controller may make: 20 is Kubernetes' default, 1000 as good as no limit"
        f" (default: the devcluster's {DEVCLUSTER_QPS})",
    )
    shapes = " ".join(f"{jobs}x{pods}" for jobs, pods in SHAPES)
    parser.add_argument(
        "--shape", action="append", type=parse_shape, help=f"JOBSxPODS, may be repeated (default: {shapes})"
    )
    parser.add_argument(
        "--fleet",
        type=parse_shape,
        nargs="?",
        const=FLEET,
        help="measure the operator's memory and start among so many pods, JOBSxPODS (alone: 1000x10; after the shapes)",
    )
    parser.add_argument(
        "--latency", type=int, help="small jobs made one by one for the latency (default: 20; quick: 5)"
    )


def main(argv: Sequence[str] | None = None) -> None:
    install_clean_up()
    options = harness.parse_options(
        "controlplane", __doc__ or "", argv, budgets=(40, 600), repeats=(1, 3), add_arguments=add_arguments
    )
    shapes: tuple[tuple[int, int], ...] = QUICK_SHAPES if options.quick else SHAPES
    shapes = tuple(options.extra.shape or shapes)
    qps = options.extra.qps
    report, bars = harness.Report("controlplane", options.out), {}
    # The last occurrence of a flag wins.
    flags = (f"--kube-api-qps={qps}", f"--kube-api-burst={qps * 3 // 2}") if qps else ()
    with System(options.out / "controlplane", flags=flags) as system:
        ours, peer = find_kinds(system.cluster.version.removeprefix("v").removeprefix("Kubernetes v"))
        name = f"{peer.name}, {qps or DEVCLUSTER_QPS} requests/s allowed"
        warm_up(system, ours, peer)
        small = measure_small(system, (ours, peer), options)
        report.add(harness.Result("controlplane", "8 pods: apply to all pods exist", small[0], name, small[1]))
        for shape in shapes:
            lives: dict[str, list[Life]] = {"ours": [], "peer": []}
            for _ in range(options.repeats):
                for who, kind in (("ours", ours), ("peer", peer)):
                    if options.has_time() or not lives["peer"]:
                        lives[who].append(live(system, kind, *shape))
                        harness.say(f"{shape} {kind.name}: {lives[who][-1]}")
            found = compare(shape, lives["ours"], lives["peer"], name)
            report.add_all(found)
            bars[f"{shape[0]} x {shape[1]}"] = {
                who: min(life.created for life in lives[key] if life.created)
                for key, who in (("ours", "ours"), ("peer", name))
                if any(life.created for life in lives[key])
            }
        scale.settle(system, BOUND)
        seconds = 3.0 if options.quick else scale.IDLE_SECONDS
        idle = [float(sum(scale.measure_idle(system, seconds).values()))]
        case = f"idle: operator requests in {seconds:.0f} s but watches (count)"
        report.add(harness.Result("controlplane", case, idle, "none", [], "rate"))
        if options.extra.fleet:
            report.add_all(measure_fleet(system, ours, options.extra.fleet).lines())
    plots.draw_bars(options.out / "controlplane.png", bars, "seconds until all pods exist (best run)")


if __name__ == "__main__":
    main()
