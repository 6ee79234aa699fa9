"""What the event loop's own errors become in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from elasticjob_operator.run import loop_errors

CLOSED = RuntimeError(
    "unable to perform operation on <TCPTransport closed=True reading=False 0x1>; the handler is closed"
)


@pytest.mark.parametrize(
    ("context", "told"),
    [
        pytest.param({"message": "Fatal error on SSL protocol", "exception": CLOSED}, 0, id="closed while TLS answers"),
        pytest.param({"message": "Fatal error on SSL protocol", "exception": KeyError("x")}, 1, id="another error"),
        pytest.param({"message": "Task exception was never retrieved", "exception": CLOSED}, 1, id="a task"),
        pytest.param({"message": "something without an exception"}, 1, id="no exception"),
    ],
)
async def test_a_connection_that_ends_early_is_no_error(
    context: dict[str, Any], told: int, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(loop_errors.tell)
    loop.call_exception_handler(context)
    loop.set_exception_handler(None)
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == told
