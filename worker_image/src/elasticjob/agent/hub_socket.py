"""Opens a WebSocket to the hub, and interprets a refusal."""

from __future__ import annotations

import inspect
import ssl
from typing import Any

from elasticjob.env import Settings
from elasticjob.protocol import wire

OPEN_SECONDS = 10.0


class HubError(Exception):
    """The hub refused this pod for a reason that a retry does not resolve."""


async def open_socket(settings: Settings) -> Any:
    """A connection that the hub has accepted.

    Raises HubError if the token cannot be read, OSError if there is no connection, and WebSocketException, which
    `explain` translates, if the hub refuses the upgrade.
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
    return await client.connect(settings.endpoint, **options)


def parse(text: str | bytes) -> wire.Welcome | wire.Directive | wire.Refusal:
    """Parse a message of the hub. Raises HubError if this version does not understand it."""
    try:
        return wire.parse(text)
    except wire.WireError as error:
        raise HubError(str(error)) from None


def explain(error: Exception, settings: Settings) -> Exception:
    """The exception for a refused upgrade: HubError for 401 and 403, ConnectionError (to be retried) for the rest."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return HubError(
            f"the hub does not accept the token in {settings.token_file} (401). It must be a service-account"
            " token of this pod with audience elasticjob.dev; check the projected volume."
        )
    if status == 403:
        return HubError("the hub does not know this pod as a worker of an ElasticJob (403).")
    return ConnectionError(f"the hub did not accept the connection ({error})")
