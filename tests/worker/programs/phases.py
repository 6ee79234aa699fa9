"""Several worlds, one after another, with a single import of torch: each phase is a fork.

The parent never initialises torch.distributed, so that a child starts like a fresh process. Each phase has its own
store, like each generation.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable


def run_phase(
    number: int, size: int, action: Callable[[], object], kill_when: Callable[[], bool] | None = None
) -> None:
    """Run `action` in a world of `size`; further ranks skip this phase.

    With `kill_when`, the child gets SIGKILL as soon as that is true.
    """
    if int(os.environ["RANK"]) >= size:
        return
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(150, exit=True)  # a child that hangs says where
        os.environ |= {
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_PORT": os.environ["GANG_PORTS"].split(",")[number],
            "TORCHELASTIC_RESTART_COUNT": str(number),
        }
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    if kill_when is not None:
        import time

        while not kill_when() and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has ended: its peer was killed first
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"phase {number} ended with status {status}")
