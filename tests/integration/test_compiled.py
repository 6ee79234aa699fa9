"""torch.compile while workers are killed: with SIGKILL, at several moments of a compilation, over a cache of all ranks.

A compilation is minutes of work in many files, which all ranks share where the cache is on a volume. Whoever dies in
the middle of it must leave nothing there that the next one takes for whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from operator_fixture import Jobs, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        shutil.which("g++") is None, reason="torch.compile needs a compiler of C++: apt-get install g++"
    ),
]

PROGRAM = Path(__file__).parent / "programs" / "compiled.py"
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
PROC = Path("/proc")


@dataclass(frozen=True)
class Compilation:
    """What is seen of a job that compiles, from outside."""

    out: Path
    cache: Path

    def said(self, event: str, **more: object) -> list[dict[str, Any]]:
        file = self.out / "said.jsonl"
        lines = [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []
        return [line for line in lines if {"event": event, **more}.items() <= line.items()]

    def files(self, suffix: str) -> set[Path]:
        return set(self.cache.rglob(f"*{suffix}"))

    def processes(self, name: str = "") -> list[int]:
        """Those that have this cache in their environment, and what they execute."""
        found = []
        for entry in PROC.iterdir():
            with contextlib.suppress(OSError, ValueError):
                environ = entry.joinpath("environ").read_bytes().split(b"\0")
                state = entry.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                if f"{VARIABLE}={self.cache}".encode() in environ and state not in "ZX":
                    words = entry.joinpath("cmdline").read_bytes().split(b"\0")
                    if not name or any(Path(os.fsdecode(word)).name == name for word in words[:1]):
                        found.append(int(entry.name))
        return found


def has_begun(seen: Compilation, before: set[Path]) -> bool:
    return True


def has_written(seen: Compilation, before: set[Path]) -> bool:
    return bool(seen.files("") - before)


def compiles(seen: Compilation, before: set[Path]) -> bool:
    return bool(seen.processes("cc1plus"))


def links(seen: Compilation, before: set[Path]) -> bool:
    """What is loaded is there, perhaps not whole."""
    return bool(seen.files(".so") - before)


# The moment of the stage's compilation, and who is killed: a rank, both, or the whole pod of a rank.
KILLS: tuple[tuple[Callable[[Compilation, set[Path]], bool], str], ...] = ((compiles, "rank 0"), (links, "ranks"))
MORE = tuple(
    (moment, whom)
    for whom in ("pod", "ranks", "rank 0", "rank 1")
    for moment in (has_begun, has_written, compiles, links)
)


def compiled_spec(out: Path, cache: Path, stages: int) -> dict[str, Any]:
    command = ["torchrun", str(PROGRAM), str(out), str(stages)]
    env = [{"name": VARIABLE, "value": str(cache)}]
    container = {"name": "trainer", "image": "a/b:1", "command": command, "env": env}
    return {
        "replicas": 2,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 2, "maxRestarts": 100},
        "template": {"spec": {"containers": [container]}},
    }


def kill(jobs: Jobs, cluster: Cluster, whom: str, ranks: dict[int, dict[str, Any]]) -> None:
    if whom == "pod":
        members = jobs.status("compiled")["rendezvous"]["members"]
        cluster.kill_pod(jobs.namespace, members[0]["pod"], signal.SIGKILL)
        return
    for rank in (0, 1) if whom == "ranks" else (int(whom.removeprefix("rank ")),):
        with contextlib.suppress(ProcessLookupError):
            os.kill(ranks[rank]["pid"], signal.SIGKILL)


@pytest.mark.parametrize("kills", [pytest.param(KILLS, id=""), pytest.param(MORE, id="more", marks=pytest.mark.long)])
def test_workers_that_are_killed_while_they_compile_leave_a_whole_cache(
    jobs: Jobs, cluster: Cluster, tmp_path: Path, kills: tuple[tuple[Callable[..., bool], str], ...]
) -> None:
    seen = Compilation(tmp_path / "out", tmp_path / "cache")
    for folder in (seen.out, seen.cache):
        folder.mkdir()
    jobs.create("compiled", compiled_spec(seen.out, seen.cache, len(kills)))
    for stage, (moment, whom) in enumerate(kills):

        def begins(stage: int = stage) -> dict[int, dict[str, Any]] | None:
            ranks = {line["rank"]: line for line in seen.said("begins", stage=stage)}
            return ranks if len(ranks) == 2 else None

        ranks = wait_for(begins, f"both ranks compile stage {stage}", timeout=300, poll=0.005)
        before = seen.files("")
        wait_for(
            lambda: moment(seen, before) or seen.said("trains", stage=stage),  # noqa: B023
            f"stage {stage}: {moment.__name__}",
            timeout=300,
            poll=0.002,
        )
        assert not seen.said("trains", stage=stage), f"stage {stage} was compiled before {moment.__name__} was seen"
        kill(jobs, cluster, whom, ranks)
    jobs.await_condition("compiled", "Complete", timeout=300)
    status = jobs.status("compiled")
    print(f"restarts: {status['restarts']}; cache: {seen.said('ends')[-1]['cache']}")
    assert seen.said("ends")[-1]["differs"] < 1e-5, "as without a compiler"
    wait_for(lambda: not seen.processes(), "nothing that compiles is left")
    assert_whole(seen, len(kills))


def assert_whole(seen: Compilation, stages: int) -> None:
    """Who finds the cache later, such as another job, can use all of it."""
    torn = [file for file in seen.files(".so") if not is_whole(file)]
    assert torn == []
    began = time.monotonic()
    env = {**os.environ, VARIABLE: str(seen.cache)}
    alone = [sys.executable, str(PROGRAM), str(seen.out), str(stages), "ALONE"]
    ran = subprocess.run(alone, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    last = seen.said("ends")[-1]
    print(f"alone in {time.monotonic() - began:.1f} s; cache: {last['cache']}")
    assert last["differs"] < 1e-5


def is_whole(library: Path) -> bool:
    """Whether an ELF file has all of its sections, whose table is at its end."""
    data = library.read_bytes()
    at = int.from_bytes(data[40:48], "little")
    size, count = (int.from_bytes(data[i : i + 2], "little") for i in (58, 60))
    return data[:4] == b"\x7fELF" and len(data) >= at + size * count
