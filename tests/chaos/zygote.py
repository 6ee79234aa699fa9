"""A process that has imported the operator and forks one on request: an operator within milliseconds.

Importing everything costs more than a second of CPU time, and the crash tests start hundreds of operators. Each line on
stdin is {"argv": [...], "log": path}; the response is the child's process ID. Children die by signals like any other
process. With ELASTICJOB_PACKAGE set, that folder's operator package is imported, which is how mutants run.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    package = os.environ.get("ELASTICJOB_PACKAGE")
    if package:
        sys.path.insert(0, package)
    import elasticjob_operator.__main__ as operator

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel; the parent asks pidfds
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(operator, order)
        print(pid, flush=True)


def _become(operator: object, order: dict[str, object]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing outlives the tests
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(str(order["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    code = 1
    try:
        operator.main(order["argv"], standalone_mode=True)  # type: ignore[attr-defined]
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
