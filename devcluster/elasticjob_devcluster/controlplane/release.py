"""Downloads the official Kubernetes release, and verifies each program by its SHA-256.

It is used only if the site responds within a few seconds. etcd comes from `PATH` or Debian's package, since the release
does not contain it. `ELASTICJOB_KUBERNETES_VERSION` selects the version.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from elasticjob_devcluster.controlplane import debian

SITE: Final = "https://dl.k8s.io/release"
DEFAULT_VERSION: Final = "v1.36.2"  # the newest that the suites have run on; docs/install.md says which ones
REACH_SECONDS: Final = 3.0
DOWNLOAD_SECONDS: Final = 300.0


class Unreachable(Exception):  # noqa: N818 - says what happened
    """The release cannot be downloaded from here."""


def version() -> str:
    return os.environ.get("ELASTICJOB_KUBERNETES_VERSION") or DEFAULT_VERSION


def site() -> str:
    return os.environ.get("ELASTICJOB_KUBERNETES_RELEASES") or SITE


def fetch(target: Path, programs: Sequence[str]) -> None:
    """Download the programs into `target`. Raises Unreachable."""
    arch = "arm64" if platform.machine() == "aarch64" else "amd64"
    for program in sorted(programs, key=lambda name: name == "etcd"):  # first check that the site responds
        path = target / program
        if program == "etcd":
            _find_etcd(path)
            continue
        url = f"{site()}/{version()}/bin/linux/{arch}/{program}"
        wanted = _read(f"{url}.sha256", REACH_SECONDS).decode().split()[0]
        print(f"devcluster: downloads {program} {version()}", file=sys.stderr, flush=True)
        content = _read(url, DOWNLOAD_SECONDS)
        found = hashlib.sha256(content).hexdigest()
        if found != wanted:
            raise Unreachable(f"{url}: the checksum is {found}, not {wanted}")
        path.write_bytes(content)
        path.chmod(0o755)


def _find_etcd(path: Path) -> None:
    if installed := shutil.which("etcd"):
        shutil.copy2(installed, path)
        return
    try:
        debian.fetch_etcd(path)
    except debian.BuildFailed as error:
        raise Unreachable(f"no etcd: install it so that it is on PATH ({error})") from error


def _read(url: str, timeout: float) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:  # noqa: S310 - the site above, or the user's
            content: bytes = response.read()
            return content
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise Unreachable(f"{url}: {error}") from error
