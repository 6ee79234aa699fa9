"""The single version of all parts of a release, defined in `elasticjob_operator/__init__.py`.

The distributions read it from their packages; the chart, the examples and the Dockerfiles contain it. After an edit of
that line, `make generate` writes it everywhere, and `make check` reports differences.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "operator/elasticjob_operator/__init__.py"
PLACES: Final = (
    "worker_image/src/elasticjob/__init__.py",
    "devcluster/elasticjob_devcluster/__init__.py",
    "manifests/chart/elasticjob/Chart.yaml",
    "manifests/examples/*.yaml",
    "Dockerfile",
    "worker_image/Dockerfile",
    "tests/integration/next_build/Dockerfile",
    "docs/install.md",
    "docs/transcript.md",
)
_STATED: Final = re.compile(
    r'^(__version__ = "|ARG VERSION=|version: |appVersion: "|ElasticJob (?=\d))[\w.+-]+'
    r"|(?<=\belasticjob/)(operator:|runtime:|worker:)[\w.+-]+",
    re.MULTILINE,
)


def read_version() -> str:
    """The version of this tree, as major.minor.patch."""
    found = re.search(r'^__version__ = "(\d+\.\d+\.\d+)"$', SOURCE.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f'{SOURCE.relative_to(ROOT)}: write the version as __version__ = "1.2.3"')
    return found[1]


def set_version(text: str, version: str) -> str:
    """The text with this version in all places that state one."""
    return _STATED.sub(lambda match: f"{match[1] or match[2]}{version}", text)


def generate() -> dict[Path, str]:
    """Every file that states the version, with its required content."""
    version = read_version()
    paths = [path for place in PLACES for path in sorted(ROOT.glob(place))]
    return {path: set_version(path.read_text(), version) for path in paths}
