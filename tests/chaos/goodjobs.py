"""Three jobs of a well-behaved tenant: two with light agents, and one that trains with torchrun and gloo."""

from __future__ import annotations

import contextlib
import json
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from chaos.history import read_history
from elasticjob_devcluster import Cluster, KubeError
from operator_fixture import Jobs, light_spec, wait_for

TRAINING = Path(__file__).resolve().parents[1] / "integration/programs/until_stopped.py"
NAMESPACE = "good"
MEMBERS = {"light-scaled": 2, "light-killed": 2, "training": 2}
PATIENCE = 180.0  # others work on the machine, too


class GoodJobs:
    """They train until they are told to end, and record each step. `read_logs`: what the operator has said."""

    def __init__(self, cluster: Cluster, directory: Path, read_logs: Callable[[], str]) -> None:
        self.jobs = Jobs(cluster, NAMESPACE)
        self.directory = directory
        self.read_logs = read_logs
        self.wrong: list[str] = []  # what they did not reach, and what is known of it

    def start(self) -> None:
        for name in ("light-scaled", "light-killed"):
            done = str(self.directory / "done")
            # As from a checkpoint: a job that comes no further than before is rightly tried less and less often.
            spec = light_spec("--step-seconds", "0.05", "--until", done, "--resume", replicas=2)
            container = spec["template"]["spec"]["containers"][0]
            container["env"] = [{"name": "LIGHT_LOG", "value": str(self.directory / f"{name}.jsonl")}]
            self.jobs.create(name, spec)
        (self.directory / "training").mkdir()
        command = ["torchrun", str(TRAINING), str(self.directory / "training")]
        path = [{"name": "PYTHONPATH", "value": "."}]  # the script is made for images, where the runtime is brought
        trainer = {"name": "trainer", "image": "a/b:1", "command": command, "env": path}
        template = {"spec": {"containers": [trainer]}}
        policy = {"minReplicas": 1, "maxReplicas": 2}
        self.jobs.create("training", {"replicas": 2, "elasticPolicy": policy, "template": template})
        for name, size in MEMBERS.items():
            self.jobs.await_world(name, size, timeout=2 * PATIENCE)
            wait_for(lambda job=name: self.read_steps(job), f"{name} makes steps", 2 * PATIENCE)  # type: ignore[misc]

    def read_steps(self, job: str) -> list[float]:
        """The times of the steps of any rank of this job."""
        if job != "training":
            return [line.t for line in read_history(self.directory / f"{job}.jsonl") if line.event == "step"]
        files = (self.directory / "training").glob("*.jsonl")
        lines = (text for file in files for text in file.read_text().split("\n")[:-1])
        return sorted(float(json.loads(text)["t"]) for text in lines)

    def change(self, dice: random.Random, *, also_training: bool) -> None:
        """Ordinary events of a cluster: a change of size, and pods that die."""
        with self._noting("light-scaled"):
            for size in (3, 2):
                self.jobs.scale("light-scaled", size)
                self.jobs.await_world("light-scaled", size, timeout=PATIENCE)
        for job in ("light-killed", *(["training"] if also_training else [])):
            with self._noting(job):
                world = self.jobs.status(job)["rendezvous"]
                pod = dice.choice(world["members"])["pod"]
                self.jobs.cluster.kill_pod(NAMESPACE, pod, signal.SIGKILL)
                self.jobs.await_world(job, MEMBERS[job], above=world["generation"], timeout=2 * PATIENCE)

    def finish(self) -> None:
        """Let them complete, and check that no failure was charged."""
        (self.directory / "done").touch()
        (self.directory / "training/stop").touch()
        for job in MEMBERS:
            with self._noting(job):
                self.jobs.await_condition(job, "Complete", timeout=PATIENCE)
                restarts = self.jobs.status(job).get("restarts", {}).get("total", 0)
                assert restarts == 0, f"{restarts} restarts were charged"

    @contextlib.contextmanager
    def _noting(self, job: str) -> Iterator[None]:
        try:
            yield
        except (AssertionError, KubeError, KeyError) as error:
            self.wrong.append(f"{job}: {type(error).__name__}: {str(error)[:4000]}\n{self._describe(job)}")

    def _describe(self, job: str) -> str:
        """Its pods, its events and what the operator said of it last."""
        found = []
        with contextlib.suppress(KubeError):
            for pod in self.jobs.pods(job):
                metadata, spec = pod["metadata"], pod["spec"]
                about = {key: metadata.get(key) for key in ("name", "creationTimestamp", "deletionTimestamp")}
                found.append(f"pod {about} on {spec.get('nodeName')}: {json.dumps(pod['status'])[:1500]}")
            found += [f"event {reason}: {message[:300]}" for reason, message in self.jobs.events(job)[-20:]]
        return "\n".join([*found, *[line for line in self.read_logs().splitlines() if f"/{job}" in line][-60:]])
