"""Puts the pages that lie outside of docs/ into the site, and turns links between files into links between pages.

In the repository a link is relative to its file, so that it works on GitHub. README.md becomes the first page.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Path in the repository → path in the site. All else below docs/ keeps its name.
OUTSIDE = {
    "README.md": "index.md",
    "SECURITY.md": "SECURITY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "manifests/chart/elasticjob/values.yaml": "values.yaml",
    "worker_image/examples/launch.ipynb": "launch.ipynb",
    **{f"manifests/examples/{path.name}": path.name for path in (ROOT / "manifests/examples").glob("*.yaml")},
}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def site_path(path: str) -> str:
    """Where the site has what the repository has here."""
    return OUTSIDE.get(path) or path.removeprefix("docs/")


def repository_path(path: str) -> str:
    inside = {site: repository for repository, site in OUTSIDE.items()}
    return inside.get(path) or f"docs/{path}"


def turn_links(markdown: str, page: str) -> str:
    """The page's text with links that fit the site; `page` is its path there."""
    folder = posixpath.dirname(repository_path(page))

    def turn(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        return posixpath.relpath(site_path(target), posixpath.dirname(page) or ".")

    return _LINK.sub(turn, markdown)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = expand_folders(config.nav)
    return config


def expand_folders(nav: Any) -> Any:
    """The navigation with the pages of a folder in place of its name, the README first."""
    if isinstance(nav, list):
        return [expand_folders(entry) for entry in nav]
    if isinstance(nav, dict):
        return {title: expand_folders(entry) for title, entry in nav.items()}
    if not nav.endswith("/"):
        return nav
    pages = sorted((ROOT / "docs" / nav).glob("*.md"), key=lambda path: (path.name != "README.md", path.name))
    return [f"{nav}{path.name}" for path in pages]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for repository, site in OUTSIDE.items():
        files.append(File.generated(config, site, content=(ROOT / repository).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    return turn_links(markdown, page.file.src_uri)
