"""The container runtime of one node: starts containers as local processes, reaps them, keeps their logs.

It is the parent of every container and independent of Kubernetes. The agent may die and come back: the runtime
continues, and knows what ran and how it ended. When the runtime dies, its containers die with it, like on a node that
loses power. It has one thread and uses only the standard library, since it forks.

The socket's protocol is JSON lines: a request has `n` and `op`, its response the same `n`; exits are sent to all
clients as `{"exit": {...}}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elasticjob_devcluster.runtime import sandbox, spawn, warm
from elasticjob_devcluster.runtime.containerlog import LogWriter
from elasticjob_devcluster.system import processes
from elasticjob_devcluster.system.sockets import listen_unix

EXEC_OUTPUT_LIMIT = 16 * 1024


@dataclass
class Container:
    """The runtime's record of a container; kept after its end until the agent discards it."""

    id: str
    pid: int
    started_at: float
    finished_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    labels: dict[str, str] = field(default_factory=dict)


class Runtime:
    def __init__(self, directory: Path, node_mark: str, mode: sandbox.Mode, imports: Sequence[str] = ()) -> None:
        self.directory = directory
        self.node_mark = node_mark
        self.mode = mode
        self.forks = warm.Forks(imports)
        self.containers: dict[str, Container] = {}
        self.specs: dict[str, spawn.Spec] = {}
        self.logs: dict[str, LogWriter] = {}
        self.clients: set[asyncio.StreamWriter] = set()

    async def serve(self, connection: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.add(writer)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while line := await connection.readline():
                task = asyncio.create_task(self._answer(json.loads(line), writer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except ConnectionError:
            pass
        finally:
            self.clients.discard(writer)
            writer.close()

    async def _answer(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        operations: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "info": self.info,
            "run": self.run,
            "signal": self.signal,
            "exec": self.exec,
            "exec-to-files": self.exec_to_files,
            "forget": self.forget,
        }
        try:
            answer = await operations[request["op"]](request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._send(writer, {"n": request.get("n"), **answer})

    @staticmethod
    def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        if not writer.is_closing():
            writer.write(json.dumps(message).encode() + b"\n")

    async def info(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"mode": self.mode, "containers": [asdict(c) for c in self.containers.values()]}

    async def run(self, request: dict[str, Any]) -> dict[str, Any]:
        spec = spawn.Spec.parse(request["spec"])
        spec.env[processes.MARK_NODE] = self.node_mark
        spec.env[processes.MARK_CLUSTER] = self.node_mark.split("/")[0]
        spec.env[processes.MARK_CONTAINER] = spec.id
        if spoilt := next((name for name, value in spec.env.items() if "\0" in value), ""):
            return {"failure": f'invalid environment variable "{spoilt}": contains nul byte (\\x00)'}
        start = spawn.start
        if self.forks.suits(spec):
            await self.forks.await_imports()
            start = self.forks.start
        log = LogWriter(Path(spec.log))
        out, err = log.pipe("stdout"), log.pipe("stderr")
        started_at = time.time()
        try:
            pid = start(spec, self.mode, out, err)
        except spawn.StartError as error:
            log.close()
            return {"failure": str(error)}
        finally:
            os.close(out)
            os.close(err)
        await log.attach()
        container = Container(spec.id, pid, started_at, labels=request.get("labels", {}))
        self.containers[spec.id] = container
        self.specs[spec.id] = spec
        self.logs[spec.id] = log
        handle = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(handle, self._main_process_ended, container, handle)
        return {"pid": pid, "startedAt": started_at}

    def _main_process_ended(self, container: Container, handle: int) -> None:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
        _, status = os.waitpid(container.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        container.finished_at = time.time()
        container.signal = -code if code < 0 else None
        container.exit_code = 128 - code if code < 0 else code
        task = asyncio.create_task(self._finish(container))
        self._keep(task)

    async def _finish(self, container: Container) -> None:
        # When the first process of a container ends, all others are killed, like in a PID namespace.
        processes.kill_marked(processes.MARK_CONTAINER, container.id)
        await self.logs.pop(container.id).drain()
        for writer in list(self.clients):
            self._send(writer, {"exit": asdict(container)})

    _tasks: set[asyncio.Task[Any]] = set()  # noqa: RUF012 - one runtime per process

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def signal(self, request: dict[str, Any]) -> dict[str, Any]:
        container = self.containers.get(request["id"])
        if container is None or container.finished_at is not None:
            return {"sent": False}
        if request.get("all"):
            pids = set(processes.find_marked(processes.MARK_CONTAINER, container.id))
            pids |= {container.pid} | processes.descendants([container.pid])
            processes.send(pids, request["signal"])
        else:
            processes.send([container.pid], request["signal"])
        return {"sent": True}

    async def exec(self, request: dict[str, Any]) -> dict[str, Any]:
        container, spec = self.containers.get(request["id"]), self.specs.get(request["id"])
        if container is None or spec is None or container.finished_at is not None:
            return {"failure": "the container does not run"}
        read, write = os.pipe()
        try:
            pid = spawn.start_in(spec, container.pid, request["argv"], self.mode, write, write)
        except spawn.StartError as error:
            os.close(read)
            return {"failure": str(error)}
        finally:
            os.close(write)
        code = await _wait(pid, request.get("timeout", 10.0))
        os.set_blocking(read, False)
        try:
            output = os.read(read, EXEC_OUTPUT_LIMIT).decode(errors="replace")
        except BlockingIOError:
            output = ""
        os.close(read)
        return {"failure": "timeout", "output": output} if code is None else {"code": code, "output": output}

    async def exec_to_files(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a command for as long as it takes; what it writes goes to two files."""
        container, spec = self.containers.get(request["id"]), self.specs.get(request["id"])
        if container is None or spec is None or container.finished_at is not None:
            return {"failure": "the container does not run"}
        out, err = (os.open(request[name], os.O_WRONLY) for name in ("out", "err"))
        try:
            pid = spawn.start_in(spec, container.pid, request["argv"], self.mode, out, err)
        except spawn.StartError as error:
            return {"failure": str(error)}
        finally:
            os.close(out)
            os.close(err)
        return {"code": await _wait(pid, None)}

    async def forget(self, request: dict[str, Any]) -> dict[str, Any]:
        self.containers.pop(request["id"], None)
        self.specs.pop(request["id"], None)
        return {}


async def _wait(pid: int, timeout: float | None) -> int | None:
    """The exit code of a child, or None if it had to be killed after `timeout` seconds."""
    handle = os.pidfd_open(pid)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, ended.set)
    late = False
    try:
        await asyncio.wait_for(ended.wait(), timeout)
    except TimeoutError:
        late = True
        os.killpg(pid, signal.SIGKILL)
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # noqa: ASYNC222 - it has ended
    return None if late else code


async def run(directory: Path, node_mark: str, mode: sandbox.Mode, imports: Sequence[str]) -> None:
    runtime = Runtime(directory, node_mark, mode, imports)
    server = await asyncio.start_unix_server(
        runtime.serve, sock=listen_unix(directory / "runtime.sock"), limit=4 * 1024 * 1024
    )
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--mark", required=True)
    parser.add_argument("--mode", choices=["auto", *sandbox.Mode], default="auto")
    parser.add_argument("--imports", nargs="*", default=())
    arguments = parser.parse_args()
    mode = sandbox.probe() if arguments.mode == "auto" else sandbox.Mode(arguments.mode)
    asyncio.run(run(arguments.dir, arguments.mark, mode, arguments.imports))


if __name__ == "__main__":
    main()
