"""The process that owns a cluster: it starts everything, executes commands, and stops everything when it ends.

It watches its own owner, if there is one, through a pidfd, so the cluster ends without relying on signals or signal
handlers. A small watchdog in turn watches the supervisor and removes what is left, even after a SIGKILL.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from elasticjob_devcluster.config import ClusterConfig, NodeSpec, parse_node
from elasticjob_devcluster.containerd.node import ContainerNode
from elasticjob_devcluster.containerd.sweep import clean_up
from elasticjob_devcluster.controlplane.servers import ControlPlane
from elasticjob_devcluster.nodes import ProcessNode
from elasticjob_devcluster.system import addresses, processes
from elasticjob_devcluster.system.sockets import listen_unix

Reply = dict[str, Any]


class Supervisor:
    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.number, self._claim = addresses.claim_cluster(zlib.crc32(config.id.encode()))
        self.plane = ControlPlane(config, addresses.own_address(self.number))
        self.nodes: dict[str, ProcessNode | ContainerNode] = {}
        self.ending = asyncio.Event()
        self._next_node = 0
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        self._watch_owner()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.ending.set)
        server = await asyncio.start_unix_server(
            self._serve, sock=listen_unix(self.config.directory / "control.sock"), limit=1024 * 1024
        )
        starting = asyncio.create_task(self._start())
        ending = asyncio.create_task(self.ending.wait())
        try:
            await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await self._stay(ending)
        except Exception as error:
            self._save("failed", error=f"{error}")
            traceback.print_exc()
        finally:
            starting.cancel()
            server.close()
            await self._stop()

    async def _stay(self, ending: asyncio.Task[bool]) -> None:
        while not ending.done():
            self.plane.revive()
            await asyncio.wait((ending,), timeout=1.0)

    def _watch_owner(self) -> None:
        if not self.config.owner:
            return
        try:
            handle = os.pidfd_open(self.config.owner)
        except ProcessLookupError:
            self.ending.set()
            return
        asyncio.get_running_loop().add_reader(handle, self.ending.set)

    async def _start(self) -> None:
        self._save("starting")
        await self.plane.start()
        await asyncio.gather(*(self._add(spec) for spec in self.config.nodes))
        self._save("ready")

    async def _add(self, spec: NodeSpec) -> None:
        if spec.name in self.nodes:
            raise ValueError(f"node {spec.name!r} exists already")
        index, self._next_node = self._next_node, self._next_node + 1
        node: ProcessNode | ContainerNode
        if spec.runtime == "containerd":
            node = ContainerNode(self.config, self.plane, spec, self.number, index)
        else:
            node = ProcessNode(self.config, self.plane, spec, addresses.node_address(self.number, index))
        self.nodes[spec.name] = node
        await node.prepare()
        node.start()

    def _save(self, phase: str, **extra: object) -> None:
        layout = self.plane.layout
        state = {
            "id": self.config.id,
            "pid": os.getpid(),
            "phase": phase,
            "server": layout.server,
            "version": self.plane.version_text,
            "kubeconfig": str(layout.kubeconfig),
            **extra,
        }
        path = self.config.directory / "state.json"
        fresh = path.with_suffix(".tmp")
        fresh.write_text(json.dumps(state, indent=1))
        fresh.rename(path)

    async def _stop(self) -> None:
        for node in self.nodes.values():
            node.kill()
            await node.close()
        self.plane.stop()
        processes.kill_marked(processes.MARK_CLUSTER, self.config.id)
        if any(isinstance(node, ContainerNode) for node in self.nodes.values()):
            clean_up(self.config.id, self.number)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                request = json.loads(line)
                try:
                    async with self._lock:
                        reply: Reply = {"ok": await self._dispatch(request)}
                except Exception as error:
                    reply = {"error": str(error) or type(error).__name__}
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()

    async def _dispatch(self, request: dict[str, Any]) -> object:
        operations: dict[str, Callable[[dict[str, Any]], Awaitable[object]]] = {
            "status": self._status,
            "stop": self._end,
            "add-node": self._add_node,
            "remove-node": self._remove_node,
            "node": self._node_operation,
            "restart": self._restart,
            "load-image": self._load_image,
        }
        return await operations[request["op"]](request)

    async def _status(self, _: dict[str, Any]) -> object:
        children = {name: child.poll() is None for name, child in self.plane.children.items()}
        return {"components": children, "nodes": [node.describe() for node in self.nodes.values()]}

    async def _end(self, _: dict[str, Any]) -> object:
        self.ending.set()
        return None

    async def _add_node(self, request: dict[str, Any]) -> object:
        await self._add(parse_node(request["spec"]))
        return None

    async def _remove_node(self, request: dict[str, Any]) -> object:
        await self._find(request["name"]).remove()
        del self.nodes[request["name"]]
        return None

    async def _restart(self, request: dict[str, Any]) -> object:
        await self.plane.restart(request["component"])
        return None

    async def _load_image(self, request: dict[str, Any]) -> object:
        nodes = [node for node in self.nodes.values() if isinstance(node, ContainerNode)]
        if not nodes:
            raise ValueError("no node of this cluster runs images: start it with `--runtime containerd`")
        await asyncio.gather(*(asyncio.to_thread(node.load_image, request["archive"]) for node in nodes))
        return [node.spec.name for node in nodes]

    def _find(self, name: str) -> ProcessNode | ContainerNode:
        if name not in self.nodes:
            known = ", ".join(self.nodes) or "none"
            raise ValueError(f"no node {name!r} in this cluster: it has {known}")
        return self.nodes[name]

    async def _node_operation(self, request: dict[str, Any]) -> object:
        node = self._find(request["name"])
        operations: dict[str, Callable[[], None]] = {
            "kill": node.kill,
            "start": node.start,
            "stop-agent": node.stop_agent,
            "pause": lambda: node.freeze(signal.SIGSTOP),
            "resume": lambda: node.freeze(signal.SIGCONT),
            "cut": node.relay.cut,
            "heal": node.relay.heal,
        }
        operations[request["action"]]()
        return None


def start_watchdog(config: ClusterConfig) -> None:
    """Start the watchdog detached: it must survive when this process is killed."""
    remove = [str(config.etcd_data)]
    if not config.keep_directory:
        remove.append(str(config.directory))
    argv = processes.python_argv("elasticjob_devcluster.watchdog", str(os.getpid()), config.id, *remove)
    subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=processes.base_env(),
        start_new_session=True,
        cwd="/",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    config = ClusterConfig.load(parser.parse_args().config)
    start_watchdog(config)
    try:
        asyncio.run(Supervisor(config).run())
    except Exception as error:
        state = {"id": config.id, "pid": os.getpid(), "phase": "failed", "error": str(error)}
        (config.directory / "state.json").write_text(json.dumps(state))
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
