"""`kubectl elasticjob`: show and control ElasticJobs from a terminal.

Exit codes: 0 success; 1 the job failed, or the awaited condition did not occur; 2 a usage error, or a named object does
not exist. A user error is one line on stderr and never a traceback.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """The console script, installed as a kubectl plugin."""
    try:
        import rich  # noqa: F401 - every command but help needs it

        from elasticjob_operator.cli.root import run
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "click"):
            raise
        print(f"error: {error.name} is not installed: pip install 'elasticjob-operator[cli]'", file=sys.stderr)
        sys.exit(2)
    skip_the_synchronous_client()
    # An API server keeps what is nested 10,000 deep: such a job of somebody's must not hide all others.
    sys.setrecursionlimit(12_000)
    sys.exit(run(sys.argv[1:]))


def skip_the_synchronous_client() -> None:
    """Let `kubernetes.aio` be imported without its parent, which imports the synchronous client and all it needs.

    That is a quarter of the CPU time until a command does something. Only for a process that is nobody else's.
    """
    found = importlib.util.find_spec("kubernetes")
    if found is not None and "kubernetes" not in sys.modules:
        sys.modules["kubernetes"] = importlib.util.module_from_spec(found)
