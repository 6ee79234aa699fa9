"""Runs a command in a pod through the API server's exec channel.

The exit code arrives as a metav1.Status on a separate channel. If exec is not possible, `ExecUnavailableError` lets the
caller use another way.
"""

from __future__ import annotations

import json
from typing import Any, Final

import aiohttp
from kubernetes.aio.stream import WsApiClient

from elasticjob_operator.client import errors
from elasticjob_operator.client.connection import Connection
from elasticjob_operator.client.model import Pod
from elasticjob_operator.rest.request import path_of

_ERROR_CHANNEL: Final = 3
_PATIENCE: Final = 30.0


class ExecUnavailableError(errors.ClientError):
    """Exec is not possible: no permission, no shell in the image, or no support by the node."""


async def run_in_pod(connection: Connection, namespace: str, pod: Pod, command: list[str]) -> tuple[int, str]:
    """Run the command; return (exit code, output and errors as text). Raises ExecUnavailableError."""
    query = [("command", part) for part in command]
    query += [("container", pod.trainer), ("stdout", "true"), ("stderr", "true")]
    api = WsApiClient(connection.configuration)
    output: list[str] = []
    verdict = ""
    try:
        call = await api.param_serialize(
            "GET",
            path_of("v1", "pods", namespace, pod.name, "exec"),
            header_params={"sec-websocket-protocol": "v4.channel.k8s.io"},
            auth_settings=["BearerToken"],
        )
        response = await api.request("GET", call[1], query, call[2], _preload_content=False)
        async with response as socket:
            while (frame := await socket.receive(timeout=_PATIENCE)).type is aiohttp.WSMsgType.BINARY:
                channel, data = frame.data[0], frame.data[1:].decode("utf-8", "replace")
                verdict += data if channel == _ERROR_CHANNEL else ""
                output += [data] if channel in (1, 2) else []
    except aiohttp.WSServerHandshakeError as error:  # its message repeats the whole command, URL-encoded
        said = f"the API server answered {error.status} {errors.phrase_of(error.status)}".rstrip()
        raise ExecUnavailableError(f"exec in pod {pod.name}: {said}") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ExecUnavailableError(f"exec in pod {pod.name}: {type(error).__name__}") from error
    finally:
        await api.close()
    return exit_code_of(verdict, pod.name), "".join(output)


def exit_code_of(verdict: str, pod: str) -> int:
    """The exit code in the server's final status. Raises ExecUnavailableError if it has none."""
    try:
        status: dict[str, Any] = json.loads(verdict)
    except ValueError:
        raise ExecUnavailableError(f"exec in pod {pod}: it ended without an exit code") from None
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode" and str(cause.get("message")).isdecimal():
            return int(cause["message"])
    raise ExecUnavailableError(f"exec in pod {pod}: {status.get('message') or 'refused'}")
