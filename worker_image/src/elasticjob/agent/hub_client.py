"""The connection to the operator's hub: one background thread sends this agent's state and receives directives.

It guarantees that the hub gets the latest complete state, that a broken connection is reopened (at once, then with
exponential back-off), and that `on_change` gets a complete `HubView` after every change. It decides nothing about
training: while the hub is away, the last directive stays in force. Every method is safe to call from any thread.
"""

from __future__ import annotations

import asyncio
import collections
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
from elasticjob.agent.hub_socket import (
    OPEN_SECONDS,
    HubBusyError,
    HubError,
    UnknownPodError,
    explain,
    is_sent_away,
    open_socket,
    parse,
)
from elasticjob.env import Settings
from elasticjob.protocol import directives, wire
from elasticjob.protocol.preflight import Probe

logger = logging.getLogger("elasticjob")

_TIMEOUT = asyncio.TimeoutError  # Python 3.10 has one of its own
# Seconds of refusals before giving up. The API server may be slow to accept a new token, and an operator that has just
# started, or serves thousands of jobs, slower to learn of a new pod.
_REFUSED_FOR_GOOD = 3.0
_UNKNOWN_FOR_GOOD = 60.0
_MALFORMED = "malformed"  # the code of a refusal
PROGRESS_SECONDS = 1.0  # between two messages of it
_STRIKES = 2  # refusals of a kind of message after which it is not sent any more
_GOOD_CONNECTION = 1.0  # seconds after which a lost connection does not count as a failed attempt


