"""A headless Chromium, driven through its DevTools protocol: go somewhere, ask the page, press keys, take pictures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 120.0
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-port=0", "--window-size=1100,1400", "--hide-scrollbars",
)  # fmt: skip
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Space": (32, " ")}


class Browser:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.complaints: list[str] = []  # errors of scripts, and what the Content-Security-Policy refused
        self.requested: list[str] = []

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async with asyncio.timeout(PATIENCE):
            while True:
                said = json.loads((await self._socket.receive()).data)
                if said.get("id") == self._number:
                    assert "error" not in said, (method, said)
                    return dict(said["result"])
                self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        params = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
        if said.get("method") == "Log.entryAdded" and params["entry"]["source"] in ("security", "javascript"):
            self.complaints.append(params["entry"]["text"])
        if said.get("method") == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    async def enable(self) -> Self:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.ask(f"{domain}.enable")
        return self

    async def open(self, address: str) -> None:
        await self.ask("Page.navigate", url=address)
        await self.until("document.readyState === 'complete' && !!document.getElementById('main')", address)

    async def value(self, expression: str) -> Any:
        result = await self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, (expression, result["exceptionDetails"])
        return result["result"].get("value")

    async def until(self, expression: str, what: str = "", timeout: float = PATIENCE) -> Any:
        """The first true value of the expression. While a page loads, nothing can be asked."""
        found: Any = None
        try:
            async with asyncio.timeout(timeout):
                while not found:
                    with contextlib.suppress(AssertionError):
                        found = await self.value(expression)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.value("document.body ? document.body.innerText : ''")
            raise AssertionError(f"never true: {what or expression}; the page says: {text[:2000]}") from None
        return found

    async def press(self, key: str) -> None:
        code, text = _KEYS[key]
        common = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        await self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    async def type(self, text: str) -> None:
        await self.ask("Input.insertText", text=text)

    async def show_scheme(self, scheme: str) -> None:
        await self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


@contextlib.asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Browser]:
    assert CHROMIUM is not None, "the test is skipped without it"
    profile = directory / "profile"
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as session:
            target = await _find_tab(session, profile / "DevToolsActivePort")
            async with session.ws_connect(target, max_msg_size=0) as socket:
                yield await Browser(socket).enable()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _find_tab(session: aiohttp.ClientSession, written: Path) -> str:
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(OSError, ValueError, IndexError, StopIteration, aiohttp.ClientError):
                port = int(written.read_text().splitlines()[0])
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = await answer.json(content_type=None)
                return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
            await asyncio.sleep(0.1)
