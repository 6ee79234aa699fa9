"""`python -m benchmarks [--quick]`: every benchmark, one after the other. A failed one does not stop the others."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Sequence

from benchmarks import harness

NAMES = (
    *("runtime", "sessions", "snapshots", "curve", "collectives"),
    *("scoreboard", "demo", "controlplane", "commands", "hub"),
)


def find_module(name: str) -> str:
    """The module whose `main` runs this benchmark: that of the file, or of the folder."""
    spec = importlib.util.find_spec(f"benchmarks.{name}")
    is_folder = spec is not None and spec.submodule_search_locations is not None
    return f"benchmarks.{name}.__main__" if is_folder else f"benchmarks.{name}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=NAMES, help="which of them (default: all)")
    parser.add_argument("--list", action="store_true", help="print their names as JSON")
    known, rest = parser.parse_known_args(argv)
    names = known.only or [name for name in NAMES if importlib.util.find_spec(f"benchmarks.{name}")]
    if known.list:
        print(json.dumps(names))
        return 0
    broken = []
    for name in names:
        harness.say(f"--- {name}")
        try:
            importlib.import_module(find_module(name)).main(rest)
        except KeyboardInterrupt:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and error.code in (0, None):
                continue
            traceback.print_exc(file=sys.stderr)
            broken.append(name)
    if broken:
        harness.say(f"broken: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
