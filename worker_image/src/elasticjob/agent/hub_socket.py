"""One WebSocket to the hub: how it is opened, and what a refusal means."""

from __future__ import annotations

import inspect
import ssl
from typing import Any

from elasticjob.env import Settings
from elasticjob.protocol import wire

OPEN_SECONDS = 10.0


class HubError(Exception):
    """The hub refused us for a reason that trying again does not mend."""


async def open_socket(settings: Settings) -> Any:
    """A connection that the hub has accepted. Raises HubError, OSError, or what `explain` explains."""
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
        "ping_interval": None,  # ours follow the hub's heartbeatSeconds
        "max_size": wire.MAX_HUB_MESSAGE_BYTES,
        "compression": None,
    }
    if "proxy" in inspect.signature(client.connect.__init__).parameters:
        options["proxy"] = None  # the hub is in the cluster; a proxy for the outside must not see this
    if settings.hub_url.startswith("wss://"):
        ca_file = settings.ca_file
        options["ssl"] = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    return await client.connect(settings.endpoint, **options)


def parse(text: str | bytes) -> wire.Welcome | wire.Directive | wire.Refusal:
    """What the hub says. Raises HubError where it speaks another language."""
    try:
        return wire.parse(text)
    except wire.WireError as error:
        raise HubError(str(error)) from None


def explain(error: Exception, settings: Settings) -> Exception:
    """What a refused upgrade means. Only 401 and 403 may be for good; the rest is worth another try."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return HubError(
            f"the hub does not accept the token in {settings.token_file} (401). It must be a service-account"
            " token of this pod with audience elasticjob.dev; check the projected volume."
        )
    if status == 403:
        return HubError("the hub does not know this pod as a worker of an ElasticJob (403).")
    return ConnectionError(f"the hub did not accept the connection ({error})")
