"""`elasticjob-run`: takes torchrun's arguments and `PET_*` variables, and runs the agent of `elasticjob.agent`.

The import of torch is most of a start, and agent and worker both need it. So the worker's interpreter is started
before this process imports torch itself: nothing that needs torch may be imported here at the top.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence

from elasticjob import env, warm


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    pool = warm.Pool(count_early(arguments, os.environ))
    pool.refill(time.monotonic())
    try:
        from elasticjob import launcher

        launcher.main(arguments, pool)
    finally:
        pool.close()


def count_early(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """How many workers can be prepared before torch has read the arguments: 0 where none would be used.

    A number per node that only torch can find out, such as `gpu`, counts as one: the agent starts the others.
    """
    options = [argument.replace("_", "-") for argument in arguments if argument.startswith("--")]
    plain = any(option in ("--standalone", "--no-python", "--help") for option in options) or "-h" in arguments[:1]
    if not env.has_hub(environ) or not warm.is_enabled(environ) or plain or environ.get("PET_NO_PYTHON"):
        return 0
    number = environ.get("PET_NPROC_PER_NODE", "1")
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, inline = option.partition("=")
        if name.replace("_", "-") == "--nproc-per-node":
            number = inline or value
        elif not name.startswith("-"):
            break  # the script, or an option's value: what comes later is not ours for certain
    return int(number) if number.isdigit() else 1


if __name__ == "__main__":
    main()
