"""Renders docs/api-reference.md from the docstrings of the worker runtime, by parsing the sources without importing
them.

Only what scripts may use is on the page: docs/api-policy.md promises its stability.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "worker_image/src/elasticjob"
TARGET = ROOT / "docs/api-reference.md"


@dataclass(frozen=True)
class Section:
    """Names that belong together. `sources`: the module that defines each of them, below `elasticjob`."""

    title: str
    package: str  # that scripts import the names from
    sources: dict[str, str]


def _section(title: str, package: str = "elasticjob", **names: str) -> Section:
    """`names`: by module, with `__` for the dot, the names that it defines."""
    return Section(
        title, package, {name: module.replace("__", "/") for module, found in names.items() for name in found.split()}
    )


# In the order that readers need: first what every script uses.
SECTIONS = (
    _section("Start", context__setup="init World", context__context="current Context"),
    _section("Progress", channel__progress="report"),
    _section(
        "Data and batches",
        data__samplers="ElasticDistributedSampler learning_rate_factor scale_learning_rate",
        data__virtual_ranks="VirtualRanks",
        data__batch_growth="BatchGrowth",
    ),
    _section("Checkpoints", checkpoint__checkpointer="Checkpointer", checkpoint__requests="on_signal"),
    _section("Requests to save", "elasticjob.checkpoint", checkpoint__requests="requested clear"),
    _section("Sessions", sessions__session="Session"),
    _section(
        "Collectives",
        collectives__tensors="all_reduce all_gather gather",
        collectives__unequal="all_gather_unequal gather_unequal",
        collectives__point_to_point="send recv isend",
        collectives__members="new_groups",
        collectives__checked="checked",
    ),
    _section("Transfers in flight", "elasticjob.collectives.pending", collectives__pending="Pending"),
    _section(
        "transformers",
        "elasticjob.integrations.transformers",
        integrations__transformers="ElasticJobCallback find_checkpoint",
    ),
    _section(
        "Lightning",
        "elasticjob.integrations.lightning",
        integrations__lightning="elastic_arguments ElasticJobCallback find_checkpoint ElasticJobEnvironment",
    ),
    _section(
        "Lightning on a session",
        "elasticjob.integrations.lightning_session",
        integrations__lightning_session="session_arguments",
    ),
    _section("accelerate", "elasticjob.integrations.accelerate", integrations__accelerate="Checkpoints"),
    _section(
        "Errors",
        "elasticjob.errors",
        errors="ElasticJobError ConfigurationError BackendUnavailableError CollectiveFailedError WorldLostError "
        "ReplicasDifferError CollectiveMismatchError BufferTouchedError CheckpointFailedError",
    ),
)

Documented = ast.ClassDef | ast.FunctionDef


def render() -> str:
    """The whole page. Raises SystemExit if a public name is missing from SECTIONS."""
    missing = set(public_names()) - {name for section in SECTIONS for name in section.sources}
    if missing:
        raise SystemExit(f"scripts/api_reference.py: SECTIONS lacks {', '.join(sorted(missing))}")
    parts = [
        "# API reference of `elasticjob`",
        "Generated from the docstrings by `make generate`; do not edit. The guide is [runtime.md](runtime.md). "
        f"Everything under `elasticjob.` by itself: {', '.join(f'`{name}`' for name in public_names())}.",
    ]
    parts += [render_section(section) for section in SECTIONS]
    return "\n\n".join(parts) + "\n"


def public_names() -> list[str]:
    """The names that `import elasticjob` provides."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_HOME":
            return sorted(ast.literal_eval(node.value))
    raise SystemExit("elasticjob/__init__.py has no table _HOME")


def render_section(section: Section) -> str:
    parts = [f"## {section.title}"]
    for name, module in section.sources.items():
        tree = ast.parse((PACKAGE / f"{module}.py").read_text())
        found = [one for one in tree.body if isinstance(one, Documented) and one.name == name and not is_overload(one)]
        if not found:
            raise SystemExit(f"scripts/api_reference.py: {module}.py does not define {name}")
        parts.append(render_item(found[0], f"{section.package}."))
    return "\n\n".join(parts)


def is_overload(node: Documented) -> bool:
    """Whether this is only a typing overload of the function that follows."""
    return any(isinstance(one, ast.Name) and one.id == "overload" for one in node.decorator_list)


def render_item(node: Documented, prefix: str) -> str:
    text = ast.get_docstring(node) or ""
    if isinstance(node, ast.FunctionDef):
        return f"### `{prefix}{node.name}{signature(node)}`\n\n{as_markdown(text)}".rstrip()
    constructor = next((one for one in functions(node) if one.name == "__init__"), None)
    heading = f"### class `{prefix}{node.name}{signature(constructor) if constructor else ''}`"
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
