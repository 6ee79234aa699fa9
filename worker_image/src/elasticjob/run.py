"""`elasticjob-run`: takes torchrun's arguments and `PET_*` variables, and runs the agent of `elasticjob.agent`.

The import of torch is most of a start, and agent and worker both need it: it is imported once, then the process from
which the workers come is forked, before anything else happens here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from elasticjob import env, warm


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    from elasticjob import launcher

    nursery = warm.Nursery()
    if wants_standby(arguments, os.environ):
        nursery.fork()  # outside of every `try`: a worker returns from here as the user's script
    try:
        launcher.main(arguments, nursery)
    finally:
        nursery.close()


def wants_standby(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether workers can come from a standby, before torch has read the arguments."""
    options = [argument.replace("_", "-") for argument in arguments if argument.startswith("--")]
    plain = any(option in ("--standalone", "--no-python", "--help") for option in options) or "-h" in arguments[:1]
    return env.has_hub(environ) and warm.is_enabled(environ) and not plain and not environ.get("PET_NO_PYTHON")


if __name__ == "__main__":
    main()
