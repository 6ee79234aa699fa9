"""The limits that keep the layout readable: modules in a folder, lines of a module. Part of `make check`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ("operator/elasticjob_operator", "worker_image/src/elasticjob", "devcluster/elasticjob_devcluster")
MOST_MODULES: Final = 12  # in a folder, its __init__ not counted
MOST_LINES: Final = 300  # of a module


def find_violations(root: Path) -> Iterator[str]:
    """One line for each folder or module below `root` that is beyond a limit."""
    for folder in (root, *sorted(path for path in root.rglob("*") if path.is_dir())):
        modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
        if len(modules) > MOST_MODULES:
            yield f"{folder}: {len(modules)} modules, at most {MOST_MODULES}: split the folder"
        for path in modules:
            lines = len(path.read_text().splitlines())
            if lines > MOST_LINES:
                yield f"{path}: {lines} lines, at most {MOST_LINES}: split the module"


def find_undescribed(root: Path) -> Iterator[str]:
    """Each folder says in its `__init__` what lives there."""
    for folder in sorted(path.parent for path in root.rglob("__init__.py")):
        if not (folder / "__init__.py").read_text().startswith('"""'):
            yield f"{folder}/__init__.py: says nothing: one paragraph on what lives here and what does not"


def main() -> int:
    found = [line for source in SOURCES for line in (*find_violations(ROOT / source), *find_undescribed(ROOT / source))]
    print("\n".join(line.removeprefix(f"{ROOT}/") for line in found) or "layout: within the limits")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
