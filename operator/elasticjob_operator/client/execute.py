"""Runs a command in a pod through the API server's exec channel.

The exit code arrives as a metav1.Status on a separate channel. If exec is not possible, `ExecUnavailableError` lets the
caller use another way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from kubernetes.aio.stream import WsApiClient

from elasticjob_operator import numerals
from elasticjob_operator.client import errors
from elasticjob_operator.client.connection import Connection
from elasticjob_operator.client.model import Pod
from elasticjob_operator.rest.request import path_of

STDOUT: Final = 1
STDERR: Final = 2
_ERROR_CHANNEL: Final = 3
_PATIENCE: Final = 30.0
_MOST_LOOKS: Final = 200
_MOST_OUTPUT: Final = 16 * 2**20  # bytes


class ExecUnavailableError(errors.ClientError):
    """Exec is not possible: no permission, no shell in the image, or no support by the node."""


async def run_in_pod(connection: Connection, namespace: str, pod: Pod, command: list[str]) -> tuple[int, str]:
    """Run the command; return (exit code, output and errors as text). Raises ExecUnavailableError, also if the command
    writes nothing for 30 seconds, or more than 16 MiB.
    """
    output: list[bytes] = []
    left = _MOST_OUTPUT

    def keep(channel: int, data: bytes) -> None:
        nonlocal left
        left -= len(data)
        if left < 0:
            raise ExecUnavailableError(f"exec in pod {pod.name}: it writes more than {_MOST_OUTPUT >> 20} MiB")
        output.append(data)

    code = await stream_in_pod(connection, namespace, pod, command, keep, patience=_PATIENCE)
    return code, b"".join(output).decode("utf-8", "replace")


async def stream_in_pod(
    connection: Connection,
    namespace: str,
    pod: Pod,
    command: list[str],
    on_output: Callable[[int, bytes], object],
    *,
    patience: float | None = None,
) -> int:
    """Run the command, and call `on_output` with STDOUT or STDERR and the bytes as they arrive; return the exit code.

    `patience`: seconds of silence after which to give up. Raises ExecUnavailableError.
    """
    query = [("command", part) for part in command]
    query += [("container", pod.trainer), ("stdout", "true"), ("stderr", "true")]
    api = WsApiClient(connection.configuration)
    verdict = b""
    try:
        call = await api.param_serialize(
            "GET",
            path_of("v1", "pods", namespace, pod.name, "exec"),
            header_params={"sec-websocket-protocol": "v4.channel.k8s.io"},
            auth_settings=["BearerToken"],
        )
        response = await api.request("GET", call[1], query, call[2], _preload_content=False)
        async with response as socket:
            wire = socket.get_extra_info("socket")
            while (frame := await socket.receive(timeout=patience)).type is aiohttp.WSMsgType.BINARY:
                channel, data = frame.data[0], frame.data[1:]
                if channel == _ERROR_CHANNEL:
                    verdict += data
                elif channel in (STDOUT, STDERR) and data:
                    on_output(channel, data)
        await _wait_until_closed(wire)
    except aiohttp.WSServerHandshakeError as error:  # its message repeats the whole command, URL-encoded
        said = f"the API server answered {error.status} {errors.phrase_of(error.status)}".rstrip()
        raise ExecUnavailableError(f"exec in pod {pod.name}: {said}") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ExecUnavailableError(f"exec in pod {pod.name}: {type(error).__name__}") from error
    finally:
        await api.close()
    return exit_code_of(verdict.decode("utf-8", "replace"), pod.name)


async def _wait_until_closed(wire: Any) -> None:
    """TLS says goodbye in later iterations of the loop, which the caller may stop after this."""
    for _ in range(_MOST_LOOKS):
        if wire is None or wire.fileno() == -1:
            return
        await asyncio.sleep(0.01)


def exit_code_of(verdict: str, pod: str) -> int:
    """The exit code in the server's final status. Raises ExecUnavailableError if it has none."""
    try:
        status: dict[str, Any] = json.loads(verdict)
    except ValueError:
        raise ExecUnavailableError(f"exec in pod {pod}: it ended without an exit code") from None
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or []:
        code = numerals.read_count(cause.get("message"), 2**31)
        if cause.get("reason") == "ExitCode" and code is not None:
            return code
    raise ExecUnavailableError(f"exec in pod {pod}: {status.get('message') or 'refused'}")
