"""`elasticjob-run`: takes torchrun's arguments and `PET_*` variables, and joins the ElasticJob of its pod.

Importing torch takes most of the start-up time, and both agent and worker need it: it is imported once, and the standby
from which workers are forked is forked before anything else happens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from elasticjob.launch import fork_server, process

HELP = """\
usage: elasticjob-run [OPTIONS] SCRIPT [ARGUMENTS]

Run SCRIPT as the workers of this pod of an ElasticJob. In any other place it is torchrun.

  elasticjob-run train.py --epochs 10
  elasticjob-run -m package.train
  elasticjob-run --standalone --nproc-per-node 2 train.py     without an ElasticJob

The options are those of torchrun: `torchrun --help` lists them. In an ElasticJob none is needed: the operator sets the
number of nodes and processes, the restarts and the rendezvous as PET_* variables of the pod.

variables:
  ELASTICJOB_WARM_START=0     start each worker as a new interpreter, not by a fork that has imported torch
  ELASTICJOB_PRELOAD=0        import nothing but torch before that fork
  ELASTICJOB_IN_PROCESS=0     do not let a session keep its process from one world to the next"""


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["--help"], ["-h"]):
        print(HELP)  # torchrun's own takes as long as the import of torch
        return
    inherited = process.find_inherited()
    process.pause_collection()
    from elasticjob import launcher

    process.freeze()
    server = fork_server.ForkServer()
    if fork_server.is_wanted(arguments, os.environ):
        server.fork(arguments, inherited)  # outside of every `try`: a worker returns from here as the user's script
    process.resume_collection()
    try:
        launcher.main(arguments, server)
    finally:
        server.close()


if __name__ == "__main__":
    main()
