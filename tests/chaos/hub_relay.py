"""A relay in front of the hub that can drop packets: silence without a reset, for some connections or for all.

It runs in a separate thread. A muted connection stays open on both sides, and no bytes pass in either direction; if all
are muted, new connections are too. It can also deliver every message twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any


class HubRelay:
    def __init__(self, hub_port: int) -> None:
        self.hub_port = hub_port  # of connections that are made from now on
        self._muted: set[int] = set()
        self._mute_new = False
        self._count = 0
        self.port = 0
        self.twice = False  # of connections that are made from now on: every text message, in both directions
        self.repeated = 0

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def mute(self, share: float = 1.0) -> int:
        """Mute this share of the connections, at least one; with all of them, also new ones. Return how many."""
        chosen = sorted(self._live)[: max(1, round(share * len(self._live)))]
        self._muted |= set(chosen)
        self._mute_new = share >= 1.0
        return len(chosen)

    def heal(self) -> None:
        """New connections work; connections that lost bytes are closed."""
        self._mute_new = False
        muted, self._muted = self._muted, set()
        for number in muted:
            for task in self._live.get(number, ()):
                self._loop.call_soon_threadsafe(task.cancel)

    async def _open(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._live: dict[int, tuple[asyncio.Task[None], ...]] = {}
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        for listener in self._server.sockets:  # those who are let in while a server closes are left open by asyncio
            self._loop.remove_reader(listener.fileno())
        await asyncio.sleep(0.05)
        self._server.close()
        rest = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)  # aborted transports need a turn of the loop to be gone

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self._count += 1
        number = self._count
        if self._mute_new:
            self._muted.add(number)
        try:
            source = writer.get_extra_info("peername")[0]  # the hub tells its peers apart by their addresses
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.hub_port, local_addr=(source, 0))
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(far_writer)
        copy = self._repeat if self.twice else self._copy
        both = (
            asyncio.create_task(copy(number, reader, far_writer)),
            asyncio.create_task(copy(number, far_reader, writer)),
        )
        self._live[number] = both
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._live[number]
            for task in both:
                task.cancel()
            for end in (writer, far_writer):
                end.transport.abort()
                self._writers.discard(end)

    async def _copy(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if number not in self._muted:
                    writer.write(data)
                    await writer.drain()

    async def _repeat(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        """As `_copy`, frame by frame."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            writer.write(await reader.readuntil(b"\r\n\r\n"))
            while True:
                frame = await _read_frame(reader)
                is_text = frame[0] & 0x0F == 1
                self.repeated += is_text
                if number not in self._muted:
                    writer.write(frame + frame if is_text else frame)
                    await writer.drain()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    """One WebSocket frame as it came, mask and all."""
    head = await reader.readexactly(2)
    length, masked = head[1] & 0x7F, head[1] >> 7
    more = await reader.readexactly({126: 2, 127: 8}.get(length, 0))
    size = int.from_bytes(more, "big") if more else length
    return head + more + await reader.readexactly(4 * masked + size)
