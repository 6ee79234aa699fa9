"""Lets a process that has come to the end of its script end without freeing what it has imported, object by object.

That takes three times as long as a forked process needs for anything else. The functions at exit have all been called
by then, for this one is registered before others: import this module first. A script says by `has_ended` that it wants
it.
"""

from __future__ import annotations

import atexit
import os
import sys


def _leave() -> None:
    if getattr(sys.modules["__main__"], "has_ended", False):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


atexit.register(_leave)
