"""`kubectl elasticjob`: show and control ElasticJobs from a terminal.

Exit codes: 0 success; 1 the job failed, or the awaited condition did not occur; 2 a usage error, or a named object does
not exist. A user error is one line on stderr and never a traceback.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from types import ModuleType


def main() -> None:
    """The console script, installed as a kubectl plugin."""
    # Imports and long lists make many objects and hardly any garbage: looking for it takes a fifth of the CPU time.
    gc.set_threshold(500_000)
    try:
        import rich  # noqa: F401 - every command but help needs it

        from elasticjob_operator.cli.root import run
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "click"):
            raise
        print(f"error: {error.name} is not installed: pip install 'elasticjob-operator[cli]'", file=sys.stderr)
        sys.exit(2)
    skip_unused_clients()
    # An API server keeps what is nested 10,000 deep: such a job of somebody's must not hide all others.
    sys.setrecursionlimit(12_000)
    code = run(sys.argv[1:], load_without_certificates)
    gc.freeze()  # a process that ends looks for garbage several times, which takes a tenth of the CPU time
    sys.exit(code)


def skip_unused_clients() -> None:
    """Let parts of `kubernetes.aio` be imported without what the packages around them import.

    These are the synchronous client, and clients that discover resources, with all that they need: a third of the CPU
    time until a command does something. Only for a process that is nobody else's.
    """
    for name in ("kubernetes", "kubernetes.aio"):
        found = importlib.util.find_spec(name) if name not in sys.modules else None
        if found is not None:
            sys.modules[name] = importlib.util.module_from_spec(found)


def load_without_certificates(module: str) -> ModuleType:
    """Import a module, and aiohttp with it, whose default for TLS then trusts no certificate.

    aiohttp reads those of the machine twice when it is imported, which takes a sixth of the CPU time until a command
    does something. No connection of a command uses that default: `rest` gives each the trust of its kubeconfig. Only
    for a process that is nobody else's.
    """
    before = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    os.environ.update(dict.fromkeys(before, os.devnull))
    try:
        return importlib.import_module(module)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
