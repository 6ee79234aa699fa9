"""A node's connection to the API server: a relay that can be cut.

A cut drops and closes nothing: bytes stop, like in a network partition, and continue when it is healed. This needs no
privileges, since only the node's own connections run through it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

CHUNK: Final = 256 * 1024


class Relay:
    def __init__(self, host: str, port: int, *, listen: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._listen = listen
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._listen, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def is_cut(self) -> bool:
        return not self._open.is_set()

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with contextlib.closing(writer):
            await self._open.wait()
            try:
                far_reader, far_writer = await asyncio.open_connection(*self._target)
            except OSError:
                return
            both = (
                asyncio.create_task(self._copy(reader, far_writer)),
                asyncio.create_task(self._copy(far_reader, writer)),
            )
            with contextlib.closing(far_writer):
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for copy in both:
                        copy.cancel()
                    await asyncio.gather(*both, return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
