"""Startup, readiness and liveness probes: one task each, exec, httpGet or tcpSocket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

Raw = Mapping[str, Any]
Exec = Callable[[list[str], float], Awaitable[tuple[bool, str]]]


@dataclass(frozen=True)
class Thresholds:
    """The numbers of consecutive results that change the verdict."""

    success: int
    failure: int


@dataclass(frozen=True)
class Tally:
    """Consecutive results, and the verdict so far; `judge` is pure."""

    healthy: bool
    successes: int = 0
    failures: int = 0

    def judge(self, ok: bool, limits: Thresholds) -> Tally:
        successes, failures = (self.successes + 1, 0) if ok else (0, self.failures + 1)
        healthy = self.healthy
        if ok and successes >= limits.success:
            healthy = True
        if not ok and failures >= limits.failure:
            healthy = False
        return Tally(healthy, successes, failures)


def find_port(container: Raw, port: str | int) -> int:
    """A port number, from a number or the name of a container port."""
    if isinstance(port, int):
        return port
    for declared in container.get("ports") or ():
        if declared.get("name") == port:
            return int(declared["containerPort"])
    return int(port)


async def check(probe: Raw, container: Raw, pod_ip: str, execute: Exec) -> tuple[bool, str]:
    """One attempt: whether it succeeded, and the message if not."""
    timeout = float(probe.get("timeoutSeconds") or 1)
    if "exec" in probe:
        return await execute(list(probe["exec"].get("command") or ()), timeout)
    try:
        if "httpGet" in probe:
            return await _http(probe["httpGet"], container, pod_ip, timeout)
        if "tcpSocket" in probe:
            action = probe["tcpSocket"]
            host, port = action.get("host") or pod_ip, find_port(container, action["port"])
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout)
            writer.close()
            return True, ""
    except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
        return False, f"{type(error).__name__}: {error}"
    return True, ""  # an unsupported kind of probe must not fail the pod


async def _http(action: Raw, container: Raw, pod_ip: str, timeout: float) -> tuple[bool, str]:
    host, port = action.get("host") or pod_ip, find_port(container, action["port"])
    scheme = (action.get("scheme") or "HTTP").lower()
    url = f"{scheme}://{host}:{port}/{(action.get('path') or '').lstrip('/')}"
    headers = {h["name"]: h["value"] for h in action.get("httpHeaders") or ()}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session,
        session.get(url, headers=headers, ssl=False, allow_redirects=False) as response,
    ):
        return 200 <= response.status < 400, f"HTTP probe failed with statuscode: {response.status}"


async def watch(
    probe: Raw,
    container: Raw,
    pod_ip: str,
    execute: Exec,
    *,
    healthy: bool,
    on_change: Callable[[bool, str], None],
    until_healthy: bool = False,
) -> None:
    """Probe until cancelled, or for a startup probe until the first success; report each change of the verdict."""
    limits = Thresholds(int(probe.get("successThreshold") or 1), int(probe.get("failureThreshold") or 3))
    period = float(probe.get("periodSeconds") or 10)
    tally = Tally(healthy)
    await asyncio.sleep(float(probe.get("initialDelaySeconds") or 0))
    while True:
        ok, message = await check(probe, container, pod_ip, execute)
        before, tally = tally, tally.judge(ok, limits)
        failed = not ok and tally.failures == limits.failure
        if tally.healthy != before.healthy or failed:
            on_change(tally.healthy, message)
        if until_healthy and tally.healthy:
            return
        with contextlib.suppress(TimeoutError):
            # A startup probe that has not succeeded yet is retried sooner, since the pod waits for it.
            await asyncio.sleep(period if tally.healthy or not until_healthy else min(period, 1.0))
