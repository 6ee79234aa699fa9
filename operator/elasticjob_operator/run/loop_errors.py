"""What the event loop reports outside of any task, in the log.

uvloop reports each TLS connection that was closed while it had an answer to write, with a traceback. Whoever connects,
or a slow API server, could fill the log with them, and nothing is wrong.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

logger = logging.getLogger(__name__)

_TLS: Final = "Fatal error on SSL protocol"
_CLOSED: Final = "the handler is closed"


def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The loop's exception handler."""
    error = context.get("exception")
    if context.get("message") == _TLS and isinstance(error, RuntimeError) and str(error).endswith(_CLOSED):
        logger.debug("a TLS connection ended early: %s", error)
    else:
        loop.default_exception_handler(context)
