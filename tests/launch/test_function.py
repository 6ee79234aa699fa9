"""Functions as source text: what is written down runs by itself, and what cannot travel is named."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from elasticjob_operator.launch.bundle import CodeError, File
from elasticjob_operator.launch.function import ENTRY, MODULE, read_result, write_function

_cells = count(1)


class Notebook:
    """Runs cells as a notebook does: in one namespace, which is __main__, with their text in the line cache."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.space: dict[str, Any] = {"__name__": "__main__"}
        module = type(sys)("__main__")
        module.__dict__.update(self.space)
        self.space = module.__dict__
        monkeypatch.setitem(sys.modules, "__main__", module)

    def run(self, cell: str) -> None:
        name = f"<cell-{next(_cells)}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec"), self.space)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(monkeypatch)


CELLS = (
    """
import math
import os.path as where
from collections import OrderedDict
from pathlib import Path as P
RATES = {"low": [0.1, 1], "none": None}
unused = open
""",
    """
class Base:
    def twice(self): return 2 * self.value

class Thing(Base):
    def __init__(self, value: "Unknown") -> None:
        self.value = value + OFFSET

OFFSET = 1
""",
    """
def helper(x):
    return [math.floor(RATES["low"][0] * y) for y in range(x)] if x < 2 else helper(x - 1)

def decorate(function):
    return function
DEFAULT = 3

@decorate
def train(a: "NotDefined", b=DEFAULT, *, c: float = 2.5):
    def inner():
        return Thing(a).twice()
    return {"inner": inner(), "b": b, "c": c, "home": P("x").name, "where": where.join("a", "b"), "h": helper(3),
            "kind": OrderedDict.__name__}
""",
)
RESULT = {"inner": 10, "b": 3, "c": 1.5, "home": "x", "where": "a/b", "h": [0], "kind": "OrderedDict"}


def call(folder: Path, files: tuple[File, ...], **env: str) -> tuple[list[str], int]:
    for file in files:
        (folder / file.path).write_bytes(file.content)
    done = subprocess.run(
        [sys.executable, str(folder / ENTRY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **env},
    )
    return done.stdout.splitlines(), done.returncode


def test_a_function_of_a_notebook_runs_with_what_it_uses(notebook: Notebook, tmp_path: Path) -> None:
    for cell in CELLS:
        notebook.run(cell)
    files = write_function(notebook.space["train"], {"a": 4, "c": 1.5}, has_code=False)
    assert [file.path for file in files] == [f"{MODULE}.py", ENTRY]
    assert b"unused" not in files[0].content
    lines, code = call(tmp_path, files)
    assert code == 0
    assert read_result(lines) == {"value": RESULT}
    assert call(tmp_path, files, RANK="1")[0] == [], "only rank 0 tells"


def test_a_function_of_a_module_travels_as_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "training_of_ours.py"
    path.write_text("import math\n\ndef train(n):\n    return math.factorial(n)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import training_of_ours  # type: ignore[import-not-found]

    files = write_function(training_of_ours.train, {"n": 5}, has_code=False)
    assert files[0] == File("training_of_ours.py", path.read_bytes())
    (tmp_path / "out").mkdir()
    assert read_result(call(tmp_path / "out", files)[0]) == {"value": 120}
    assert [file.path for file in write_function(training_of_ours.train, {"n": 5}, has_code=True)] == [ENTRY]
    path.write_text("import beside\n\ndef train(n): pass\n")
    (tmp_path / "beside.py").touch()
    with pytest.raises(CodeError, match="imports beside, which lies beside it"):
        write_function(training_of_ours.train, {"n": 5}, has_code=False)


@pytest.mark.parametrize(
    ("cell", "arguments", "told"),
    [
        ("data = open\ndef f(): return data", {}, None),
        ("import io\ndata = io.StringIO()\ndef f(): return data", {}, "f: uses data, a StringIO, which is not sent"),
        ("data = [object()]\ndef f(): return data", {}, "f: uses data, a list, which is not sent"),
        ("nan = float('nan')\ndef f(): return nan", {}, "f: uses nan, a float, which is not sent"),
        ("def f(): return gone", {}, "f: uses gone, which is not defined"),
        ("def g():\n  x = 1\n  def f(): return x\n  return f\nf = g()", {}, "only a function at the top of a module"),
        ("f = lambda: 1", {}, "only a function at the top of a module"),
        ("f = 3", {}, "only a function"),
        ("f = print", {}, "only a function"),
        ("def f(a): pass", {}, "arguments: f(): missing a required argument: 'a'"),
        ("def f(a): pass", {"a": 1, "b": 2}, "arguments: f(): got an unexpected keyword argument 'b'"),
        ("def f(a): pass", {"a": {1, 2}}, "arguments: Object of type set is not JSON serializable"),
    ],
)
def test_what_cannot_travel_is_named(
    notebook: Notebook, cell: str, arguments: Mapping[str, Any], told: str | None
) -> None:
    notebook.run(cell)
    if told is None:
        write_function(notebook.space["f"], arguments, has_code=False)
        return
    with pytest.raises(CodeError) as caught:
        write_function(notebook.space["f"], arguments, has_code=False)
    assert told in str(caught.value)


def test_a_function_whose_text_is_not_known(notebook: Notebook) -> None:
    exec("def f(): return 1", notebook.space)
    with pytest.raises(CodeError, match="f: its source is not known"):
        write_function(notebook.space["f"], {}, has_code=False)


def test_a_function_of_a_package_needs_its_folder() -> None:
    with pytest.raises(CodeError, match=r"json\.dumps: its module is part of a package: send the folder"):
        write_function(json.dumps, {"obj": 1}, has_code=False)


def returning(text: str) -> Callable[[Notebook], Callable[..., Any]]:
    def make(notebook: Notebook) -> Callable[..., Any]:
        notebook.run(f"def f(): return {text}")
        found: Callable[..., Any] = notebook.space["f"]
        return found

    return make


@pytest.mark.parametrize(
    ("make", "found"),
    [
        pytest.param(returning("None"), {"value": None}, id="none"),
        pytest.param(returning("{'text': 'ü\\n' * 5000}"), {"value": {"text": "ü\n" * 5000}}, id="long"),
        pytest.param(returning("float('inf')"), {"value": float("inf")}, id="infinite"),
        pytest.param(returning("{1, 2}"), "set is not JSON", id="set"),
        pytest.param(returning("'x' * 70000"), "bytes of JSON, more than 65536: return less", id="too-long"),
    ],
)
def test_results(
    notebook: Notebook, tmp_path: Path, make: Callable[[Notebook], Callable[..., Any]], found: Any
) -> None:
    lines, code = call(tmp_path, write_function(make(notebook), {}, has_code=False))
    assert code == 0
    result = read_result(["noise", *lines, "more noise"])
    if isinstance(found, dict):
        assert result == found
    else:
        assert result is not None
        assert found in result["error"]


def test_the_last_whole_result_counts() -> None:
    assert read_result([]) is None
    assert read_result(["elasticjob-result 1/2 {"]) is None
    whole = ['elasticjob-result 1/2 {"val', 'elasticjob-result 2/2 ue": 1}']
    assert read_result([*whole, "elasticjob-result 1/2 x"]) == {"value": 1}
    assert read_result([whole[0], *whole]) == {"value": 1}
    assert read_result(["elasticjob-result 2/2 x", "elasticjob-result a/b c", "elasticjob-result 1/1 [", *whole]) == {
        "value": 1
    }
