"""docs/design.md: the walks through the code name functions that exist, in the package that each walk names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "elasticjob_operator": ROOT / "operator/elasticjob_operator",
    "elasticjob": ROOT / "worker_image/src/elasticjob",
}
_WALK = re.compile(r"^\*\*(.+?)\*\* \(`(\w+)`\)\n(.*?)(?=^\*\*|\Z)", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"`([a-z_]+(?:\.\w+)+)`")


def read_walks() -> list[tuple[str, str, str]]:
    """(title, package, text) of each walk."""
    section = (ROOT / "docs/design.md").read_text().partition("## Four walks")[2].partition("\n## ")[0]
    return _WALK.findall(section)


def find_missing(package: Path, text: str) -> Iterator[str]:
    """Names of this text that are neither modules nor classes or functions in one."""
    for name in _NAME.findall(text):
        parts = name.split(".")
        place = package
        while parts and (place / parts[0]).is_dir():
            place /= parts.pop(0)
        module = place / (f"{parts.pop(0)}.py" if parts else "__init__.py")
        found: list[ast.stmt] = list(ast.parse(module.read_text()).body) if module.is_file() else []
        for part in parts:
            here = (one for one in found if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef))
            found = [*next((one for one in here if one.name == part), ast.Module([], [])).body]
        if not found:
            yield name


@pytest.mark.parametrize(("package", "text"), [(p, t) for _, p, t in read_walks()], ids=[t for t, _, _ in read_walks()])
def test_a_walk_names_functions_that_exist(package: str, text: str) -> None:
    assert _NAME.findall(text)
    assert list(find_missing(PACKAGES[package], text)) == []


def test_there_are_four_walks() -> None:
    assert len(read_walks()) == 4


@pytest.mark.parametrize("name", ["run.controller.Controller.nonsense", "nonsense.plan", "plan.plan.nonsense"])
def test_a_wrong_name_is_found(name: str) -> None:
    assert list(find_missing(PACKAGES["elasticjob_operator"], f"`plan.plan.plan`, then `{name}`.")) == [name]
