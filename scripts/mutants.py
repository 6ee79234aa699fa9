"""Random small mistakes in the source, and whether the tests notice them: `make mutants SEED=n COUNT=k`.

A mistake is a changed comparison, `and` for `or`, a removed `not`, plus for minus, or a guard that never holds. Each is
made in a copy of the packages. `scripts/reach.py` knows which tests execute its lines: these run, those of its folder
first; then the other tests of its folder; and all tests where none is known to execute it. A test that fails is tried
once more. Survivors are listed, with the detection rate. Mistakes without an observable effect are in `EQUIVALENT`, and
are not drawn.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from scripts.reach import ROOT, Reach, file_of, folders_of, measure

OPERATOR: Final = "operator/elasticjob_operator"
WORKER: Final = "worker_image/src/elasticjob"
DECISIONS: Final = ("api", "model", "membership", "failures", "sizing", "history", "pool", "plan", "templates")
TESTS: Final = (
    "tests/controller",
    "tests/worker",
    "tests/launch",
    "tests/dashboard",
    "tests/manifests",
    "tests/integrations",
    "tests/model",
)
NEAR: Final = {
    "view": ("cli",),
    "cli": ("cli",),
    "failures": ("failures", "simulation"),
    "plan": ("plan", "simulation"),
}
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

# Module, function, the text before, the text after; and why there is no observable effect.
EQUIVALENT: Final[dict[tuple[str, str, str, str], str]] = {}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One replacement in the text of a module."""

    module: str  # path below the root of the repository
    line: int
    begin: int  # offsets into the text of the module
    end: int
    before: str
    after: str
    function: str  # its name with the class before it; empty for what a module does when it is imported
    lines: tuple[int, int]  # first and last; a test that executes none of them cannot notice the mistake

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.before!r} became {self.after!r}"

    @property
    def name(self) -> tuple[str, str, str, str]:
        return self.module, self.function, self.before, self.after

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

    def place(node: ast.expr, replaced: ast.expr, function: str) -> Mistake:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = data[begin:end].decode()
        lines = (node.lineno, node.end_lineno) if function else (1, len(starts))
        return Mistake(module, node.lineno, begin, end, before, f"({ast.unparse(replaced)})", function, lines)

    return [place(*found) for found in _walk(ast.parse(text))]


def _walk(tree: ast.AST, outer: str = "", function: str = "") -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Expressions, their replacements, and the function. Assertions, annotations and formatted strings are skipped."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Assert | ast.JoinedStr) or _is_for_types(child):
            continue
        for node, replaced in _replacements(child):
            yield node, replaced, function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _walk(child, f"{outer}{child.name}.", outer + child.name)
        elif isinstance(child, ast.ClassDef):
            yield from _walk(child, f"{outer}{child.name}.", function)
        else:
            yield from _walk(child, outer, function)


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


def draw(seed: int, count: int, only: Sequence[str] = ("",)) -> list[Mistake]:
    """A random sample of `count` mistakes whose text begins with one of `only`, none of them equivalent.

    What is drawn does not depend on the rest of the source, so that a change does not give another sample.
    """
    found = [m for m in _find_all() if m.name not in EQUIVALENT and str(m).startswith(tuple(only))]

    def lot(mistake: Mistake) -> bytes:
        return hashlib.sha256(f"{seed} {mistake.name}".encode()).digest()

    return sorted(found, key=lot)[:count]


@functools.cache
def _find_all() -> list[Mistake]:
    modules = sorted((*(ROOT / OPERATOR).rglob("*.py"), *(ROOT / WORKER).rglob("*.py")))
    return [m for path in modules for m in find_mistakes(str(path.relative_to(ROOT)), path.read_text())]


def find_suites(mistake: Mistake, reach: Reach) -> list[list[str]]:
    """The tests to run for it: those that execute it, of its folder and others; the rest of its folder; all others."""
    side = "tests/controller" if mistake.package == OPERATOR else "tests/worker"
    names = NEAR.get(mistake.folder, (mistake.folder,)) if mistake.folder else ()
    folders = tuple(f"{parent}/{name}/" for name in names for parent in (side, "tests"))
    reaching = reach.tests_of(mistake.module, *mistake.lines)
    near = [test for test in reaching if test.startswith(folders)]
    suites = [near, [test for test in reaching if test not in set(near)]]
    suites.append([test for test in reach.seconds if test.startswith(folders) and test not in set(reaching)])
    if not reaching:
        suites.append([test for test in reach.seconds if not test.startswith(folders)])
    return [suite for suite in suites if suite]


def notice(mistake: Mistake, directory: Path, reach: Reach) -> bool:
    """Whether a test fails, or does not end, with this mistake in the packages."""
    home = Path(tempfile.mkdtemp(dir=directory))
    try:
        shutil.copytree(ROOT / "operator", home / "operator")
        shutil.copytree(ROOT / "worker_image/src", home / "worker_image/src")
        file = home / mistake.module
        data = file.read_bytes()
        file.write_bytes(data[: mistake.begin] + mistake.after.encode() + data[mistake.end :])
        return any(_fails(tests, home, reach) for tests in find_suites(mistake, reach))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _fails(tests: list[str], home: Path, reach: Reach) -> bool:
    """Whether one of them fails twice, or takes ten times as long as it did without the mistake."""
    seconds = [reach.seconds[test] for test in tests]
    code = _run(tests, home, 30 + 10 * max(seconds), 120 + 10 * sum(seconds))
    if code == pytest.ExitCode.USAGE_ERROR:  # the names of the tests are made by the source, and are others now
        files = list(dict.fromkeys(map(file_of, tests)))
        code = _run([*files, *(f"--deselect={test}" for test in reach.failed)], home, 120, 600)
    return code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def _run(tests: list[str], home: Path, test_seconds: float, all_seconds: float) -> int:
    names = home / "tests"
    names.write_text("\n".join(tests))
    options = ("-x", "-q", "-p", "no:cacheprovider", "--reruns=1", f"--timeout={test_seconds:.0f}", f"@{names}")
    path = os.pathsep.join(str(home / name) for name in ("operator", "worker_image/src"))
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(all_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument(
        "--only", nargs="*", default=[""], help="folders, modules or lines (module.py:12:), below the repository's root"
    )
    parser.add_argument("--tests", nargs="*", default=TESTS, help="folders of the tests to run")
    parser.add_argument("--marks", default="not cluster", help="marks of the tests to run, as for pytest -m")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--list", action="store_true", help="print what would be changed, and run nothing")
    args = parser.parse_args()
    mistakes = draw(args.seed, args.count, args.only)
    if args.list:
        print("\n".join(map(str, mistakes)))
        return 0
    reach = measure(folders_of(args.tests), args.marks, lambda text: print(text, flush=True))
    for test in sorted(reach.failed):
        print(f"left out, it fails without a mistake (or because it is measured): {test}")
    began = time.monotonic()
    survivors: list[Mistake] = []
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(notice, mistake, Path(directory), reach): mistake for mistake in mistakes}
        for number, result in enumerate(as_completed(running), 1):
            mistake, noticed = running[result], result.result()
            seconds = time.monotonic() - began
            print(
                f"{number:4}/{len(mistakes)} {seconds:6.0f} s {'noticed ' if noticed else 'SURVIVED'} {mistake}",
                flush=True,
            )
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
