"""The `elasticjob` command: `doctor`, `bench`, `verify`, `archive` and `version`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from elasticjob import __version__

_USAGE = """usage: elasticjob COMMAND [options]

commands:
  doctor    check this machine, pod or job, and say what to do about what is wrong
  bench     measure the collectives, and the raw limit below them
  verify    run a script in worlds of several sizes, and say whether it trains the same
  archive   list the saves of an archive, pull one to a folder, push a folder, prune it
  version   print the version

`elasticjob COMMAND --help` explains the options. The launcher is `elasticjob-run`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given[0] if given else "--help"
    if command == "doctor":
        from elasticjob.diagnose.doctor import main as doctor

        return doctor(given[1:])
    if command == "bench":
        from elasticjob.diagnose.bench import main as bench

        return bench(given[1:])
    if command == "verify":
        from elasticjob.diagnose.verify import main as verify

        return verify(given[1:])
    if command == "archive":
        from elasticjob.archive.commands import main as archive

        return archive(given[1:])
    if command in ("version", "--version"):
        sys.stdout.write(__version__ + "\n")
        return 0
    if command in ("--help", "-h", "help"):
        sys.stdout.write(_USAGE)
        return 0
    sys.stderr.write(f"elasticjob: {command!r} is not a command.\n{_USAGE}")
    return 2
