"""torch's own rendezvous backends under the operator: they start, and the job trains again after a loss."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from elasticjob_devcluster.controlplane import binaries
from elasticjob_devcluster.system.addresses import free_port
from integration.test_training import read_steps, torchrun_spec
from operator_fixture import Jobs, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def spec_of(out: Path, backend: str, port: int) -> dict[str, Any]:
    """Two pods. Pods that are processes have no DNS, so the endpoint is named."""
    spec = torchrun_spec(out, rendezvous={"backend": backend, "endpoint": f"127.0.0.1:{port}"})
    return {**spec, "elasticPolicy": {"minReplicas": 2, "maxReplicas": 2}}


def processes(out: Path) -> set[int]:
    return {int(step["pid"]) for step in read_steps(out)}


def await_training(out: Path, known: set[int] | None = None) -> set[int]:
    """All processes there have been, once two that are not in `known` train together."""
    old = known or set()

    def look() -> set[int] | None:
        new = {int(s["pid"]): int(s["rank"]) for s in read_steps(out) if s["world"] == 2 and s["pid"] not in old}
        return processes(out) if {0, 1} <= set(new.values()) else None

    return wait_for(look, f"two new processes train; {len(old)} are known", 150)


def lose(jobs: Jobs, cluster: Cluster, name: str, index: int) -> None:
    """Every process of the pod with this index dies at once."""
    member = jobs.status(name)["rendezvous"]["members"][
        index
    ]  # in a first world they are in the order of their indices
    cluster.kill_pod(jobs.namespace, member["pod"], signal.SIGKILL)


@pytest.mark.parametrize(
    ("backend", "index"),
    [
        pytest.param("c10d", 1, id="c10d-follower", marks=pytest.mark.long),
        pytest.param("c10d", 0, id="c10d-host", marks=pytest.mark.long),  # `make e2e` has it too
        pytest.param("static", 1, id="static-follower", marks=pytest.mark.long),
        pytest.param("static", 0, id="static-host"),
    ],
)
def test_a_job_recovers_from_a_loss(jobs: Jobs, cluster: Cluster, tmp_path: Path, backend: str, index: int) -> None:
    jobs.create("own", spec_of(tmp_path, backend, free_port()))
    known = await_training(tmp_path)
    jobs.await_world("own", 2)
    lose(jobs, cluster, "own", index)
    await_training(tmp_path, known)
    assert jobs.status("own")["phase"] != "Failed"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[int]:
    """The port of a server that still speaks the API v2, as the devcluster's own binary does when asked."""
    program = binaries.find_or_build(binaries.SERVERS) / "etcd"
    usage = subprocess.run([str(program), "--help"], check=False, capture_output=True, text=True, timeout=30)
    if "--enable-v2" not in usage.stdout + usage.stderr:
        pytest.skip("this etcd has no API v2: it was removed in 3.6")
    port = free_port()
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    argv = [str(program), "--enable-v2", f"--data-dir={tmp_path / 'etcd'}", "--log-level=error", "--logger=zap"]
    argv += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
    argv += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"]
    with subprocess.Popen(argv) as process:
        yield port
        process.kill()


@pytest.mark.skipif(importlib.util.find_spec("etcd") is None, reason="needs python-etcd, as torch's backend does")
def test_etcd_v2_recovers_from_a_loss(jobs: Jobs, cluster: Cluster, tmp_path: Path, etcd: int) -> None:
    jobs.create("own", spec_of(tmp_path / "out", "etcd-v2", etcd))
    known = await_training(tmp_path / "out")
    jobs.await_world("own", 2)
    lose(jobs, cluster, "own", 1)
    await_training(tmp_path / "out", known)
