"""What aiohttp's server logs about requests."""

from __future__ import annotations

import logging

from aiohttp import http_exceptions, web


class _NoGarbage(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, http_exceptions.HttpProcessingError | web.RequestPayloadError)


def quiet_logger(name: str) -> logging.Logger:
    """A logger for aiohttp's server, which logs a traceback and the bytes of every request that is not HTTP.

    Unauthenticated clients must not fill our log, or put their data there. Other errors are logged.
    """
    logger = logging.getLogger(name)
    if not any(isinstance(one, _NoGarbage) for one in logger.filters):
        logger.addFilter(_NoGarbage())
    return logger
