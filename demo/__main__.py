"""`python -m demo`: one command, real data, every event with its seconds.

Brings up a cluster of three nodes with two (declared) GPUs each, runs the operator and applies
manifests/examples/digits.yaml. While it trains, the demo scales up, kills the pod of rank 0, kills the operator, scales
down, and lets the job finish. With `--session` it does the same with digits-session.yaml, whose processes keep their
memory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from demo.interrupt import interruptible
from demo.page import Page
from demo.screen import Screen
from demo.training import History, to_json
from elasticjob_devcluster import BinariesUnavailable, Cluster, KubeError, NodeSpec
from elasticjob_devcluster.local import localize

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "default"
JOBS = f"/apis/elasticjob.dev/v1alpha1/namespaces/{NAMESPACE}/elasticjobs"
MERGE = "application/merge-patch+json"
PAGE = ROOT / ".work" / "demo.html"
CHECKPOINT_EVERY = 5  # steps, if the script has checkpoints


class DemoError(Exception):
    """An expected event was not observed; the message names it."""


class Demo:
    """One run of the demo. Every method waits until its effect is observed."""

    def __init__(
        self, cluster: Cluster, screen: Screen, epochs: int, step_seconds: float, *, session: bool = False
    ) -> None:
        self.name = "digits-session" if session else "digits"
        self.most_repeated = 1 if session else CHECKPOINT_EVERY + 1
        self.cluster = cluster
        self.screen = screen
        self.epochs = epochs
        self.step_seconds = step_seconds
        self.history = History()
        self.page = Page()
        self.events: list[dict[str, Any]] = []
        self.status: dict[str, Any] = {}
        self.operator: subprocess.Popen[bytes] | None = None
        self.starts = 0

    # The parts.

    def install(self) -> None:
        kube = self.cluster.kube
        for file in sorted((ROOT / "crds").glob("*.yaml")):
            body = yaml.safe_load(file.read_text())
            kube.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
        self.wait(lambda: kube.get(JOBS) is not None, 30, "the API serves ElasticJobs")

    def start_operator(self) -> None:
        self.starts += 1
        log = (self.cluster.directory / f"operator-{self.starts}.log").open("wb")
        self.operator = subprocess.Popen(
            [
                *(sys.executable, "-m", "elasticjob_operator", "run"),
                *("--kubeconfig", str(self.cluster.kubeconfig), "--no-leader-election"),
                *("--hub-host", "127.0.0.1", "--hub-port", os.environ.get("DEMO_HUB_PORT", "18443")),
                *("--http-host", "127.0.0.1", "--http-port", "0"),
            ],
            stdout=log,
            stderr=log,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )

    def stop_operator(self) -> None:
        if self.operator is None:
            return
        self.operator.terminate()
        try:
            self.operator.wait(10)
        except subprocess.TimeoutExpired:
            self.operator.kill()
            self.operator.wait()

    def apply(self) -> None:
        checkpoints = self.cluster.directory / "checkpoints"
        checkpoints.mkdir()
        manifest = yaml.safe_load((ROOT / f"manifests/examples/{self.name}.yaml").read_text())
        mounts = {"/opt/elasticjob/examples": ROOT / "worker_image/examples", "/checkpoints": checkpoints}
        job = localize(manifest, mounts)
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        command += [f"--epochs={self.epochs}", f"--step-seconds={self.step_seconds}"]
        if self.name == "digits":
            command += [f"--checkpoint-every={CHECKPOINT_EVERY}"]
        self.cluster.kube.request("POST", JOBS, job)

    def scale(self, replicas: int) -> None:
        path = f"{JOBS}/{self.name}/scale"
        self.cluster.kube.request("PATCH", path, {"spec": {"replicas": replicas}}, content_type=MERGE)

    # Observation.

    def look(self) -> None:
        """Read the current state once and show it."""
        kube = self.cluster.kube
        with contextlib.suppress(KubeError, OSError):
            job = kube.get(f"{JOBS}/{self.name}") or {}
            self.status = job.get("status") or {}
            if self.status:
                self.page.see(job, time.time())
            items = kube.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
            pods = {p["metadata"]["name"]: p["metadata"]["uid"] for p in items if p["spec"].get("nodeName")}
            self.history.read(kube, NAMESPACE, pods)
            self.screen.show(self.status, items, self.history, self.events)

    def wait(self, condition: Callable[[], Any], timeout: float, what: str) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            self.look()
            found = condition()
            if found:
                return found
            self.check_operator()
            if time.monotonic() > deadline:
                raise DemoError(f"not seen within {timeout:.0f} s: {what}")
            time.sleep(0.25)

    def check_operator(self) -> None:
        if self.operator is not None and self.operator.poll() is not None:
            log = self.cluster.directory / f"operator-{self.starts}.log"
            tail = "\n".join(log.read_text().splitlines()[-15:])
            raise DemoError(f"the operator ended with exit code {self.operator.returncode}:\n{tail}")
        if self.status.get("phase") == "Failed":
            messages = [c.get("message") for c in self.status["conditions"] if c["type"] == "Failed"]
            raise DemoError(f"the job failed: {messages}")

    def trains_at(self, size: int) -> bool:
        return self.status.get("phase") == "Running" and self.status.get("readyReplicas") == size

    def await_first_step(self, event: str, since: float, size: int, *, pause: bool) -> None:
        """Wait until every rank of a world of `size` has made a step after `since`; record the event."""
        what = f"a step of every rank at world size {size} after {event}"
        done = self.wait(lambda: self.history.first_step_of_all(since, size), 120, what)
        self.wait(lambda: self.trains_at(size), 60, f"phase Running at world size {size}")
        seconds = self.history.pause_before(done) if pause else done - since
        self.book(event, size, seconds, sinceEventSeconds=round(done - since, 2))

    def book(self, event: str, size: int, seconds: float, **more: Any) -> None:
        entry = {"event": event, "worldSize": size, "seconds": round(seconds, 2), **more}
        self.events.append(entry)
        self.screen.tell(entry)

    # The sequence of events.

    def run(self) -> dict[str, Any]:
        began = time.time()
        self.apply()
        self.await_first_step("start", began, 2, pause=False)
        self.settle()

        moment = time.time()
        self.scale(3)
        self.await_first_step("scale-up", moment, 3, pause=True)
        self.settle()

        first = self.status["rendezvous"]["members"][0]["pod"]
        generation = self.status["rendezvous"]["generation"]
        moment = time.time()
        self.cluster.kill_pod(NAMESPACE, first, signal.SIGKILL)
        self.await_recovery(moment, generation)
        self.settle()

        self.restart_operator()
        self.settle()

        moment = time.time()
        self.scale(2)
        self.await_first_step("scale-down", moment, 2, pause=True)

        moment = time.time()
        self.wait(lambda: self.status.get("phase") == "Complete", 300, "the job is Complete")
        accuracy = self.accuracy()
        self.book("complete", 2, time.time() - moment, accuracy=accuracy)
        self.page.write(PAGE, self.cluster.kube.request("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"])
        return self.summary(accuracy)

    def settle(self) -> None:
        """Some seconds of undisturbed training between two events."""
        until = time.monotonic() + 4
        self.wait(lambda: time.monotonic() > until, 10, "a moment")

    def await_recovery(self, moment: float, generation: int) -> None:
        """The survivors continue at once in a smaller world; then the replacement pod joins."""
        sizes = (2, 3)

        def recovered() -> tuple[float, int] | None:
            # Steps of the old world may have a timestamp just after the kill: only a newer generation counts.
            firsts = [(self.history.first_step_of_all(moment, size, newer_than=generation), size) for size in sizes]
            return min(((at, size) for at, size in firsts if at is not None), default=None)

        done, size = self.wait(recovered, 120, "training after the pod of rank 0 was killed")
        self.book("worker-0-killed", size, done - moment)
        self.wait(lambda: self.trains_at(3), 120, "the replacement is taken in")
        again = "a step of every rank with the replacement"
        self.wait(lambda: self.history.first_step_of_all(moment, 3, newer_than=generation), 120, again)

    def restart_operator(self) -> None:
        assert self.operator is not None, "the operator runs before it is restarted"
        generation = self.status["rendezvous"]["generation"]
        before = self.history.latest()
        moment = time.time()
        self.operator.kill()
        self.operator.wait()
        self.operator = None
        until = time.monotonic() + 1.0
        self.wait(lambda: time.monotonic() > until, 5, "a second without an operator")
        self.start_operator()
        log = self.cluster.directory / f"operator-{self.starts}.log"
        self.wait(lambda: b": running" in log.read_bytes(), 60, "the new operator looks after the job")
        seconds = time.time() - moment
        self.settle()
        lost = 0 if self.status["rendezvous"]["generation"] == generation else -1
        starts = self.history.select(lambda x: x.event == "start" and x.time > moment)
        if lost or starts:
            raise DemoError("the restart of the operator disturbed the training")
        after = self.history.latest()
        made = (after.step - before.step) if before and after else 0
        self.book("operator-restarted", 3, seconds, stepsLost=0, stepsMadeMeanwhile=made)

    def accuracy(self) -> float:
        def found() -> float | None:
            done = self.history.select(lambda x: x.event == "done" and x.accuracy is not None)
            return done[-1].accuracy if done else None

        return float(self.wait(found, 30, "the test accuracy"))

    def summary(self, accuracy: float) -> dict[str, Any]:
        back = self.history.went_back()
        if accuracy < 0.95:
            raise DemoError(f"the test accuracy is {accuracy}, less than 0.95")
        if back > self.most_repeated:
            raise DemoError(f"training went back {back} steps, more than {self.most_repeated}")
        return {
            "demo": "ok",
            "example": self.name,
            "accuracy": accuracy,
            "kubernetes": self.cluster.version,
            "stepsRepeatedAtMost": back,
            "events": self.events,
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--epochs", type=int, help="how long it trains: long enough for the whole story")
    parser.add_argument("--step-seconds", type=float, default=0.03)
    parser.add_argument("--session", action="store_true", help="the script that keeps its memory over a change")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live table")
    args = parser.parse_args()
    screen = Screen(plain=args.plain or not sys.stderr.isatty())
    epochs = args.epochs or (90 if args.session else 55)  # a session continues to train while other scripts restart
    nodes = [NodeSpec(f"node-{i}", gpus=2) for i in range(3)]
    path = [Path(sys.executable).parent]
    try:
        with interruptible(), Cluster.start(nodes=nodes, path_prepend=path) as cluster:
            screen.say(f"Kubernetes {cluster.version}, 3 nodes with 2 GPUs each (declared), no container engine")
            demo = Demo(cluster, screen, epochs, args.step_seconds, session=args.session)
            try:
                with screen:
                    demo.install()
                    demo.start_operator()
                    summary = demo.run()
            finally:
                demo.stop_operator()
    except (DemoError, BinariesUnavailable) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; everything it started has been stopped", file=sys.stderr)
        return 130
    screen.timeline(summary["events"])
    print(to_json(summary), flush=True)
    screen.say(f"the page of this run: {PAGE} (`kubectl elasticjob dashboard` shows one of a running job)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
