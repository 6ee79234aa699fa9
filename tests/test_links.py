"""Links between the pages of the repository, as they are followed on GitHub. `make docs` looks at those of the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]*)(#[^)\s]+)?(?=\))")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def find_anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+?)\s*$", _CODE.sub("", page.read_text()), re.MULTILINE)
    return {"#" + _NOT_IN_ANCHORS.sub("", title.lower()).replace(" ", "-") for title in titles}


def find_broken(page: Path, text: str) -> list[str]:
    """Links of a page whose file or whose heading does not exist."""
    broken = []
    for path, anchor in _LINK.findall(_CODE.sub("", text)):
        target = (page.parent / path).resolve() if path else page
        wrong = not target.exists() or (anchor and target.suffix == ".md" and anchor not in find_anchors(target))
        broken += [f"{path}{anchor}"] if wrong else []
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_link_of_a_page_is_broken(page: Path) -> None:
    assert find_broken(page, page.read_text()) == []


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        pytest.param("[a](nowhere.md)", ["nowhere.md"], id="file"),
        pytest.param("[a](install.md#nowhere)", ["install.md#nowhere"], id="heading"),
        pytest.param("[a](#nowhere)", ["#nowhere"], id="heading of its own"),
        pytest.param("[a](install.md#with-helm) [b](../README.md) [c](https://example.com/x)", [], id="whole"),
        pytest.param("```\n[a](nowhere.md)\n```", [], id="code"),
    ],
)
def test_a_broken_link_is_found(text: str, broken: list[str]) -> None:
    assert find_broken(ROOT / "docs/cli.md", text) == broken


def test_the_site_lists_every_page() -> None:
    listed = set(re.findall(r"^ +- [^:]+: (\S+)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages - listed == set(), "add it to nav in mkdocs.yml"


def test_every_decision_is_listed_and_has_its_sections() -> None:
    records = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    for page in (ROOT / "docs/adr/README.md", ROOT / "docs/design.md"):
        listed = re.findall(r"\((?:adr/)?(\d{4}-[\w-]+\.md)\)", page.read_text())
        assert listed == [record.name for record in records], page.name
    numbers = [int(record.name[:4]) for record in records]
    assert numbers == sorted(set(numbers))
    for number, record in zip(numbers, records, strict=True):
        text = record.read_text()
        assert text.startswith(f"# {number}. ")
        sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert sections == ["Context and goal", "Non-goal", "Decision", "Rejected"], record.name
        assert "**Status:**" in text
