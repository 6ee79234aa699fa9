"""The life of one pod on this node: volumes, init containers, containers, deletion, and its status throughout.

The status reports what the processes did. Every change of a container's state wakes one reporter, which sends the
latest status.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp

from elasticjob_devcluster.node import status
from elasticjob_devcluster.node.client import STRATEGIC, ApiError, RuntimeGone
from elasticjob_devcluster.node.container import ContainerLoop
from elasticjob_devcluster.node.context import Node
from elasticjob_devcluster.node.status import Ended, Waiting
from elasticjob_devcluster.node.volumes import Node as VolumeNode
from elasticjob_devcluster.node.volumes import PodVolumes, VolumeError

Raw = Mapping[str, Any]

RETRY_SECONDS: Final = 0.5
MINIMUM_GRACE: Final = 1.0  # seconds that even a force-deleted pod gets, like from the kubelet


class PodWorker:
    def __init__(self, node: Node, pod: Raw) -> None:
        self.node = node
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        self.directory = node.pod_directory(self.uid)
        self.began = time.time()
        self.vanished = False
        self.failure: tuple[str, str] | None = None
        self._leave = asyncio.Event()
        self._dirty = asyncio.Event()
        self._stopping = False
        self._sent: dict[str, Any] | None = None
        spec = pod["spec"]
        address = VolumeNode(node.api, node.settings.address, node.settings.capacity)
        self.volumes = PodVolumes(address, pod, self.directory / "volumes", "")
        policy = spec.get("restartPolicy", "Always")
        init_policy = "Never" if policy == "Never" else "OnFailure"
        self.init = [self._loop(c, init_policy, is_init=True) for c in spec.get("initContainers") or ()]
        self.main = [self._loop(c, policy) for c in spec["containers"]]
        if self.init:
            for loop in self.main:
                loop.state = loop.state.changed(state=Waiting("PodInitializing"))

    def _loop(self, container: Raw, policy: str, *, is_init: bool = False) -> ContainerLoop:
        """The loop of a container. An init container with `restartPolicy: Always` is a sidecar: others do not wait for
        it.
        """
        sidecar = is_init and container.get("restartPolicy") == "Always"
        policy = "Always" if sidecar else policy
        return ContainerLoop(
            self.node, lambda: self.pod, container, self.volumes, self._dirty.set, policy=policy, sidecar=sidecar
        )

    def update(self, pod: Raw) -> None:
        """The pod object changed."""
        if pod["spec"]["containers"] != self.pod["spec"]["containers"]:  # it was resized
            self._dirty.set()
        self.pod = pod
        self.volumes.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._leave.set()

    def vanish(self) -> None:
        """The pod object was deleted: stop everything that still runs."""
        self.vanished = True
        self._leave.set()

    def on_exit(self, event: Raw) -> None:
        for loop in (*self.init, *self.main):
            loop.on_exit(event)

    async def run(self, known: Mapping[str, Raw]) -> None:
        """Run the pod until its end. `known`: the runtime's containers of this pod, by name."""
        reporter = asyncio.create_task(self._report())
        try:
            self._adopt(known)
            self.update(self.pod)
            await self._work_until_left()
            await self._stop()
        finally:
            reporter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporter
        await self._finalize()

    def _adopt(self, known: Mapping[str, Raw]) -> None:
        before = self.pod.get("status") or {}
        reported = {
            s["name"]: s for key in ("initContainerStatuses", "containerStatuses") for s in before.get(key) or ()
        }
        if before.get("podIP"):
            self.volumes.pod_ip = self.node.claim_address(self.uid, before["podIP"]) or ""
        for loop in (*self.init, *self.main):
            if loop.name in known or loop.name in reported:
                loop.adopt(known.get(loop.name), reported.get(loop.name))

    async def _work_until_left(self) -> None:
        """Run the containers until they are done, then wait until the pod is deleted."""
        if (self.pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            await self._leave.wait()
            return
        work = asyncio.create_task(self._work())
        refresh = asyncio.create_task(self._refresh())
        leave = asyncio.create_task(self._leave.wait())
        try:
            await asyncio.wait((work, leave), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                await leave
        finally:
            for task in (work, refresh, leave):
                task.cancel()
            await asyncio.gather(work, refresh, leave, return_exceptions=True)

    async def _work(self) -> None:
        deadline = self.pod["spec"].get("activeDeadlineSeconds")
        try:
            async with asyncio.timeout(deadline):
                await self._prepare()
                await self._run_containers()
        except TimeoutError:
            self.failure = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            self._dirty.set()
            await self._stop_containers(self._grace())

    async def _prepare(self) -> None:
        while not self.volumes.pod_ip:
            address = self.node.claim_address(self.uid)
            if address is None:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.volumes.pod_ip = address
        self.directory.mkdir(parents=True, exist_ok=True)
        self._dirty.set()
        while True:
            try:
                await self.volumes.publish()
                return
            except (VolumeError, ApiError, aiohttp.ClientError, TimeoutError) as error:
                for loop in self.main:
                    loop.state = (
                        loop.state.changed(state=Waiting(loop.state.state.reason, str(error)))
                        if isinstance(loop.state.state, Waiting)
                        else loop.state
                    )
                self._dirty.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _run_containers(self) -> None:
        async with contextlib.AsyncExitStack() as sidecars:  # stopped in reverse order, like the kubelet does
            for loop in self.init:
                if loop.state.sidecar:
                    await sidecars.enter_async_context(self._beside(loop))
                elif (await loop.run()).exit_code != 0:
                    return
            for loop in self.main:
                if isinstance(loop.state.state, Waiting) and loop.state.state.reason == "PodInitializing":
                    loop.state = loop.state.changed(state=Waiting())
            await asyncio.gather(*(loop.run() for loop in self.main))

    @contextlib.asynccontextmanager
    async def _beside(self, loop: ContainerLoop) -> AsyncIterator[None]:
        """Run a sidecar until the other containers have ended."""
        running = asyncio.create_task(loop.run())
        try:
            await loop.has_started.wait()
            yield
            running.cancel()
            await loop.stop(self._grace())
            await loop.finish_after_stop()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _refresh(self) -> None:
        """Renew tokens before they expire, and update changed ConfigMaps."""
        while True:
            await asyncio.sleep(min(30.0, max(1.0, self.volumes.refresh_at - time.time())))
            if time.time() >= self.volumes.refresh_at:
                try:
                    await self.volumes.publish()
                except (VolumeError, ApiError, aiohttp.ClientError, TimeoutError):
                    self.volumes.refresh_at = time.time() + RETRY_SECONDS

    def _grace(self) -> float:
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        grace = metadata.get("deletionGracePeriodSeconds")
        if grace is None:
            grace = spec.get("terminationGracePeriodSeconds")
        return max(MINIMUM_GRACE, float(30 if grace is None else grace))

    async def _stop(self) -> None:
        self._stopping = True
        with contextlib.suppress(RuntimeGone):
            await self._stop_containers(self._grace())

    async def _stop_containers(self, grace: float) -> None:
        """Stop the containers, sidecars last."""
        for some in (self.main, self.init):
            await asyncio.gather(*(loop.stop(grace) for loop in some))
            for loop in some:
                await loop.finish_after_stop()

    async def _finalize(self) -> None:
        """Report how the pod ended, delete the object, then remove the pod's files."""
        if not self.vanished:
            await self._until_accepted(self._send_status)
            await self._until_accepted(self._delete_object)
        self.node.release_address(self.uid)
        await asyncio.to_thread(shutil.rmtree, self.directory, True)
        await asyncio.to_thread(shutil.rmtree, self.node.directory / "logs" / self.uid, True)

    async def _delete_object(self) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        await self.node.api.request("DELETE", self.path, body)

    async def _until_accepted(self, action: Any) -> None:
        while not self.vanished:
            try:
                await action()
                return
            except ApiError as error:
                if error.status in (404, 409):
                    return
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def _report(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._send_status()
            except ApiError as error:
                if error.status not in (404, 409):
                    self._dirty.set()
                    await asyncio.sleep(RETRY_SECONDS)
            except (aiohttp.ClientError, TimeoutError, OSError):
                self._dirty.set()
                await asyncio.sleep(RETRY_SECONDS)

    def _status(self) -> dict[str, Any]:
        pod = self.pod
        if self._stopping:  # no further restarts: the phase becomes final
            pod = {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}}
        return status.compute_status(
            pod,
            [loop.state for loop in self.init],
            [loop.state for loop in self.main],
            pod_ip=self.volumes.pod_ip,
            host_ip=self.node.settings.address,
            start_time=self.began,
            now=time.time(),
            failure=self.failure,
        )

    async def _send_status(self) -> None:
        wanted = self._status()
        if wanted == self._sent:
            return
        body = {"metadata": {"uid": self.uid}, "status": wanted}
        answer = await self.node.api.request("PATCH", self.path + "/status", body, content_type=STRATEGIC)
        self._sent = wanted
        if not self.vanished and answer["metadata"]["uid"] == self.uid:
            self.pod = {**self.pod, "status": answer.get("status") or {}}

    def container(self, name: str) -> ContainerLoop | None:
        return next((loop for loop in (*self.init, *self.main) if loop.name == name), None)

    @property
    def done(self) -> bool:
        return all(isinstance(loop.state.state, Ended) for loop in self.main)
