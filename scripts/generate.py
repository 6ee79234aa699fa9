"""Writes every generated file; with --check, lists the stale ones instead (exit code 1)."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def crd() -> dict[Path, str]:
    from elasticjob_operator.api.crd import render_crd

    return {ROOT / "crds/elasticjob.dev_elasticjobs.yaml": render_crd()}


def api_reference() -> dict[Path, str]:
    pages: dict[Path, str] = runpy.run_path(str(ROOT / "scripts/api_reference.py"))["generate"]()
    return pages


def versions() -> dict[Path, str]:
    files: dict[Path, str] = runpy.run_path(str(ROOT / "scripts/versions.py"))["generate"]()
    return files


def manifest() -> dict[Path, str]:
    files: dict[Path, str] = runpy.run_path(str(ROOT / "scripts/render_install.py"))["generate"]()
    return files


def result_tables() -> dict[Path, str]:
    pages: dict[Path, str] = runpy.run_path(str(ROOT / "scripts/result_tables.py"))["generate"]()
    return pages


# The versions come first: the manifest contains the chart's version.
GENERATORS: list[Callable[[], dict[Path, str]]] = [versions, crd, manifest, api_reference, result_tables]


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = 0
    for generator in GENERATORS:
        for path, text in generator().items():
            if path.exists() and path.read_text() == text:
                continue
            stale += 1
            if check:
                print(f"{path.relative_to(ROOT)} is stale: run make generate", file=sys.stderr)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