class Hub:
    """Represents this agent at the hub. Call `start` once, `publish` at every change, and `close` at the end."""

    def __init__(
        self,
        settings: Settings,
        runtime: dict[str, str],
        state: wire.AgentState,
        on_change: Callable[[HubView], None],
    ) -> None:
        """`on_change` is called in the background thread."""
        self._settings = settings
        self._runtime = runtime
        self._on_change = on_change
        self._agent = str(uuid.uuid4())
        self._view = HubView()
        self._changed = threading.Condition()
        self._state = state
        self._published = 0  # number of states published so far ...
        self._sent = -1  # ... and the number of the last one sent
        self._progress: wire.Progress | None = None
        self._diagnoses: list[str] = []
        self._said: set[str] = set()  # kinds of messages with a script's words that were sent over this connection
        self._strikes: collections.Counter[str] = collections.Counter()  # by kind: connections that ended for it
        self._closing = False
        self._sent_away = False  # whether the hub itself has ended the last connection, and so that of all agents
        self._wake: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="elasticjob-hub", daemon=True)

    # Used by the rest of the agent.

    def start(self) -> None:
        self._thread.start()

    def publish(self, state: wire.AgentState) -> None:
        """Set the state of this agent. It is sent at once, or after the next reconnect."""
        with self._changed:
            self._state = state
            self._published += 1
            self._changed.notify_all()
        self._wake_loop()

    def report(self, progress: wire.Progress) -> None:
        """Set the latest progress. At most one message a second is sent, but the first of a world at once, and always
        before a new state.
        """
        with self._changed:
            self._progress = progress
        self._wake_loop()

    def diagnose(self, generation: int, kind: str, text: str) -> None:
        """Send a diagnosis for the operator's log. Only the last four that could not be sent yet are kept."""
        with self._changed:
            self._diagnoses.append(wire.diagnosis(generation, kind, text))
            del self._diagnoses[:-4]
        self._wake_loop()

    def flush(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until the latest published state has been sent; False if it was not."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._sent >= self._published or self._view.fatal is not None, timeout
            )

    def close(self) -> None:
        """Disconnect. A published state that has not been sent is lost: call `flush` first."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._loop is not None and self._task is not None:
            self._call(self._loop, self._task.cancel)  # it may wait for a hub that does not answer
        if self._thread.is_alive():
            self._thread.join(5.0)

    # The background thread.

    def _update_view(self, **changes: Any) -> None:
        """Change fields of the view, and notify `on_change`."""
        with self._changed:
            self._view = replace(self._view, **changes)
            self._changed.notify_all()
        self._on_change(self._view)

    def _wake_loop(self) -> None:
        if self._loop is not None and self._wake is not None:
            self._call(self._loop, self._wake.set)

    @staticmethod
    def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
        try:
            loop.call_soon_threadsafe(function)
        except RuntimeError:
            logger.debug("the hub thread has ended")

    def _run(self) -> None:
        try:
            asyncio.run(self._keep_connected())
        except asyncio.CancelledError:
            logger.debug("the agent has ended")
        except Exception as error:  # pass it on: the agent would wait for ever
            logger.exception("The hub thread failed.")
            self._give_up(f"the hub connection failed: {error!r}")

    async def _keep_connected(self) -> None:
        self._loop, self._wake, self._task = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()
        attempt, refused_since = 0, None
        while not self._closing:
            began, busy = time.monotonic(), False
            try:
                await self._run_connection()
            except HubError as error:
                refused_since = refused_since or began
                self._update_view(rejected=True)
                patience = _UNKNOWN_FOR_GOOD if isinstance(error, UnknownPodError) else _REFUSED_FOR_GOOD
                if self._view.welcome is not None or time.monotonic() - refused_since < patience:
                    self._note_problem(str(error))
                else:
                    self._give_up(str(error))
            except (OSError, ssl.SSLError, _TIMEOUT) as error:
                refused_since, busy = None, isinstance(error, HubBusyError)
                self._note_problem(f"no connection to {self._settings.hub_url}: {error or type(error).__name__}")
            if self._view.fatal is not None:
                return
            if time.monotonic() - began > _GOOD_CONNECTION and self._view.welcome is not None:
                attempt = 0
            spread = 0.0 if self._view.welcome is None else self._view.welcome.reconnect_seconds
            fraction = random.random()  # noqa: S311 - spreads load
            await self._pause(directives.backoff(attempt, fraction, spread, sent_away=self._sent_away, busy=busy))
            attempt += 1

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; return early on `close`."""
        until = time.monotonic() + seconds
        while not self._closing and (left := until - time.monotonic()) > 0:
            await self._woken(left)

    async def _woken(self, timeout: float | None) -> None:
        """Wait until there is something to send, or for `timeout` seconds."""
        assert self._wake is not None
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((woken,), timeout=timeout)  # before Python 3.12, wait_for may lose a cancellation
        finally:
            woken.cancel()
        self._wake.clear()

    def _note_problem(self, text: str) -> None:
        if text != self._view.problem:
            logger.warning("elasticjob: %s; retrying. Training continues meanwhile.", text)
        self._update_view(problem=text)

    def _give_up(self, text: str) -> None:
        self._update_view(fatal=text, connected=False)

    async def _run_connection(self) -> None:
        """Open one connection and serve it until it ends."""
        from websockets.exceptions import WebSocketException

        self._sent_away = False
        self._said.clear()
        try:
            socket = await open_socket(self._settings)
        except WebSocketException as error:
            raise explain(error, self._settings) from None
        try:
            welcome = await self._exchange_hello(socket)
            self._update_view(welcome=welcome, connected=True, problem=None, rejected=False)
            await self._serve_connection(socket, welcome)
        except WebSocketException as error:
            raise ConnectionError(f"the hub closed the connection ({error})") from None
        finally:
            self._sent_away = is_sent_away(socket)
            self._update_view(connected=False)
            await asyncio.wait_for(socket.close(), 2.0)

    async def _exchange_hello(self, socket: Any) -> wire.Welcome:
        with self._changed:
            published, state = self._published, self._state
        peers = self._settings.checkpoints is not None or self._settings.preflight == "Network"
        await socket.send(wire.hello(self._agent, self._runtime, state, peers=peers))
        message = parse(await asyncio.wait_for(socket.recv(), OPEN_SECONDS))
        if isinstance(message, wire.Refusal):
            self._refused(message)
        if not isinstance(message, wire.Welcome):
            raise HubError("the hub did not answer `hello` with `welcome`; is ELASTICJOB_HUB_URL a hub?")
        with self._changed:
            self._sent = max(self._sent, published)
        return message

    def _refused(self, refusal: wire.Refusal) -> None:
        self._give_up(f"the hub refuses this pod ({refusal.code}): {refusal.message}")
        raise HubError(refusal.message)

    def _drop_said(self, refusal: wire.Refusal) -> None:
        """Raises ConnectionError if the refused message may be one that carries a script's words or numbers.

        Training does not depend on it, and it is not sent again. If it was the agent's state after all, the hub refuses
        the next hello, which carries the state too.
        """
        if refusal.code != _MALFORMED or not self._said:
            return
        self._strikes.update(self._said)
        raise ConnectionError(
            f"the hub does not accept the script's {' or '.join(sorted(self._said))}: {refusal.message}"
        )

    def _may_say(self, kind: str) -> bool:
        """Whether to send a message of this kind: each that is refused costs the connection."""
        if self._strikes[kind] >= _STRIKES:
            return False
        self._said.add(kind)
        return True

    async def _serve_connection(self, socket: Any, welcome: wire.Welcome) -> None:
        tasks = [
            asyncio.ensure_future(self._receive(socket)),
            asyncio.ensure_future(self._send_changes(socket)),
            asyncio.ensure_future(self._ping(socket, welcome)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _receive(self, socket: Any) -> None:
        async for text in socket:
            message = parse(text)
            if isinstance(message, wire.Refusal):
                self._drop_said(message)
                self._refused(message)
            elif isinstance(message, wire.World | wire.Regroup | wire.Stop | Probe):
                self._update_view(directive=message)

    async def _send_changes(self, socket: Any) -> None:
        next_progress, generation = 0.0, 0
        while not self._closing:
            now = time.monotonic()
            with self._changed:
                published, state = self._published, self._state
                changed = published > self._sent
                diagnoses, self._diagnoses = self._diagnoses, []
                # Before a state, which may be the last that the hub hears of this agent, or of these workers.
                waiting = self._progress
                stepped = waiting.generation if waiting is not None and waiting.step is not None else 0
                progress = waiting if changed or now >= next_progress or stepped > generation else None
                if progress is not None:
                    self._progress = None
            if progress is not None and self._may_say("progress"):
                await socket.send(wire.progress(progress))
                next_progress, generation = now + PROGRESS_SECONDS, max(generation, stepped)
            if changed:
                await socket.send(wire.state(state))
                with self._changed:
                    self._sent = max(self._sent, published)
                    self._changed.notify_all()
            for text in diagnoses:
                if self._may_say("diagnosis"):
                    await socket.send(text)
            await self._woken(max(0.01, next_progress - now) if self._progress is not None else None)

    async def _ping(self, socket: Any, welcome: wire.Welcome) -> None:
        """Ping the hub. Raises ConnectionError or TimeoutError if the hub is silent or this process was paused."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(welcome.heartbeat_seconds)
            if directives.was_paused(time.monotonic() - before, welcome.timeout_seconds):
                raise ConnectionError("this process was paused; reconnecting to the hub")
            pong = await socket.ping()
            if not (await asyncio.wait((pong,), timeout=welcome.timeout_seconds))[0]:
                raise _TIMEOUT
            pong.result()  # raises if the connection is closed
