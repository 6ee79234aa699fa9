"""Random small mistakes in the source, and whether the tests notice them: `make mutants SEED=n COUNT=k`.

A mistake is a changed comparison, `and` for `or`, a removed `not`, plus for minus, or a guard that never holds. Each is
made in a copy of the packages; the tests of its folder run first, then the wider suite. Survivors are listed, with the
detection rate. Mistakes without an observable effect are in `EQUIVALENT`, and are not drawn.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
OPERATOR: Final = "operator/elasticjob_operator"
WORKER: Final = "worker_image/src/elasticjob"
DECISIONS: Final = ("api", "model", "membership", "failures", "sizing", "plan")
NEAR: Final = {
    "view": ("cli",),
    "cli": ("cli",),
    "failures": ("failures", "simulation"),
    "plan": ("plan", "simulation"),
}
TIMEOUT_SECONDS: Final = 900
GOALS: Final = {"decisions": 0.97, "everything else": 0.85}

SWAPPED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}

# Module, the text before, the text after: there is no observable effect.
EQUIVALENT: Final[frozenset[tuple[str, str, str]]] = frozenset()


@dataclass(frozen=True, slots=True)
class Mistake:
    """One replacement in the text of a module."""

    module: str  # path below the root of the repository
    line: int
    begin: int  # offsets into the text of the module
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.before!r} became {self.after!r}"

    @property
    def folder(self) -> str:
        """The sub-package; empty for a top-level module."""
        inside = Path(self.module).relative_to(self.package)
        return inside.parts[0] if len(inside.parts) > 1 else ""

    @property
    def package(self) -> str:
        return OPERATOR if self.module.startswith(OPERATOR) else WORKER

    @property
    def group(self) -> str:
        return "decisions" if self.package == OPERATOR and self.folder in DECISIONS else "everything else"


def find_mistakes(module: str, text: str) -> list[Mistake]:
    """All mistakes that are possible in this module."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()

    def place(node: ast.expr, replaced: ast.expr) -> Mistake:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = data[begin:end].decode()
        return Mistake(module, node.lineno, begin, end, before, f"({ast.unparse(replaced)})")

    return [place(node, replaced) for node, replaced in _walk(ast.parse(text))]


def _walk(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Expressions and their replacements. Assertions, annotations and formatted strings are skipped."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Assert | ast.JoinedStr) or _is_for_types(child):
            continue
        yield from _replacements(child)
        yield from _walk(child)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _replacements(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.If | ast.IfExp):
        yield node.test, ast.Constant(False)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        changed = copy.deepcopy(node)
        changed.ops[0] = SWAPPED[type(node.ops[0])]()
        yield node, changed
    elif isinstance(node, ast.BoolOp):
        yield node, ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, node.operand
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and not _has_text(node):
        yield node, ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)


def _has_text(node: ast.BinOp) -> bool:
    """Whether it joins strings or sequences, where another operator would only raise an error."""
    kinds = (ast.JoinedStr, ast.Tuple, ast.List)
    return any(
        isinstance(part, kinds) or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in ast.walk(node)
    )


def draw(seed: int, count: int, only: str) -> list[Mistake]:
    """A random sample of `count` mistakes, none of them equivalent."""
    modules = sorted((*(ROOT / OPERATOR).rglob("*.py"), *(ROOT / WORKER).rglob("*.py")))
    found = [
        mistake
        for path in modules
        if str(path.relative_to(ROOT)).startswith(only)
        for mistake in find_mistakes(str(path.relative_to(ROOT)), path.read_text())
        if (mistake.module, mistake.before, mistake.after) not in EQUIVALENT
    ]
    return random.Random(seed).sample(found, min(count, len(found)))  # noqa: S311 - must be reproducible


def find_suites(mistake: Mistake) -> list[list[str]]:
    """The tests to run for it, the cheapest first."""
    side = "tests/controller" if mistake.package == OPERATOR else "tests/worker"
    near = [f"{side}/{name}" for name in NEAR.get(mistake.folder, (mistake.folder,)) if name]
    near = [path for path in near if (ROOT / path).is_dir()]
    wide = [side, "tests/manifests"] if mistake.package == OPERATOR else [side]
    return [near, wide] if near else [wide]


def notice(mistake: Mistake, directory: Path, suites: list[list[str]]) -> bool:
    """Whether a test of these suites fails, or does not end, with this mistake in the packages."""
    home = Path(tempfile.mkdtemp(dir=directory))
    try:
        shutil.copytree(ROOT / "operator", home / "operator")
        shutil.copytree(ROOT / "worker_image/src", home / "worker_image/src")
        file = home / mistake.module
        data = file.read_bytes()
        file.write_bytes(data[: mistake.begin] + mistake.after.encode() + data[mistake.end :])
        return any(_fails(paths, home) for paths in suites)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _fails(paths: list[str], home: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths]
    path = os.pathsep.join(str(home / name) for name in ("operator", "worker_image/src"))
    try:
        result = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    return result.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--only", default="", help="path of a folder or module, below the root of the repository")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--list", action="store_true", help="print what would be changed, and run nothing")
    args = parser.parse_args()
    mistakes = draw(args.seed, args.count, args.only)
    if args.list:
        print("\n".join(map(str, mistakes)))
        return 0
    survivors: list[Mistake] = []
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(args.jobs) as pool:
        results = pool.map(lambda mistake: notice(mistake, Path(directory), find_suites(mistake)), mistakes)
        for number, (mistake, noticed) in enumerate(zip(mistakes, results, strict=True), 1):
            print(f"{number:4}/{len(mistakes)} {'noticed ' if noticed else 'SURVIVED'} {mistake}", flush=True)
            survivors += [] if noticed else [mistake]
    return report(args.seed, mistakes, survivors)


def report(seed: int, mistakes: list[Mistake], survivors: list[Mistake]) -> int:
    """Print one JSON line; return 0 if the goals are reached."""
    rates = {}
    for group in GOALS:
        made = sum(mistake.group == group for mistake in mistakes)
        lived = sum(mistake.group == group for mistake in survivors)
        rates[group] = round(1 - lived / made, 3) if made else 1.0
    print(json.dumps({"seed": seed, "mutants": len(mistakes), "survived": len(survivors), "noticed": rates}))
    return int(any(rates[group] < goal for group, goal in GOALS.items()))


if __name__ == "__main__":
    sys.exit(main())
