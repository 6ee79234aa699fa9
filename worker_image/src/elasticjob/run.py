"""`elasticjob-run`: takes torchrun's arguments and `PET_*` variables, and joins the ElasticJob of its pod.

The import of torch is most of a start, and agent and worker both need it: it is imported once, then the process from
which the workers come is forked, before anything else happens here.
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
