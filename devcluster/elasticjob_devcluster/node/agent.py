"""The node's agent, the counterpart of the kubelet: registers the node, takes its pods, runs one worker per pod.

It may be killed and restarted at any time: the runtime knows what is running, the API server what should be.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from elasticjob_devcluster.node import registration
from elasticjob_devcluster.node.client import Api, ApiError, RuntimeClient
from elasticjob_devcluster.node.context import Node, Settings
from elasticjob_devcluster.node.pod import PodWorker
from elasticjob_devcluster.node.server import NodeServer

Raw = Mapping[str, Any]
log = logging.getLogger("node")


class Agent:
    def __init__(self, directory: Path) -> None:
        settings = Settings.load(directory / "node.json")
        pki = Path(settings.pki)
        certificate, key = pki / f"node-{settings.name}.crt", pki / f"node-{settings.name}.key"
        self.runtime = RuntimeClient(directory / "runtime.sock", self._on_exit)
        api = Api(settings.server, pki / "ca.crt", certificate, key)
        self.node = Node(settings, directory, api, self.runtime)
        self.workers: dict[str, PodWorker] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.known: dict[str, dict[str, Raw]] = {}

    async def run(self) -> None:
        await self.runtime.connect()
        await self._recall()
        server = NodeServer(self.node, self._find)
        await server.start()
        uid = await registration.register(self.node.api, self.node.settings)
        jobs = [
            asyncio.create_task(registration.heartbeat(self.node.api, self.node.settings, uid)),
            asyncio.create_task(self._follow_pods()),
            asyncio.create_task(self.runtime.gone.wait()),
        ]
        log.info("node %s is registered, containers run in mode %s", self.node.settings.name, self.node.mode)
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [*jobs, *self.tasks.values()]:
                task.cancel()
            await asyncio.gather(*jobs, *self.tasks.values(), return_exceptions=True)
            await server.stop()
            await self.node.api.close()

    async def _recall(self) -> None:
        """The runtime's running containers, by pod and name; only the last attempt of each counts."""
        info = await self.runtime.call("info")
        self.node.mode = info["mode"]
        for container in sorted(info["containers"], key=lambda c: int(c["labels"]["attempt"])):
            labels = container["labels"]
            self.known.setdefault(labels["pod"], {})[labels["container"]] = container

    def _find(self, namespace: str, name: str) -> PodWorker | None:
        for worker in self.workers.values():
            metadata = worker.pod["metadata"]
            if metadata["name"] == name and metadata["namespace"] == namespace:
                return worker
        return None

    def _on_exit(self, event: dict[str, Any]) -> None:
        worker = self.workers.get(event["labels"]["pod"])
        if worker is not None:
            worker.on_exit(event)

    async def _follow_pods(self) -> None:
        selector = f"fieldSelector=spec.nodeName%3D{self.node.settings.name}"
        first = True
        while True:
            try:
                pods = await self.node.api.request("GET", f"/api/v1/pods?{selector}", timeout=30)
                self._replace(pods["items"])
                if first:
                    await self._collect_garbage()
                    first = False
                version = pods["metadata"]["resourceVersion"]
                path = f"/api/v1/pods?{selector}&watch=1&allowWatchBookmarks=true&resourceVersion={version}"
                async with contextlib.aclosing(self.node.api.watch(path + "&timeoutSeconds=50")) as events:
                    async for event in events:
                        if event["type"] == "ERROR":
                            break
                        self._apply(event["type"], event["object"])
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("watching pods: %s: %s", type(error).__name__, error)
                await asyncio.sleep(0.2)

    def _replace(self, items: list[Raw]) -> None:
        """Apply a complete list: pods that are not in it were deleted."""
        present = {pod["metadata"]["uid"] for pod in items}
        for uid, worker in list(self.workers.items()):
            if uid not in present:
                worker.vanish()
        # Addresses that are in use come first, so that no new pod takes them.
        for pod in sorted(items, key=lambda p: not (p.get("status") or {}).get("podIP")):
            self._apply("MODIFIED", pod)

    def _apply(self, kind: str, pod: Raw) -> None:
        if kind == "BOOKMARK":
            return
        uid = pod["metadata"]["uid"]
        worker = self.workers.get(uid)
        if kind == "DELETED":
            if worker is not None:
                worker.vanish()
        elif worker is not None:
            worker.update(pod)
        else:
            self._add(uid, pod)

    def _add(self, uid: str, pod: Raw) -> None:
        worker = PodWorker(self.node, pod)
        self.workers[uid] = worker
        task = asyncio.create_task(worker.run(self.known.pop(uid, {})))
        self.tasks[uid] = task
        task.add_done_callback(lambda t: self._finished(uid, t))

    def _finished(self, uid: str, task: asyncio.Task[None]) -> None:
        worker = self.workers.pop(uid)
        self.tasks.pop(uid)
        if task.cancelled():
            return
        if error := task.exception():
            log.error("pod %s: %s", uid, error, exc_info=error)
            self.tasks[uid] = asyncio.create_task(self._again(worker))

    async def _again(self, worker: PodWorker) -> None:
        """Restart the worker of a pod after it failed, like a fresh agent."""
        await asyncio.sleep(1.0)
        await self._recall()
        self.tasks.pop(worker.uid, None)
        with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
            pod = await self.node.api.request("GET", worker.path)
            if pod["metadata"]["uid"] == worker.uid and worker.uid not in self.workers:
                self._add(worker.uid, pod)

    async def _collect_garbage(self) -> None:
        """Remove containers and directories of pods that were deleted while no agent ran."""
        for containers in self.known.values():
            for container in containers.values():
                await self.runtime.call("signal", id=container["id"], signal=int(signal.SIGKILL), all=True)
                await self.runtime.call("forget", id=container["id"])
        self.known.clear()
        for parent in (self.node.directory / "pods", self.node.directory / "logs"):
            if parent.is_dir():
                for entry in parent.iterdir():
                    if entry.name not in self.workers:
                        shutil.rmtree(entry, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Agent(arguments.dir).run())


if __name__ == "__main__":
    main()
