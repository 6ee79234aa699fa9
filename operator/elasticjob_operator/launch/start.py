"""`launch`: from a function or a script to a running job, the same on this machine and on a cluster."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from elasticjob_operator.api import names
from elasticjob_operator.client import Client, Job, build_manifest
from elasticjob_operator.client.errors import InvalidError
from elasticjob_operator.launch.attach import Shipment, attach, check_name, default_name
from elasticjob_operator.launch.bundle import with_packages
from elasticjob_operator.launch.local import (
    IMAGE,
    LocalCluster,
    count_cpus,
    limit_restarts,
    run_in,
    worker_environment,
)
from elasticjob_operator.launch.run import Run
from elasticjob_operator.launch.send import send
from elasticjob_operator.launch.target import find_target, run_apart

LOCAL: Final = "local"
CLUSTER: Final = "cluster"


def launch(
    target: Callable[..., Any] | str | Path,
    arguments: Mapping[str, Any] | Sequence[str] = (),
    *,
    workers: int | tuple[int, int] = 1,
    on: str = LOCAL,
    image: str | None = None,
    template: str | None = None,
    gpus: int = 0,
    env: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    code: str | Path | None = None,
    exclude: Sequence[str] = (),
    name: str | None = None,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
) -> Run:
    """Start a job, and return its handle at once.

    `target` is a function, whose `arguments` are keywords and JSON values, or a script, whose `arguments` are words of
    its command line. `workers` is a number of pods or (min, max). `on` is "local" (this machine, as processes; the
    cluster ends with this Python) or "cluster" (the current context, or `context`). `image` or `template`,
    the name of an ElasticJobTemplate, is required on a cluster. `gpus`: of each pod. `packages`: requirements for pip,
    as "numpy>=2". `code`: a folder that is sent too, without `exclude`.

    Raises ClientError or api.InvalidJobError, which name the argument or field and the remedy.
    """
    if os.environ.get(names.ENV_UID):
        raise InvalidError('launch: was called inside of a job: put the call under `if __name__ == "__main__":`')
    bounds = parse_workers(workers)
    if on not in (LOCAL, CLUSTER):
        raise InvalidError(f"on: must be {LOCAL!r} or {CLUSTER!r}, not {on!r}")
    if on == CLUSTER and not image and not template:
        raise InvalidError(
            "image: is required on a cluster: name an image with torch and the ElasticJob runtime, or a template"
        )
    if on == LOCAL and template:
        raise InvalidError('template: is for on="cluster": a local cluster has none')
    if on == LOCAL and gpus:
        raise InvalidError("gpus: on this machine pods are processes, which all see its GPUs: leave gpus out")
    if on == LOCAL and (context or kubeconfig):
        raise InvalidError('context, kubeconfig: are for on="cluster"')
    if not all(isinstance(text, str) for pair in (env or {}).items() for text in pair):
        raise InvalidError("env: must map names to strings: write {'EPOCHS': '3'}")
    if name is not None:
        check_name(name)
    source, words = find_target(target, arguments, code, exclude, in_place=on == LOCAL and not packages)
    bundle = None if source.bundle is None else with_packages(source.bundle, packages)
    if packages and bundle is None:
        raise InvalidError("packages: are installed for code that is sent: name a function or a script of this machine")
    here = worker_environment(count_cpus(), bounds[1], os.environ) if on == LOCAL else {}
    manifest = build_manifest(
        name or default_name(source.name, secrets.token_hex(2)),
        image or (IMAGE if on == LOCAL else None),
        [*source.command, *words],
        template=template,
        min_replicas=bounds[0],
        max_replicas=bounds[1],
        gpus=gpus,
        env={**here, **(env or {})},
    )
    if on == LOCAL:
        run_in(manifest, Path.cwd())
        limit_restarts(manifest, 0)
    shipment = Shipment(manifest) if bundle is None else attach(manifest, bundle)
    if on == LOCAL:
        cluster = _local_cluster()
        job = _send(shipment, cluster.kubeconfig, None, namespace or "default")
        return Run(job.name, job.namespace, cluster.kubeconfig, None, cluster)
    job = _send(shipment, kubeconfig, context, namespace)
    return Run(job.name, job.namespace, kubeconfig, context)


def parse_workers(workers: int | tuple[int, int], argument: str = "workers") -> tuple[int, int]:
    """The least and the greatest number of pods. Raises InvalidError, which names the argument."""
    low, high = (workers, workers) if isinstance(workers, int) else tuple(workers) if len(workers) == 2 else (0, 0)
    if not (isinstance(low, int) and isinstance(high, int)) or not 1 <= low <= high:
        raise InvalidError(f"{argument}: {workers!r}: must be a number of pods, or (min, max) with 1 ≤ min ≤ max")
    return low, high


def _send(shipment: Shipment, kubeconfig: str | None, context: str | None, namespace: str | None) -> Job:
    async def work() -> Job:
        async with Client(kubeconfig=kubeconfig, context=context, namespace=namespace) as client:
            return await send(client, shipment, namespace)

    return run_apart(work)


_lock = threading.Lock()
_running: list[LocalCluster] = []


def _local_cluster() -> LocalCluster:
    """The cluster of this process, started when it is needed first."""
    with _lock:
        if not _running:
            _running.append(LocalCluster.start())
            atexit.register(stop_local)
        _running[0].check()
        return _running[0]


def stop_local() -> None:
    """Stop the cluster of this process, with its jobs. It also ends with the process."""
    with _lock:
        while _running:
            _running.pop().stop()
