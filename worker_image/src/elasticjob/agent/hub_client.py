"""The connection to the operator's hub: one background thread that says our state and hears directives.

It promises that the hub always hears the latest whole state, that a broken connection is made again (at once,
then with a growing back-off), and that whoever listens is given the whole of what is known of the hub, whenever that
changes. It decides nothing about training: when the hub is away the last directive simply stands. Every method may be
called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elasticjob.agent.events import HubView
from elasticjob.agent.hub_socket import OPEN_SECONDS, HubError, explain, open_socket, parse
from elasticjob.env import Settings
from elasticjob.protocol import directives, wire

logger = logging.getLogger("elasticjob")

_TIMEOUT = asyncio.TimeoutError  # Python 3.10 has one of its own
_REFUSED_FOR_GOOD = 3.0  # seconds; the API server may be slow to know a new token
_GOOD_CONNECTION = 1.0  # seconds after which a connection that ends is no failed attempt


class Hub:
    """Speaks for this agent. `start` it once, `say` what changes, `close` it at the end."""

    def __init__(
        self,
        settings: Settings,
        runtime: dict[str, str],
        state: wire.AgentState,
        on_change: Callable[[HubView], None],
    ) -> None:
        """`on_change` is called in the hub's thread."""
        self._settings = settings
        self._runtime = runtime
        self._on_change = on_change
        self._agent = str(uuid.uuid4())
        self._view = HubView()
        self._changed = threading.Condition()
        self._state = state
        self._said = 0  # counts the states we were given ...
        self._heard = -1  # ... and the last one that went out
        self._progress: wire.Progress | None = None
        self._diagnoses: list[str] = []
        self._closing = False
        self._wake: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="elasticjob-hub", daemon=True)

    # What the rest of the agent uses.

    def start(self) -> None:
        self._thread.start()

    def say(self, state: wire.AgentState) -> None:
        """This is what we do now. It is sent at once, or when the hub is back."""
        with self._changed:
            self._state = state
            self._said += 1
            self._changed.notify_all()
        self._poke()

    def report(self, progress: wire.Progress) -> None:
        """The latest progress; at most one a second is sent."""
        with self._changed:
            self._progress = progress
        self._poke()

    def diagnose(self, generation: int, kind: str, text: str) -> None:
        with self._changed:
            self._diagnoses.append(wire.diagnosis(generation, kind, text))
            del self._diagnoses[:-4]
        self._poke()

    def flush(self, timeout: float) -> bool:
        """Wait until the hub has been sent what was said last."""
        with self._changed:
            return self._changed.wait_for(lambda: self._heard >= self._said or self._view.fatal is not None, timeout)

    def close(self) -> None:
        """Hang up. What was said and not sent is lost: `flush` first."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._poke()
        if self._thread.is_alive():
            self._thread.join(5.0)

    # The thread.

    def _learn(self, **changes: Any) -> None:
        """Something is known of the hub."""
        with self._changed:
            self._view = replace(self._view, **changes)
            self._changed.notify_all()
        self._on_change(self._view)

    def _poke(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is None or wake is None:
            return
        try:
            loop.call_soon_threadsafe(wake.set)
        except RuntimeError:
            logger.debug("the hub thread has ended")

    def _run(self) -> None:
        try:
            asyncio.run(self._keep_connected())
        except Exception as error:  # the agent must hear of it: it would wait for ever
            logger.exception("The hub thread failed.")
            self._give_up(f"the hub connection failed: {error!r}")

    async def _keep_connected(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        attempt, refused_since = 0, None
        while not self._closing:
            began = time.monotonic()
            try:
                await self._speak()
            except HubError as error:
                refused_since = refused_since or began
                self._learn(rejected=True)
                if self._view.welcome is not None or time.monotonic() - refused_since < _REFUSED_FOR_GOOD:
                    self._note_problem(str(error))
                else:
                    self._give_up(str(error))
            except (OSError, ssl.SSLError, _TIMEOUT) as error:
                refused_since = None
                self._note_problem(f"no connection to {self._settings.hub_url}: {error or type(error).__name__}")
            if self._view.fatal is not None:
                return
            if time.monotonic() - began > _GOOD_CONNECTION and self._view.welcome is not None:
                attempt = 0
            await self._pause(directives.backoff(attempt, random.random()))  # noqa: S311 - spreads load
            attempt += 1

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; closing ends it."""
        until = time.monotonic() + seconds
        while not self._closing and (left := until - time.monotonic()) > 0:
            await self._woken(left)

    async def _woken(self, timeout: float | None) -> None:
        """Wait until something is to be sent, or for `timeout` seconds."""
        assert self._wake is not None
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except _TIMEOUT:
            return
        self._wake.clear()

    def _note_problem(self, text: str) -> None:
        if text != self._view.problem:
            logger.warning("elasticjob: %s; trying again. Training goes on meanwhile.", text)
        self._learn(problem=text)

    def _give_up(self, text: str) -> None:
        self._learn(fatal=text, connected=False)

    async def _speak(self) -> None:
        """One connection, from the upgrade to its end."""
        from websockets.exceptions import WebSocketException

        try:
            socket = await open_socket(self._settings)
        except WebSocketException as error:
            raise explain(error, self._settings) from None
        try:
            welcome = await self._introduce(socket)
            self._learn(welcome=welcome, connected=True, problem=None, rejected=False)
            await self._converse(socket, welcome)
        except WebSocketException as error:
            raise ConnectionError(f"the hub hung up ({error})") from None
        finally:
            self._learn(connected=False)
            await asyncio.wait_for(socket.close(), 2.0)

    async def _introduce(self, socket: Any) -> wire.Welcome:
        with self._changed:
            said, state = self._said, self._state
        await socket.send(wire.hello(self._agent, self._runtime, state))
        message = parse(await asyncio.wait_for(socket.recv(), OPEN_SECONDS))
        if isinstance(message, wire.Refusal):
            self._refused(message)
        if not isinstance(message, wire.Welcome):
            raise HubError("the hub did not answer `hello` with `welcome`; is ELASTICJOB_HUB_URL a hub?")
        with self._changed:
            self._heard = max(self._heard, said)
        return message

    def _refused(self, refusal: wire.Refusal) -> None:
        self._give_up(f"the hub refuses this pod ({refusal.code}): {refusal.message}")
        raise HubError(refusal.message)

    async def _converse(self, socket: Any, welcome: wire.Welcome) -> None:
        tasks = [
            asyncio.ensure_future(self._listen(socket)),
            asyncio.ensure_future(self._talk(socket)),
            asyncio.ensure_future(self._beat(socket, welcome)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _listen(self, socket: Any) -> None:
        async for text in socket:
            message = parse(text)
            if isinstance(message, wire.Refusal):
                self._refused(message)
            elif isinstance(message, wire.World | wire.Regroup | wire.Stop):
                self._learn(directive=message)

    async def _talk(self, socket: Any) -> None:
        next_progress = 0.0
        while not self._closing:
            now = time.monotonic()
            with self._changed:
                said, state = self._said, self._state
                changed = said > self._heard
                diagnoses, self._diagnoses = self._diagnoses, []
                progress = self._progress if now >= next_progress else None
                if progress is not None:
                    self._progress = None
            if changed:
                await socket.send(wire.state(state))
                with self._changed:
                    self._heard = max(self._heard, said)
                    self._changed.notify_all()
            for text in diagnoses:
                await socket.send(text)
            if progress is not None:
                await socket.send(wire.progress(progress))
                next_progress = now + 1.0
            await self._woken(max(0.01, next_progress - now) if self._progress is not None else None)

    async def _beat(self, socket: Any, welcome: wire.Welcome) -> None:
        """Ping, and notice a hub that went silent, or that we ourselves were paused."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(welcome.heartbeat_seconds)
            if directives.was_paused(time.monotonic() - before, welcome.timeout_seconds):
                raise ConnectionError("this process was paused; asking the hub again")
            pong = await socket.ping()
            await asyncio.wait_for(pong, welcome.timeout_seconds)
