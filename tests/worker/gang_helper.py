"""Runs a script as a small world of real processes, and collects the output of each rank.

One gang makes many checks: the import of torch dominates the cost of a test, so a file of tests pays for it once. The
store of the world is in the test's process, like the agent's in a pod. Nothing outlives `run_gang`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from worker import warm_pods

PROGRAMS = Path(__file__).parent / "programs"
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Member:
    """How one rank ended."""

    rank: int
    exit_code: int
    stdout: str
    stderr: str

    @property
    def results(self) -> dict[str, Any]:
        """What the rank printed as `{"check": name, "result": value}` lines."""
        found = {}
        for line in self.stdout.splitlines():
            if line.startswith('{"check"'):
                said = json.loads(line)
                found[said["check"]] = said["result"]
        return found


def lines_of(stdout: str) -> list[str]:
    """What the program printed, without gloo: that of torch 2.9 prints how many ranks it is connected to."""
    return [line for line in stdout.splitlines() if not line.startswith("[Gloo]")]


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without a launcher's variables."""
    prefixes = ("ELASTICJOB_", "PET_", "TORCHELASTIC_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(prefixes) and name not in ("RANK", "WORLD_SIZE")
    }
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY / "tests")} | extra


def run_gang(
    script: Path,
    size: int,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    timeout: float = 90,
    may_die: Sequence[int] = (),
) -> list[Member]:
    """Start `size` ranks of a script, wait for all, kill the remaining ones at the deadline."""

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # A store for each phase of the program (`programs/phases.py`): the keys of two worlds must not meet.
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(16)]
    base = clean_environment(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(stores[0].port),
        GANG_PORTS=",".join(str(store.port) for store in stores),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",  # torch 2.4 asks for it, as an agent sets both
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        GLOO_SOCKET_IFNAME="lo",
    ) | dict(env or {})
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        processes: list[subprocess.Popen[bytes] | warm_pods.WarmProcess] = []
        try:
            for rank in range(size):
                with Path(folder, f"{rank}.out").open("wb") as out, Path(folder, f"{rank}.err").open("wb") as err:
                    processes.append(
                        _start(
                            [str(script), *arguments],
                            base | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                            env or {},
                            (out, err),
                            "rank",
                        )
                    )
            for process in processes:
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    break
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        members = [
            Member(
                rank,
                process.wait(),
                Path(folder, f"{rank}.out").read_text(),
                Path(folder, f"{rank}.err").read_text(),
            )
            for rank, process in enumerate(processes)
        ]
    for member in members:
        if member.rank not in may_die:
            assert member.exit_code == 0, f"rank {member.rank}: {member.exit_code}\n{member.stderr[-3000:]}"
    return members


def run_alone(script: Path | str, *arguments: str, timeout: float = 90, may_fail: bool = False, **env: str) -> Member:
    """Run a script, or Python code, as a process that nobody has launched."""
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(script, str):
            Path(folder, "code.py").write_text(script)
            script = Path(folder, "code.py")
        files = Path(folder, "out"), Path(folder, "err")
        with files[0].open("wb") as out, files[1].open("wb") as err:
            process = _start([str(script), *arguments], clean_environment(**env), env, (out, err), "agent")
        try:
            code = process.wait(timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        member = Member(0, code, *(file.read_text() for file in files))
    assert may_fail or member.exit_code == 0, member.stderr[-3000:]
    return member


def _start(
    command: list[str],
    env: dict[str, str],
    given: Mapping[str, str],
    files: tuple[IO[bytes], IO[bytes]],
    imports: warm_pods.Imports,
) -> subprocess.Popen[bytes] | warm_pods.WarmProcess:
    if warm_pods.is_possible(given):
        return warm_pods.shared(imports).start(command, env, Path.cwd(), *files)
    return subprocess.Popen(
        [sys.executable, *command], env=env, stdout=files[0], stderr=files[1], start_new_session=True
    )
