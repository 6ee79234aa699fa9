"""Opens a WebSocket to the hub, and interprets a refusal."""

from __future__ import annotations

import asyncio
import inspect
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from elasticjob.env import Settings
from elasticjob.protocol import wire

OPEN_SECONDS = 10.0  # for the upgrade: the hub may have to ask the API server about the token
# For TCP. After the operator moved, a Service may still send a connection to a pod that is gone, and sends all packets
# of that connection there. A new connection is what finds the new leader, well within the hub's patience.
CONNECT_SECONDS = 2.0
_AWAY = (1001, 1012)


class HubError(Exception):
    """The hub refused this pod for a reason that a retry does not resolve."""


class UnknownPodError(HubError):
    """The hub does not know this pod, perhaps not yet."""


class HubBusyError(ConnectionError):
    """The hub is there, and asks to be asked again in a moment."""


async def open_socket(settings: Settings) -> Any:
    """A connection that the hub has accepted.

    Raises HubError if the token cannot be read, OSError if there is no connection, TimeoutError if the hub does not
    answer the upgrade, and WebSocketException, which `explain` translates, if it refuses it.
    """
    from websockets.asyncio import client

    try:
        token = settings.token_file.read_text().strip()
    except OSError as error:
        raise HubError(f"the token {settings.token_file} cannot be read: {error.strerror}") from None
    if not token or not token.isascii() or any(letter.isspace() for letter in token):
        raise HubError(f"{settings.token_file} holds no token; check the projected volume")
    options: dict[str, Any] = {
        "additional_headers": {"Authorization": f"Bearer {token}"},
        "open_timeout": OPEN_SECONDS,
        "ping_interval": None,  # `hub_client` pings at the hub's heartbeatSeconds
        "max_size": wire.MAX_HUB_MESSAGE_BYTES,
        "compression": None,
    }
    if "proxy" in inspect.signature(client.connect.__init__).parameters:
        options["proxy"] = None  # the hub is inside the cluster; a proxy for outside traffic must not see the token
    if settings.hub_url.startswith("wss://"):
        ca_file = settings.ca_file
        options["ssl"] = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    connection = await _connect(settings.endpoint)
    try:
        return await client.connect(settings.endpoint, sock=connection, **options)
    except BaseException:
        connection.close()
        raise


async def _connect(url: str) -> socket.socket:
    """A TCP connection to the host of this URL. Raises OSError with the failure at its last address."""
    parts = urlsplit(url)
    assert parts.hostname is not None, "Settings has checked the URL"
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    loop = asyncio.get_running_loop()
    problem = OSError(f"{parts.hostname} has no address")
    # Not by the loop, which has a thread for it: when the process ends, none can be started, and all are waited for.
    for family, kind, protocol, _, address in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await asyncio.wait_for(loop.sock_connect(connection, address), CONNECT_SECONDS)
            return connection
        except asyncio.TimeoutError:  # Python 3.10 has one of its own
            problem = OSError(f"no answer from {address[0]} within {CONNECT_SECONDS:g} s")
        except OSError as error:
            problem = error
        except BaseException:
            connection.close()
            raise
        connection.close()
    raise problem


def parse(text: str | bytes) -> wire.Welcome | wire.Directive | wire.Refusal:
    """Parse a message of the hub. Raises HubError if this version does not understand it."""
    try:
        return wire.parse(text)
    except wire.WireError as error:
        raise HubError(str(error)) from None


def is_sent_away(connection: Any) -> bool:
    """Whether the hub has closed this connection because it stops or does not lead any more: all agents reconnect."""
    closed = connection.protocol.close_rcvd
    return closed is not None and closed.code in _AWAY


def explain(error: Exception, settings: Settings) -> Exception:
    """The exception for a refused upgrade: HubError for 401 and 403, ConnectionError (to be retried) for the rest.

    HubBusyError, a ConnectionError, if the hub says that it will have time soon.
    """
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status == 401:
        return HubError(
            f"the hub does not accept the token in {settings.token_file} (401). It must be a service-account"
            " token of this pod with audience elasticjob.dev; check the projected volume."
        )
    if status == 403:
        return UnknownPodError("the hub does not know this pod as a worker of an ElasticJob (403).")
    problem = f"the hub did not accept the connection ({error})"
    if "Retry-After" in getattr(response, "headers", ()):
        return HubBusyError(problem)
    return ConnectionError(problem)
