"""Checks of whole pods: real agents, a hub, and workers on the device. They need the package websockets."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu import rig
from gpu.programs import training
from gpu.report import Report
from gpu.sessions import find_differences, find_first_steps


class Pod:
    """One pod: an agent and what it starts, which end together."""

    def __init__(self, folder: Path, name: str, url: str, program: str, settings: dict[str, Any]) -> None:
        self.name, self._lines = name, folder / "lines"
        self._lines.mkdir(exist_ok=True)
        token = folder / f"{name}.token"
        token.write_text(f"token-{name}\n")
        number = sum(1 for _ in folder.glob("*.token")) + 1
        variables = {
            "ELASTICJOB_HUB_URL": url,
            "ELASTICJOB_POD_IP": f"127.{os.getpid() % 250 + 1}.0.{number}",
            "ELASTICJOB_POD_NAME": name,
            "ELASTICJOB_TOKEN_FILE": str(token),
            "ELASTICJOB_GRACEFUL_SHUTDOWN_SECONDS": "5",
            "PET_NNODES": "1:64",
            "PET_NPROC_PER_NODE": "1",
            "PET_RDZV_ID": "job",
            "PET_RDZV_BACKEND": "elasticjob",
            "PET_RDZV_ENDPOINT": "",
            "PET_MONITOR_INTERVAL": "0.05",
            "FOLDER": str(self._lines),
            "SETTINGS": json.dumps(settings),
        }
        self._process = rig.spawn(folder, ["-m", "elasticjob.run", str(rig.PROGRAMS / program)], **variables)

    def processes(self) -> list[int]:
        """All of them, the agent first: each process whose parent is one of them."""
        found = [self._process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found += [int(one) for one in task.read_text().split() if int(one) not in found]
        return found

    def signal_all(self, number: signal.Signals) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        self.signal_all(signal.SIGKILL)
        self._process.wait()


class Job:
    """Some pods of one job, and the lines that their workers write."""

    def __init__(self, folder: Path, hub: Any, program: str, settings: dict[str, Any]) -> None:
        self.folder, self.hub = folder, hub
        self.pods: dict[str, Pod] = {}
        self._program, self._settings = program, settings

    def start(self, name: str) -> None:
        self.pods[name] = Pod(self.folder, name, self.hub.url, self._program, self._settings)

    def rows(self) -> list[dict[str, Any]]:
        files = (self.folder / "lines").glob("*.jsonl")
        found = [row | {"pid": int(file.stem)} for file in files for row in rig.read_rows(file)]
        return sorted(found, key=lambda row: row["t"])

    def steps(self, generation: int) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["event"] == "step" and row["generation"] == generation]

    def await_world(self, size: int, newer_than: int, count: int = 4) -> int:
        """Until each rank of a world of this size has done so many steps; its generation."""
        world = self.hub.wait_for_world(size, newer_than, rig.PATIENCE * 40.0)
        generation: int = world.generation

        def have_stepped() -> bool:
            ranks = [row["rank"] for row in self.steps(generation)]
            return all(ranks.count(rank) >= count for rank in range(size))

        rig.wait(have_stepped, f"{count} steps of {size} ranks in generation {generation}", 40.0)
        return generation

    def first_step_at(self, generation: int) -> float:
        """When the last rank had its first step."""
        first: dict[int, float] = {}
        for row in self.steps(generation):
            first.setdefault(row["rank"], row["t"])
        return max(first.values())

    def close(self) -> None:
        for pod in self.pods.values():
            pod.kill()


@contextlib.contextmanager
def _job(folder: Path, program: str, settings: dict[str, Any]) -> Iterator[Job]:
    from worker.fake_hub import FakeHub

    folder.mkdir()
    with FakeHub(size=2) as hub:
        hub.reconnect_grace = 0.2
        job = Job(folder, hub, program, settings)
        try:
            yield job
        finally:
            job.close()


def _can_run(check: Report) -> bool:
    if importlib.util.find_spec("websockets") is None:
        check.measure(notRun="the package websockets is missing")
        return False
    return True


def in_session(check: Report, folder: Path) -> None:
    """Pods of a session: a worker is killed, a pod is killed, one joins, and one is paused until it is given up."""
    if not _can_run(check):
        return
    with _job(folder / "session", "train.py", {"width": 256, "pause": 0.02}) as job:
        for name in ("a", "b", "c"):
            job.start(name)
        job.hub.set_size(2, 3)
        first = generation = job.await_world(3, 0)
        victim = job.hub.world.pods[2]
        worker = next(row["pid"] for row in job.steps(generation) if row["rank"] == 2)
        began = time.time()
        os.kill(worker, signal.SIGKILL)
        generation = job.await_world(3, generation)
        check.measure(workerKilled=round(job.first_step_at(generation) - began, 2))

        began = time.time()
        job.pods[victim].kill()
        generation = job.await_world(2, generation)
        check.measure(podKilled=round(job.first_step_at(generation) - began, 2))

        job.start("d")
        generation = job.await_world(3, generation, count=60)  # an agent judges by what is usual in this world
        check.measure(podJoined=round(job.first_step_at(generation) - job.hub.regroups[-1][0], 2))

        others = [name for name in job.hub.world.pods if name != "d"]
        began = time.time()
        job.pods["d"].signal_all(signal.SIGSTOP)
        states = job.hub.agents
        rig.wait(lambda: all(states[name].state.get("blocked") for name in others), "that the others say so", 20.0)
        check.measure(pausedSeen=round(time.time() - began, 2))
        job.hub.declare_lost("d")
        generation = job.await_world(2, generation)
        check.measure(pausedGivenUp=round(job.first_step_at(generation) - began, 2))
        rows = job.rows()
        before, after = ({row["pid"] for row in job.steps(one)} for one in (first, generation))
        check.expect(len(after) == len(after & before) == 2, "the survivors of all losses kept their processes", after)
    _judge(check, rows, 256)


def restarted(check: Report, folder: Path) -> None:
    """Pods of a script that is restarted, warm: a pod joins, and one is killed; it goes on from its checkpoints."""
    if not _can_run(check):
        return
    with _job(folder / "restarts", "restarted.py", {"width": 256, "pause": 0.02}) as job:
        for name in ("a", "b"):
            job.start(name)
        generation = job.await_world(2, 0, count=12)
        job.start("c")
        generation = job.await_world(3, generation, count=12)
        check.measure(podJoined=round(job.first_step_at(generation) - job.hub.regroups[-1][0], 2))
        began = time.time()
        job.pods[job.hub.world.pods[1]].kill()
        generation = job.await_world(2, generation)
        check.measure(podKilled=round(job.first_step_at(generation) - began, 2))
        rows = job.rows()
    firsts = find_first_steps(rows)
    check.measure(firstSteps=list(firsts.values()))
    check.expect(all(step > 0 for step in list(firsts.values())[1:]), "restarts go on from checkpoints", firsts)
    warm = [row["warm"] for row in rows if row["event"] == "world"]
    check.expect(all(warm[2:]), "the workers of later worlds are forked from a warm process", warm)
    _judge(check, rows, 256)


def _judge(check: Report, rows: list[dict[str, Any]], width: int) -> None:
    steps = [row for row in rows if row["event"] == "step"]
    right = list(training.reference(width, max(row["step"] for row in steps) + 1))
    wrong = find_differences(steps, right)
    check.measure(steps=len(steps), wrongSteps=len(wrong))
    check.expect(not wrong, "every committed step has the parameters of the reference, to 1e-9", wrong[:3])
