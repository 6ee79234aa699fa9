"""One container of a pod through all its attempts: pull, configure, start, probe, wait, restart."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from elasticjob_devcluster.node import status
from elasticjob_devcluster.node.context import Node
from elasticjob_devcluster.node.environ import ConfigError
from elasticjob_devcluster.node.launch import build_launch
from elasticjob_devcluster.node.status import ContainerState, Ended, Running, Waiting, parse_ended, parse_time
from elasticjob_devcluster.node.volumes import PodVolumes, VolumeError
from elasticjob_devcluster.runtime import containerlog, images, probes

Raw = Mapping[str, Any]

CONFIG_RETRY_SECONDS: Final = 2.0
MESSAGE_LIMIT: Final = 4096
KILL_SECONDS: Final = 10.0  # for the kernel to end a killed process
FALLBACK_LINES: Final = 80
FALLBACK_LIMIT: Final = 2048


class ContainerLoop:
    """Runs one container; `on_change` is called for every new state."""

    def __init__(
        self,
        node: Node,
        pod: Callable[[], Raw],
        container: Raw,
        volumes: PodVolumes,
        on_change: Callable[[], None],
        *,
        policy: str,
        sidecar: bool = False,
    ) -> None:
        self.node = node
        self.pod = pod
        self.container = container
        self.volumes = volumes
        self.policy = policy
        self.name: str = container["name"]
        self.state = ContainerState(self.name, container.get("image", ""), sidecar=sidecar)
        self.has_started = asyncio.Event()
        self.failures = 0
        self.running_id: str | None = None
        self._exited: asyncio.Future[dict[str, Any]] | None = None
        self._on_change = on_change
        self._probes: list[asyncio.Task[None]] = []
        self._liveness_failed = False
        self._ended_before: Ended | None = None

    def _set(self, **fields: Any) -> None:
        self.state = self.state.changed(**fields)
        if self.state.started:
            self.has_started.set()
        self._on_change()

    def runtime_id(self, attempt: int) -> str:
        return f"{self.pod()['metadata']['uid']}_{self.name}_{attempt}"

    async def run(self) -> Ended:
        """Run attempts until the restart policy is satisfied."""
        while True:
            ended = await self._resume_or_start()
            if not status.should_restart(self.policy, ended):
                return ended
            self.failures = self.node.crash_backoff.failures_after(self.failures, ended.finished_at - ended.started_at)
            delay = self.node.crash_backoff.delay(self.failures) - (time.time() - ended.finished_at)
            if delay > 0:
                name = self.pod()["metadata"]["name"]
                message = f"back-off {delay:.0f}s restarting failed container={self.name} pod={name}"
                self._set(state=Waiting("CrashLoopBackOff", message), last=ended)
                await asyncio.sleep(delay)
            self.state = self.state.changed(last=ended, restarts=self.state.restarts + 1)

    async def _resume_or_start(self) -> Ended:
        if self.running_id is not None:  # adopted after a restart of the agent
            return await self._wait_for_exit()
        if self._ended_before is not None:  # it ended while no agent was running
            ended, self._ended_before = self._ended_before, None
            return ended
        await self._pull()
        return await self._start()

    async def _pull(self) -> None:
        failures = 0
        image = self.container.get("image", "")
        while error := images.pull_error(image):
            reason, message = error
            failures += 1
            self._set(state=Waiting(reason, message))
            await asyncio.sleep(min(1.0, self.node.image_backoff.first))
            if reason == "ErrImagePull":
                self._set(state=Waiting("ImagePullBackOff", f'Back-off pulling image "{image}"'))
            await asyncio.sleep(self.node.image_backoff.pull_delay(failures))

    async def _start(self) -> Ended:
        attempt = self.state.restarts
        while True:
            try:
                launch = await build_launch(
                    self.node, self.pod(), self.container, self.volumes, self.runtime_id(attempt), attempt
                )
                break
            except (ConfigError, VolumeError) as error:
                self._set(state=Waiting(getattr(error, "reason", ConfigError.reason), str(error)))
                await asyncio.sleep(CONFIG_RETRY_SECONDS)
            except (aiohttp.ClientError, TimeoutError, OSError):  # the API server is unavailable: report nothing
                await asyncio.sleep(CONFIG_RETRY_SECONDS / 4)
        self.running_id = launch["id"]
        self._exited = asyncio.get_running_loop().create_future()
        labels = {"pod": self.pod()["metadata"]["uid"], "container": self.name, "attempt": str(attempt)}
        answer = await self.node.runtime.call("run", spec=launch, labels=labels)
        identity = f"process://{launch['id']}"
        if "failure" in answer:
            self.running_id = None
            now = time.time()
            ended = Ended(128, "StartError", now, now, message=answer["failure"], container_id=identity)
            self._set(state=ended, ready=False, started=False, container_id=identity)
            return ended
        self._begin(answer["startedAt"], identity)
        await self._hook("postStart")
        return await self._wait_for_exit()

    def _begin(self, started_at: float, identity: str) -> None:
        """The process is running: report it and start its probes."""
        self._liveness_failed = False
        has_startup = "startupProbe" in self.container
        ready = not has_startup and "readinessProbe" not in self.container
        self._set(state=Running(started_at), ready=ready, started=not has_startup, container_id=identity)
        if has_startup:
            self._probe("startupProbe", False, self._on_startup, until_healthy=True)
        else:
            self._begin_probes()

    def _begin_probes(self) -> None:
        if "readinessProbe" in self.container:
            self._probe("readinessProbe", False, lambda ok, _: self._set(ready=ok))
        if "livenessProbe" in self.container:
            self._probe("livenessProbe", True, self._on_liveness)

    def _on_startup(self, ok: bool, message: str) -> None:
        if not ok:
            self._on_liveness(False, message)
            return
        self._set(started=True, ready="readinessProbe" not in self.container)
        self._begin_probes()

    def _on_liveness(self, ok: bool, _: str) -> None:
        if not ok and not self._liveness_failed:
            self._liveness_failed = True
            grace = float(self.pod()["spec"].get("terminationGracePeriodSeconds") or 30)
            self._probes.append(asyncio.create_task(self.stop(grace)))

    def _probe(
        self, key: str, healthy: bool, on_change: Callable[[bool, str], None], *, until_healthy: bool = False
    ) -> None:
        task = probes.watch(
            self.container[key],
            self.container,
            self.volumes.pod_ip,
            self.execute,
            healthy=healthy,
            on_change=on_change,
            until_healthy=until_healthy,
        )
        self._probes.append(asyncio.create_task(task))

    async def execute(self, argv: list[str], timeout: float) -> tuple[bool, str]:
        """Run a command in the container."""
        answer = await self.node.runtime.call("exec", id=self.running_id, argv=argv, timeout=timeout)
        return answer.get("code") == 0, answer.get("failure") or answer.get("output", "")

    def adopt(self, known: Raw | None, reported: Raw | None) -> None:
        """Continue where an earlier agent stopped: `known` by the runtime, `reported` in the pod's status."""
        if reported:
            self.state = self.state.changed(
                restarts=int(reported.get("restartCount", 0)),
                last=parse_ended((reported.get("lastState") or {}).get("terminated")),
                container_id=reported.get("containerID", ""),
            )
            if ended := parse_ended((reported.get("state") or {}).get("terminated")):
                self.state = self.state.changed(state=ended)
                self._ended_before = ended
        if known is None:
            self._adopt_lost(reported)
            return
        self._ended_before = None
        identity = f"process://{known['id']}"
        self.state = self.state.changed(restarts=int(known["labels"]["attempt"]), container_id=identity)
        self.running_id = known["id"]
        self._exited = asyncio.get_running_loop().create_future()
        self._begin(known["started_at"], identity)
        if known["finished_at"] is not None:
            self.on_exit(known)

    def _adopt_lost(self, reported: Raw | None) -> None:
        running = ((reported or {}).get("state") or {}).get("running")
        if running:  # it was running in a runtime that has ended
            began = parse_time(running.get("startedAt"))
            message = "The container could not be located when the node came back"
            ended = Ended(255, "Unknown", began, time.time(), message=message, container_id=self.state.container_id)
            self.state = self.state.changed(state=ended, ready=False, started=False)
            self._ended_before = ended

    def on_exit(self, event: Raw) -> None:
        if self._exited is not None and event["id"] == self.running_id and not self._exited.done():
            self._exited.set_result(dict(event))

    async def _wait_for_exit(self) -> Ended:
        assert self._exited is not None
        event = await asyncio.shield(self._exited)  # other tasks wait for the exit too
        self._stop_probes()
        identity = f"process://{event['id']}"
        code = int(event["exit_code"])
        ended = Ended(
            code,
            status.ended_reason(code),
            event["started_at"],
            event["finished_at"],
            signal=event["signal"],
            message=self._termination_message(code),
            container_id=identity,
        )
        self.running_id = None
        self._set(state=ended, ready=False, started=False)
        await self.node.runtime.call("forget", id=event["id"])
        return ended

    def _termination_message(self, code: int) -> str:
        uid = self.pod()["metadata"]["uid"]
        path = message_path(self.node, uid, self.name)
        text = ""
        with contextlib.suppress(OSError):
            text = path.read_bytes()[-MESSAGE_LIMIT:].decode(errors="replace")
            path.write_bytes(b"")
        if not text and code != 0 and self.container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            log = self.node.log_path(uid, self.name, self.state.restarts)
            text = containerlog.tail_text(log, lines=FALLBACK_LINES, limit=FALLBACK_LIMIT)
        return text

    def _stop_probes(self) -> None:
        for task in self._probes:
            task.cancel()
        self._probes.clear()

    async def _hook(self, name: str) -> None:
        action = ((self.container.get("lifecycle") or {}).get(name) or {}).get("exec")
        if action and self.running_id is not None:
            grace = float(self.pod()["spec"].get("terminationGracePeriodSeconds") or 30)
            await self.execute(list(action["command"]), grace)

    async def stop(self, grace: float) -> None:
        """Run preStop, send SIGTERM to the first process, and after `grace` seconds SIGKILL to all processes."""
        if self.running_id is None or self._exited is None:
            return
        identity, exited = self.running_id, self._exited
        deadline = time.monotonic() + grace
        if grace > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hook("preStop"), grace)
            await self.node.runtime.call("signal", id=identity, signal=int(signal.SIGTERM))
            await _wait_until(exited, max(min(grace, 2.0), deadline - time.monotonic()))
        if not exited.done():
            answer = await self.node.runtime.call("signal", id=identity, signal=int(signal.SIGKILL), all=True)
            await _wait_until(exited, KILL_SECONDS)
            if not answer["sent"] and not exited.done():
                self.running_id = None  # it never started: the loop was cancelled during the request

    async def finish_after_stop(self) -> None:
        """Record how a stopped container ended, if the loop that does so was cancelled."""
        self._stop_probes()
        if self.running_id is not None and self._exited is not None:
            await self._wait_for_exit()


async def _wait_until(future: Awaitable[Any], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(future), seconds)


def message_path(node: Node, uid: str, container: str) -> Path:
    return node.pod_directory(uid) / "containers" / container / "termination-log"
