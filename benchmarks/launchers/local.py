"""ElasticJob without Kubernetes: our hub and membership rules in one process, our rendezvous in each agent.

Pods are processes; the end of one is reported to the operator when it is observed, like by a kubelet. The API server's
part is missing here; `--through cluster` includes it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import launchers
from benchmarks.launchers.torchrun import find_port
from benchmarks.meter import Meter
from benchmarks.processes import MARK, RUN, Pod

OPERATOR = launchers.ROOT / "benchmarks" / "scripts" / "local_operator.py"
BIN = Path(sys.executable).parent
SESSION_SCRIPT = launchers.ROOT / "benchmarks" / "scripts" / "session_loop.py"
CHECKPOINTER_SCRIPT = launchers.ROOT / "benchmarks" / "scripts" / "checkpointer_loop.py"
SESSION_ENVIRONMENT = {"ELASTICJOB_IN_PROCESS": "1"}
LOOK_SECONDS = 0.05  # polling interval for the end of a pod


@dataclass
class Local:
    """See the module. `program` is the command in the pod that takes torchrun's arguments."""

    name: str = "ours: torchrun"
    program: tuple[str, ...] = ("torchrun",)
    environment: dict[str, str] = field(default_factory=dict)
    script: Path | None = None
    meter: Meter | None = None  # between the agents and the hub
    pods: dict[int, Pod] = field(default_factory=dict)
    uids: dict[int, str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    operator: subprocess.Popen[bytes] | None = None
    watcher: threading.Thread | None = None
    closed: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, job: launchers.Job, wanted: int) -> None:
        self.job = job if self.script is None else replace(job, script=self.script)
        self.wanted = wanted
        self.port = find_port("127.0.0.1")
        self.operator = self._start_operator()
        self.agents_port = self.port if self.meter is None else self.meter.forward("127.0.0.1", self.port)
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def _start_operator(self) -> subprocess.Popen[bytes]:
        trace, state = self.job.directory / "trace.jsonl", self.job.directory / "state.json"
        self.job.directory.joinpath("logs").mkdir(parents=True, exist_ok=True)
        known = len(self.trace())
        with (self.job.directory / "logs" / "operator.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, str(OPERATOR), "--port", str(self.port)),
                    *("--trace", str(trace), "--state", str(state)),
                ],
                env={**launchers.base_environment(), MARK: f"{RUN}/operator/"},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + 30
        while not any(line["event"] == "listening" for line in self.trace()[known:]):
            if time.monotonic() > until or process.poll() is not None:
                said = (self.job.directory / "logs" / "operator.log").read_text(errors="replace")
                raise RuntimeError(f"the local operator did not start:\n{said[-2000:]}")
            time.sleep(0.02)
        return process

    def trace(self) -> list[dict[str, Any]]:
        """The operator's trace: see `scripts/local_operator.py`."""
        path = self.job.directory / "trace.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _watch(self) -> None:
        while not self.closed.wait(LOOK_SECONDS):
            ended = {node for node, pod in self.pods.items() if not pod.is_alive()}
            if ended != self.gone:
                self.gone = ended
                self._tell()

    def _tell(self) -> None:
        """Send the complete state to the operator."""
        pods = [
            {
                "name": f"job-worker-{node}",
                "uid": uid,
                "index": node,
                "phase": "Failed" if node in self.gone else "Running",
            }
            for node, uid in sorted(self.uids.items())
        ]
        text = json.dumps({"pods": pods, "wanted": self.wanted, "min": 1}) + "\n"
        with self.lock:
            operator = self.operator
            if operator is not None and operator.poll() is None and operator.stdin is not None:
                operator.stdin.write(text.encode())
                operator.stdin.flush()

    def start_agent(self, node: int) -> float:
        directory = self.job.directory
        token = directory / f"token-{node}"
        self.uids[node] = uuid.uuid4().hex
        token.write_text(f"{self.uids[node]}/job-worker-{node}")
        env = launchers.base_environment() | {
            "PATH": f"{BIN}:{launchers.base_environment().get('PATH', '')}",
            "PET_RDZV_BACKEND": "elasticjob",
            "PET_RDZV_ID": "job",
            "PET_NNODES": f"1:{self.job.maximum}",
            "PET_NPROC_PER_NODE": "1",
            "ELASTICJOB_NAME": "job",
            "ELASTICJOB_NAMESPACE": "bench",
            "ELASTICJOB_POD_NAME": f"job-worker-{node}",
            "ELASTICJOB_POD_IP": launchers.address(node),
            "ELASTICJOB_HUB_URL": f"ws://127.0.0.1:{self.agents_port}",
            "ELASTICJOB_TOKEN_FILE": str(token),
            "ELASTICJOB_GRACEFUL_SHUTDOWN_SECONDS": "20",
        }
        command = [str(BIN / self.program[0]), *self.program[1:], *self.job.command(node)]
        self.wanted = max(self.wanted, len(self.uids) - len(self.gone))
        began = time.time()
        log = directory / "logs" / f"node-{node}.log"
        self.pods[node] = Pod(f"node-{node}", command, env | self.environment, log)
        self._tell()
        return began

    def kill(self, node: int, number: signal.Signals) -> float:
        return self.pods[node].signal_all(number)

    def terminate(self, node: int) -> float:
        return self.pods[node].signal_first(signal.SIGTERM)

    def shrink(self, node: int) -> float:
        """Decrease the wanted size by one; the rules choose the pod."""
        began = time.time()
        self.wanted -= 1
        self._tell()
        return began

    def lose_coordinator(self) -> float | None:
        """Kill the operator, and start another one a second later, like its Deployment."""
        began = time.time()
        if self.operator is not None:
            self.operator.kill()
            self.operator.wait()
        time.sleep(1)
        self.operator = self._start_operator()
        self._tell()
        return began

    def is_alive(self) -> bool:
        return any(pod.is_alive() for pod in self.pods.values())

    def is_node_alive(self, node: int) -> bool:
        return self.pods[node].is_alive()

    def moments(self, event: float) -> dict[str, float]:
        """From the operator's trace."""
        lines = [line for line in self.trace() if line["t"] > event]
        worlds = [line["t"] for line in lines if line["event"] == "world"]
        if not worlds:
            return {}
        before = [line for line in lines if line["t"] <= worlds[0]]
        told = [line["t"] for line in before if line["event"] == "regroup" or line.get("phase") == "stopping"]
        ready = [line["t"] for line in before if line.get("phase") == "ready"]
        found = {"world": worlds[0]}
        return found | ({"told": min(told)} if told else {}) | ({"stopped": max(ready)} if ready and told else {})

    def close(self) -> None:
        self.closed.set()
        if self.watcher is not None:
            self.watcher.join()
        for pod in self.pods.values():
            pod.close()
        if self.operator is not None:
            self.operator.kill()
            self.operator.wait()
            if self.operator.stdin is not None:
                self.operator.stdin.close()


def torchrun() -> Local:
    return Local()


def elasticjob_run() -> Local:
    """With a standby process that has imported torch."""
    return Local(name="ours: elasticjob-run, warm", program=("elasticjob-run",))


def elasticjob_run_cold() -> Local:
    off = {"ELASTICJOB_WARM_START": "0"}
    return Local(name="ours: elasticjob-run, cold", program=("elasticjob-run",), environment=off)


def elasticjob_run_memory() -> Local:
    """With a script whose Checkpointer takes a snapshot in memory of each step."""
    return Local(
        name="ours: elasticjob-run, snapshots in memory",
        program=("elasticjob-run",),
        environment={"MEMORY_EVERY": "1"},
        script=CHECKPOINTER_SCRIPT,
    )


def session() -> Local:
    """With a script written for sessions: survivors keep their process and memory."""
    return Local(
        name="ours: session", program=("elasticjob-run",), environment=SESSION_ENVIRONMENT, script=SESSION_SCRIPT
    )
