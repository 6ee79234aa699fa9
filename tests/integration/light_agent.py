"""A worker without torch: uses the protocol, "trains" by counting steps, and fails on demand.

For tests of the operator, in which the workers' computation does not matter: it starts in a fraction of a second. It
writes (time, generation, rank, step) lines to the file $LIGHT_LOG, one JSON object each, as a history for a checker.

    python light_agent.py [--steps N] [--until FILE] [--step-seconds S] [--fail-at STEP[:TIMES]]
                          [--fail-with PODS] [--exit-code N] [--leave-on-term]
                          [--resume]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect


class Agent:
    """One pod. The main thread communicates with the hub; steps are made in between."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.agent_id = uuid.uuid4().hex
        self.phase, self.generation, self.rank, self.size = "ready", 0, 0, 0
        self.listener = self._listen()
        self.failure: dict[str, Any] | None = None
        self.step = 0
        self.seen_failures = 0
        self.leaving = threading.Event()
        self.log = os.environ.get("LIGHT_LOG", "")

    def _listen(self) -> socket.socket:
        """Stands for the store: a new port for every readiness."""
        address = os.environ.get("ELASTICJOB_POD_IP") or "127.0.0.1"
        return socket.create_server((address, 0))

    def state(self) -> dict[str, Any]:
        said: dict[str, Any] = {"phase": self.phase, "generation": self.generation, "nproc": 1}
        if self.phase == "ready":
            address, port = self.listener.getsockname()[:2]
            said["store"] = {"address": address, "port": port}
        if self.failure:
            said["failure"] = self.failure
        if self.step:
            said["step"] = self.step
        return said

    def write(self, event: str) -> None:
        if not self.log:
            return
        line = {"t": time.time(), "event": event, "generation": self.generation, "rank": self.rank, "step": self.step}
        whose = {"pod": os.environ.get("ELASTICJOB_POD_UID", ""), "size": self.size}
        with Path(self.log).open("a") as file:
            file.write(json.dumps(line | whose) + "\n")

    def read_checkpoint(self) -> int:
        """The last step that the file has: what a script finds on the volume of its job."""
        if not self.log or not Path(self.log).exists():
            return 0
        with Path(self.log).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().splitlines()[1:]  # the first may be cut off
        steps: list[int] = [json.loads(line)["step"] for line in lines]
        return max(steps, default=0)

    def run(self) -> int:
        while True:
            try:
                code = self.talk()
                if code is not None:
                    return code
            except (OSError, WebSocketException, TimeoutError):
                if self.leaving.is_set():
                    return 0
                if self.phase == "running":
                    self.make_step()
                time.sleep(0.1)

    def talk(self) -> int | None:
        token = Path(os.environ["ELASTICJOB_TOKEN_FILE"]).read_text().strip()
        url = os.environ["ELASTICJOB_HUB_URL"] + "/v1/agent"
        ca = os.environ.get("ELASTICJOB_CA_FILE", "")
        context = ssl.create_default_context(cafile=ca) if ca else None
        headers = {"Authorization": f"Bearer {token}"}
        with connect(url, ssl=context, additional_headers=headers, open_timeout=5, ping_interval=None) as ws:
            ws.send(json.dumps({"v": 1, "type": "hello", "agent": self.agent_id, "state": self.state()}))
            last_ping = 0.0
            while True:
                if time.monotonic() - last_ping > 1.0:
                    ws.ping()
                    last_ping = time.monotonic()
                with contextlib.suppress(TimeoutError):
                    message = json.loads(ws.recv(timeout=self.step_seconds))
                    code = self.hear(ws, message)
                    if code is not None:
                        return code
                if self.phase == "running":
                    self.make_step()
                    self.after_step(ws)
                if self.leaving.is_set() and self.phase not in ("leaving", "succeeded"):
                    if not self.args.leave_on_term:
                        return 143
                    self.say(ws, "leaving")

    def say(self, ws: ClientConnection, phase: str) -> None:
        self.phase = phase
        ws.send(json.dumps({"v": 1, "type": "state", "state": self.state()}))

    def hear(self, ws: ClientConnection, message: dict[str, Any]) -> int | None:
        if message["type"] != "directive":
            return None
        directive = message["directive"]
        action = directive["action"]
        if action == "world" and self.phase == "ready" and directive["generation"] > self.generation:
            self.generation, self.rank = directive["generation"], directive["rank"]
            self.size = len(directive["members"])
            self.failure = None
            if self.args.resume:
                self.step = max(self.step, self.read_checkpoint())
            self.write("start")
            self.say(ws, "running")
        elif (
            action == "regroup" and self.phase in ("running", "leaving") and self.generation <= directive["generation"]
        ):
            self.write("stop")
            self.stop(ws)
        elif action == "regroup" and self.phase == "ready" and self.generation < directive["generation"]:
            self.generation = directive["generation"]  # it will not be entered any more
            self.say(ws, "ready")
        elif action == "stop":
            self.write("end")
            return 0 if directive.get("ok", True) else 1
        return None

    def stop(self, ws: ClientConnection) -> None:
        self.say(ws, "stopping")
        self.listener.close()
        self.listener = self._listen()
        self.say(ws, "ready")

    @property
    def step_seconds(self) -> float:
        """Of a step: a share of it is divided by the pods of the world."""
        shared: float = self.args.shared
        seconds: float = self.args.step_seconds
        return seconds * (shared / max(1, self.size) + 1 - shared)

    def make_step(self) -> None:
        self.step += 1
        self.write("step")

    def after_step(self, ws: ClientConnection) -> None:
        report = {"generation": self.generation, "rank": self.rank, "step": self.step, "totalSteps": self.args.steps}
        if self.step % 10 == 0:
            metrics = dict.fromkeys(self.args.metric, 1 / self.step)
            told = {**report, "stepSeconds": self.step_seconds, "metrics": metrics}
            told |= {"samplesPerSecond": 64.0, "tokensPerSecond": 32768.0, "mfu": 0.4, "checkpointAges": {"File": 5.0}}
            ws.send(json.dumps({"v": 1, "type": "progress", **told}))
        due = self.args.fail_at and self.step >= self.args.fail_at[0] and self.seen_failures < self.args.fail_at[1]
        if due or self.size == self.args.fail_with:
            self.seen_failures += 1
            if self.args.exit_code:
                print("Traceback (most recent call last):\nValueError: asked to fail", file=sys.stderr, flush=True)
                os._exit(self.args.exit_code)
            self.failure = {
                "generation": self.generation, "rank": self.rank, "exitCode": 1,
                "message": "ValueError: asked to fail",
                "traceback": "Traceback (most recent call last):\nValueError: asked to fail",
            }  # fmt: skip
            self.step = 0
            self.stop(ws)
        elif self.step >= self.args.steps or (self.args.until and self.args.until.exists()):
            self.write("done")
            self.say(ws, "succeeded")


def fail_at(text: str) -> tuple[int, int]:
    step, _, times = text.partition(":")
    return int(step), int(times or 1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--until", type=Path, help="train until this file exists")
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--shared", type=float, default=0.0, help="share of a step that is divided by the pods")
    parser.add_argument("--fail-at", type=fail_at, default=None)
    parser.add_argument("--fail-with", type=int, default=0, help="fail in each world of so many pods")
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--metric", action="append", default=[], help="a name to report a number under")
    parser.add_argument("--leave-on-term", action="store_true")
    parser.add_argument("--resume", action="store_true", help="go on from the last step that the job has written")
    agent = Agent(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: agent.leaving.set())
    return agent.run()


if __name__ == "__main__":
    sys.exit(main())
