"""A wrong clock for one process: Python imports this module first in a process whose PYTHONPATH has this folder.

The file named by WRONG_CLOCK has the seconds by which the clock is ahead, and may change. TLS checks certificates with
the right clock all the same, and `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC` are as they are: nobody sets those.
"""

import datetime
import os
import time
from pathlib import Path
from typing import Any

_FILE = Path(os.environ["WRONG_CLOCK"])
_real_time = time.time
_real_datetime: Any = datetime.datetime


def _read_time() -> float:
    return _real_time() + float(_FILE.read_text())


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _real_datetime)


class _Datetime(datetime.datetime, metaclass=_Kind):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _real_datetime.fromtimestamp(_read_time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return _real_datetime.fromtimestamp(_read_time(), datetime.UTC).replace(tzinfo=None)


time.time = _read_time
time.time_ns = lambda: int(_read_time() * 1e9)
datetime.datetime = _Datetime  # type: ignore[misc]
