"""`elasticjob-run`: takes torchrun's arguments and `PET_*` variables, and joins the ElasticJob of its pod.

Importing torch takes most of the start-up time, and both agent and worker need it: it is imported once, and the standby
from which workers are forked is forked before anything else happens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from elasticjob.launch import fork_server


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    from elasticjob import launcher

    server = fork_server.ForkServer()
    if fork_server.is_wanted(arguments, os.environ):
        server.fork(arguments)  # outside of every `try`: a worker returns from here as the user's script
    try:
        launcher.main(arguments, server)
    finally:
        server.close()


if __name__ == "__main__":
    main()
