"""The state that a cluster writes to its directory: its supervisor, and the progress of its start."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from elasticjob_devcluster.system import processes

START_SECONDS: Final = 120.0


class ClusterError(Exception):
    """The cluster cannot execute the request; the message names the remedy."""


def read_state(directory: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((directory / "state.json").read_text())
    return state


def is_alive(pid: int) -> bool:
    return not processes.is_zombie(pid)


def is_running(directory: Path) -> bool:
    try:
        state = read_state(directory)
    except (OSError, ValueError):
        return False
    return state.get("phase") == "ready" and is_alive(int(state["pid"]))


def refuse_if_used(directory: Path) -> None:
    if is_running(directory):
        raise ClusterError(f"a devcluster runs in {directory} already: `elasticjob-devcluster down` stops it")
    if not directory.exists() or not any(directory.iterdir()):
        return
    if not (directory / "config.json").exists():
        raise ClusterError(f"{directory} is not empty and not a devcluster's: choose another with --dir")
    shutil.rmtree(directory)  # the remains of a cluster that crashed


def wait_for_phase(directory: Path, supervisor: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError, ValueError):
            state = read_state(directory)
            if state["phase"] == "ready":
                return
            if state["phase"] == "failed":
                raise ClusterError(f"the cluster did not start: {state.get('error')}")
        if supervisor.poll() is not None:
            with contextlib.suppress(OSError):
                text = (directory / "supervisor.log").read_text()[-2000:]
                raise ClusterError(f"the supervisor ended with exit code {supervisor.returncode}\n{text}")
            raise ClusterError(f"the supervisor ended with exit code {supervisor.returncode}")
        if time.monotonic() > deadline:
            raise ClusterError(f"the cluster is not up after {START_SECONDS:.0f} s: see {directory}/logs")
        time.sleep(0.02)
