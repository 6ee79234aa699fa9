"""Says whether every pinned package is installed in its pinned version. Exit code 1 where not."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

PINS = Path(__file__).resolve().parents[1] / "constraints.txt"


def find_wrong() -> list[str]:
    wrong = []
    for line in PINS.read_text().splitlines():
        name, separator, version = line.partition("==")
        if not separator or name.startswith("#"):
            continue
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # a pin does not ask for its package
        if found.partition("+")[0] != version:
            wrong.append(f"{name} {found} instead of {version}")
    ours = ("elasticjob-operator", "elasticjob-devcluster", "elasticjob")
    for needed in (*ours, "torch", "kopf", "kubernetes", "pydantic", "pytest"):
        try:
            metadata.version(needed)
        except metadata.PackageNotFoundError:
            wrong.append(f"{needed} is missing")
    return wrong


if __name__ == "__main__":
    problems = find_wrong()
    if problems:
        print(f"setup: the environment is not what constraints.txt says: {'; '.join(problems)}", file=sys.stderr)
    sys.exit(bool(problems))
