"""A cluster on this machine for one run: a real API server, the operator, and pods as processes.

It uses the devcluster, which is another distribution and optional: a message names what is missing. Everything ends
with the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from elasticjob_operator.api import crd, names
from elasticjob_operator.client.errors import ClientError

IMAGE: Final = "local"  # pods are processes of this machine, in the environment of this Python
NODE: Final = "this-machine"
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NEEDED: Final = {  # module → what to install for it
    "elasticjob_devcluster": "the devcluster (pip install ./devcluster)",
    "uvloop": "the operator's packages (pip install '.[operator]')",
    "kopf": "the operator's packages (pip install '.[operator]')",
    "elasticjob": "the runtime (pip install ./worker_image)",
    "torch": "torch (pip install torch)",
}
_NAME: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
# Of launchers and jobs in which this command may run, and what pods have of their own.
_NOT_PASSED: Final = re.compile(
    r"(ELASTICJOB|PET|TORCHELASTIC|KUBERNETES|GROUP|ROLE)_.*|(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
    r"|PATH|HOSTNAME|TMPDIR|PWD|OLDPWD|SHLVL|_"
)
_BYTES: Final = re.compile(r"[\x00\ud800-\udfff]")
_SERVED_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0


class LocalError(ClientError):
    """No cluster can run on this machine, or it ended."""


def find_missing() -> list[str]:
    """What has to be installed before jobs can run on this machine; empty if nothing."""
    missing = [remedy for module, remedy in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if not missing and shutil.which("torchrun", path=str(Path(sys.executable).parent)) is None:
        missing = [f"torch's command torchrun, which should be in {Path(sys.executable).parent} (pip install torch)"]
    return list(dict.fromkeys(missing))


def count_cpus() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_environment(cpus: int, workers: int, here: Mapping[str, str]) -> dict[str, str]:
    """What a worker on this machine gets: its share of the threads, the user's home for caches and data, and the
    variables that are set `here`, as a script has them that is started without us.
    """
    passed = {
        name: value.replace("$", "$$")  # Kubernetes expands $(NAME)
        for name, value in here.items()
        if _NAME.fullmatch(name) and not _NOT_PASSED.fullmatch(name) and not _BYTES.search(value)
    }
    threads = str(max(1, cpus // workers))
    return {"OMP_NUM_THREADS": threads, **passed, "HOME": str(Path.home()), "PYTHONUNBUFFERED": "1"}


def limit_restarts(manifest: dict[str, Any], retries: int) -> None:
    """Let the job fail after so many restarts by failed workers. A killed worker is replaced all the same.

    The default of a cluster would keep a user with a mistake in the script waiting for minutes.
    """
    policy = manifest["spec"].get("elasticPolicy") or {}
    manifest["spec"]["elasticPolicy"] = {**policy, "maxRestarts": retries}


def run_in(manifest: dict[str, Any], directory: Path) -> None:
    """Let the workers start in a folder of this machine."""
    manifest["spec"]["template"]["spec"]["containers"][0]["workingDir"] = str(directory)


class LocalCluster:
    """A running cluster with the operator. Use it as a context manager, or call `stop`."""

    def __init__(self, cluster: Any, operator: subprocess.Popen[bytes], log: Path) -> None:
        self._cluster = cluster
        self._operator = operator
        self._log = log
        self.id = str(cluster.id)
        self.kubeconfig = str(cluster.kubeconfig)

    @classmethod
    def start(cls, cpus: int | None = None) -> LocalCluster:
        """Start it and wait until it takes jobs. Raises LocalError."""
        missing = find_missing()
        if missing:
            raise LocalError(f"a cluster on this machine needs {' and '.join(missing)}: see docs/launch.md")
        devcluster: Any = importlib.import_module("elasticjob_devcluster")
        expected = (devcluster.BinariesUnavailable, devcluster.ClusterError, devcluster.KubeError, OSError, ValueError)
        node = devcluster.NodeSpec(NODE, cpu=cpus or count_cpus())
        try:
            cluster = devcluster.Cluster.start([node])
        except expected as error:
            raise LocalError(f"no cluster on this machine: {error}") from None
        try:
            _install_crd(cluster, devcluster.KubeError)
            log = cluster.directory / "operator.log"
            operator = _start_operator(cluster, log)
        except expected as error:
            cluster.stop()
            raise LocalError(f"no cluster on this machine: {error}") from None
        except BaseException:
            cluster.stop()
            raise
        return cls(cluster, operator, log)

    def check(self) -> None:
        """Raises LocalError if the operator ended."""
        code = self._operator.poll()
        if code is not None:
            tail = " / ".join(self._log.read_text(errors="replace").splitlines()[-3:])
            raise LocalError(f"the operator on this machine ended with exit code {code}: {tail}")

    def stop(self) -> None:
        """Stop the pods, the operator and the cluster; nothing is left."""
        self._operator.terminate()
        try:
            self._operator.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._operator.kill()
            self._operator.wait()
        self._cluster.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _install_crd(cluster: Any, refused: type[Exception]) -> None:
    cluster.kube.request("POST", _CRDS, crd.build_crd())
    deadline = time.monotonic() + _SERVED_SECONDS
    while True:
        with contextlib.suppress(refused):
            if cluster.kube.get(f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}") is not None:
                return
        if time.monotonic() > deadline:
            raise LocalError(f"the API server does not serve {names.PLURAL} after {_SERVED_SECONDS:.0f} s")
        time.sleep(0.05)


def _start_operator(cluster: Any, log: Path) -> subprocess.Popen[bytes]:
    processes: Any = importlib.import_module("elasticjob_devcluster.system.processes")
    with log.open("wb") as output:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "elasticjob_operator", "run", "--kubeconfig", str(cluster.kubeconfig)),
                *("--no-leader-election", "--stable-seconds", "1", "--hub-host", "127.0.0.1", "--hub-port", "0"),
                *("--http-host", "127.0.0.1", "--http-port", "0"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in the terminal is for the command alone
            env={**os.environ, processes.MARK_CLUSTER: cluster.id},  # the cluster's watchdog ends what has its mark
        )
