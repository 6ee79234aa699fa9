"""Renders docs/api-reference.md from the docstrings of the worker runtime, by parsing the sources without importing
them.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "worker_image/src/elasticjob"
TARGET = ROOT / "docs/api-reference.md"

# In the order that readers need: first what every script uses.
MODULES = (
    "context/setup",
    "context/context",
    "data/samplers",
    "checkpoint/checkpointer",
    "checkpoint/requests",
    "sessions/session",
    "collectives/tensors",
    "collectives/unequal",
    "collectives/point_to_point",
    "collectives/members",
    "collectives/pending",
    "collectives/checked",
    "channel/progress",
    "channel/signals",
    "errors",
)

Documented = ast.ClassDef | ast.FunctionDef


def render() -> str:
    """The whole page."""
    parts = [
        "# API reference of `elasticjob`",
        "Generated from the docstrings by `make generate`; do not edit. The guide is [runtime.md](runtime.md). "
        f"Everything under `elasticjob.` by itself: {', '.join(f'`{name}`' for name in public_names())}.",
    ]
    parts += [render_module(name) for name in MODULES]
    return "\n\n".join(parts) + "\n"


def public_names() -> list[str]:
    """The names that `import elasticjob` provides."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_HOME":
            return sorted(ast.literal_eval(node.value))
    raise SystemExit("elasticjob/__init__.py has no table _HOME")


def render_module(name: str) -> str:
    tree = ast.parse((PACKAGE / f"{name}.py").read_text())
    parts = [f"## `elasticjob.{name.replace('/', '.')}`", ast.get_docstring(tree) or ""]
    for node in tree.body:
        if isinstance(node, Documented) and not node.name.startswith("_") and not is_overload(node):
            parts.append(render_item(node))
    return "\n\n".join(part for part in parts if part)


def is_overload(node: Documented) -> bool:
    """Whether this is only a typing overload of the function that follows."""
    return any(isinstance(one, ast.Name) and one.id == "overload" for one in node.decorator_list)


def render_item(node: Documented, prefix: str = "") -> str:
    text = ast.get_docstring(node) or ""
    if isinstance(node, ast.FunctionDef):
        return f"### `{prefix}{node.name}{signature(node)}`\n\n{as_markdown(text)}".rstrip()
    constructor = next((one for one in functions(node) if one.name == "__init__"), None)
    heading = f"### class `{node.name}{signature(constructor) if constructor else ''}`"
    parts = [heading, as_markdown(text)]
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    if fields:
        parts.append("\n".join(f"- `{ast.unparse(one)}`" for one in fields))
    for one in functions(node):
        description = ast.get_docstring(one)
        if not one.name.startswith("_") and description:
            parts.append(f"- `.{one.name}{signature(one)}`: {' '.join(description.split())}")
    return "\n\n".join(part for part in parts if part)


def functions(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [one for one in node.body if isinstance(one, ast.FunctionDef)]


def signature(node: ast.FunctionDef) -> str:
    arguments = node.args
    if arguments.args and arguments.args[0].arg == "self":
        arguments.args = arguments.args[1:]
    if any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list):
        return ""
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None and node.name != "__init__" else ""
    return f"({ast.unparse(arguments)}){result}"


def as_markdown(text: str) -> str:
    """The docstring as Markdown. Indented examples are code blocks in both."""
    return inspect.cleandoc(text)


def generate() -> dict[Path, str]:
    """The generated files, for scripts/generate.py."""
    return {TARGET: render()}


if __name__ == "__main__":
    TARGET.write_text(render())
