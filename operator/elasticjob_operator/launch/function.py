"""Writes a function down as source text that runs in a pod. Nothing is pickled.

A function of a module travels as the file of its module. A function of a script or a notebook travels as its own text,
with what it uses: imports, functions and classes beside it, and plain values. Everything else is refused by name.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import json
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from elasticjob_operator import numerals
from elasticjob_operator.launch.bundle import CodeError, File, find_local_imports

MODULE: Final = "elasticjob_function"
ENTRY: Final = "elasticjob_entry.py"
MARK: Final = "elasticjob-result"
MOST_RESULT_BYTES: Final = 64 * 1024
CHUNK: Final = 3000  # bytes of a line: one write, which nothing interrupts, and which no container runtime splits
_PLAIN: Final = (str, int, float, bool, type(None), list, tuple, dict)
_RUNNER: Final = '''"""Calls the function that `launch` sent; rank 0 prints what it returned, as JSON in short lines."""

import json
import os

from {module} import {function}

ARGUMENTS = json.loads({arguments!r})


def tell(found):
    text = json.dumps(found)
    if len(text) > {most}:
        problem = f"the value is {{len(text)}} bytes of JSON, more than {most}: return less, or save it in a file"
        text = json.dumps({{"error": problem}})
    parts = [text[i : i + {chunk}] for i in range(0, len(text), {chunk})]
    for number, part in enumerate(parts, 1):
        os.write(1, f"{mark} {{number}}/{{len(parts)}} {{part}}\\n".encode())


if __name__ == "__main__":
    value = {function}(**ARGUMENTS)
    if os.environ.get("RANK", "0") == "0":
        try:
            found = {{"value": json.loads(json.dumps(value, allow_nan=True))}}
        except (TypeError, ValueError, RecursionError) as error:
            kind = type(value).__name__
            found = {{"error": f"{{kind}} is not JSON ({{error}}): return numbers, strings, lists and dicts"}}
        tell(found)
'''


def write_function(function: Callable[..., Any], arguments: Mapping[str, Any], *, has_code: bool) -> tuple[File, ...]:
    """The files that call this function with these arguments. `has_code`: its module is in the code that is sent.

    Raises CodeError, which names what cannot travel.
    """
    name = getattr(function, "__qualname__", "")
    if not isinstance(function, FunctionType) or not name.isidentifier():
        raise CodeError(f"{name or function!r}: only a function at the top of a module, script or notebook can be sent")
    _check_arguments(function, arguments)
    files: tuple[File, ...] = ()
    module = function.__module__
    if module == "__main__":
        module = MODULE
        files = (File(f"{MODULE}.py", _Writer().write(function).encode()),)
    elif not has_code:
        files = (_read_module(function),)
    runner = _RUNNER.format(
        module=module,
        function=name,
        arguments=_to_json(arguments),
        most=MOST_RESULT_BYTES,
        chunk=CHUNK,
        mark=MARK,
    )
    return (*files, File(ENTRY, runner.encode()))


def read_result(lines: list[str]) -> dict[str, Any] | None:
    """The last complete result among log lines; None if there is none."""
    found: dict[str, Any] | None = None
    parts: list[str] = []
    for line in lines:
        head, _, rest = line.partition(" ")
        place, _, text = rest.partition(" ")
        number, count = (numerals.read_count(part) for part in place.split("/", 1)) if "/" in place else (None, None)
        if head != MARK or number is None or count is None:
            continue
        parts = [*parts, text] if number == len(parts) + 1 else [text] if number == 1 else []
        if len(parts) == count:
            try:
                value = json.loads("".join(parts))
            except ValueError:
                value = None
            found = value if isinstance(value, dict) else found
            parts = []
    return found


def _check_arguments(function: FunctionType, arguments: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise CodeError(f"arguments: {function.__name__}(): {error}") from None
    _to_json(arguments)


def _to_json(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(arguments))
    except (TypeError, ValueError, RecursionError) as error:
        raise CodeError(f"arguments: {error}: pass numbers, strings, lists and dicts") from None


def _read_module(function: FunctionType) -> File:
    module = sys.modules.get(function.__module__)
    path = Path(getattr(module, "__file__", None) or "?")
    if "." in function.__module__ or path.name == "__init__.py" or not path.is_file():
        raise CodeError(
            f"{function.__module__}.{function.__name__}: its module is part of a package: send the folder that holds "
            "the package (code=...)"
        )
    content = path.read_bytes()
    beside = find_local_imports(content, path.parent)
    if beside:
        raise CodeError(
            f"{path}: imports {', '.join(beside)}, which lies beside it and would stay behind: send the folder "
            f"(code={str(path.parent)!r})"
        )
    return File(f"{function.__module__}.py", content)


class _Writer:
    """Collects the text of a function and of everything that it uses, each after what it needs itself."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._seen: set[str] = set()

    def write(self, function: FunctionType) -> str:
        self._add_definition(function.__name__, function)
        body = "\n\n".join(self._parts)
        return f'"""Written down by `launch`."""\n\nfrom __future__ import annotations\n\n{body}\n'

    def _add_definition(self, name: str, value: FunctionType | type) -> None:
        self._seen.add(name)
        text, tree = _find_source(value)
        if isinstance(value, FunctionType):
            if value.__closure__:
                raise CodeError(f"{name}: uses variables of the function around it: pass them as arguments")
            used = {*_global_names(value.__code__), *_names_of_signature(tree)}
            space = value.__globals__
        else:
            used = set(_loaded_names(tree))
            space = vars(sys.modules[value.__module__])
        for needed in sorted(used - self._seen):
            if needed in space:
                self._add(needed, space[needed], name)
            elif not hasattr(builtins, needed) and isinstance(value, FunctionType):
                raise CodeError(f"{name}: uses {needed}, which is not defined: define or import it")
        self._parts.append(text)

    def _add(self, name: str, value: Any, user: str) -> None:
        if isinstance(value, ModuleType):
            self._add_module(name, value, user)
        elif isinstance(value, (FunctionType, type)) and value.__module__ == "__main__":
            if value.__name__ != name:
                raise CodeError(f"{user}: uses {name}, another name of {value.__name__}: use that one")
            self._add_definition(name, value)
        elif getattr(value, "__module__", None) and getattr(value, "__qualname__", "").isidentifier():
            self._add_import(name, str(value.__module__), str(getattr(value, "__qualname__", "")), value, user)
        else:
            self._add_value(name, value, user)

    def _add_import(self, name: str, module: str, own: str, value: Any, user: str) -> None:
        self._seen.add(name)
        if getattr(sys.modules.get(module), own, None) is not value:
            raise CodeError(f"{user}: uses {name}, which cannot be imported from {module}: import it in the function")
        self._parts.append(f"from {module} import {own} as {name}")

    def _add_module(self, name: str, value: ModuleType, user: str) -> None:
        self._seen.add(name)
        if value.__name__ == "__main__":
            raise CodeError(f"{user}: uses the module __main__, which is another one in a pod: import what it needs")
        self._parts.append(f"import {value.__name__} as {name}")

    def _add_value(self, name: str, value: Any, user: str) -> None:
        self._seen.add(name)
        try:
            plain = isinstance(value, _PLAIN) and ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            plain = False
        if not plain:
            raise CodeError(
                f"{user}: uses {name}, a {type(value).__name__}, which is not sent: make it in the function, or pass "
                "plain values as arguments"
            )
        self._parts.append(f"{name} = {value!r}")


def _find_source(value: FunctionType | type) -> tuple[str, ast.stmt]:
    """The text of a definition, and its syntax tree. Raises CodeError."""
    codes = [value.__code__] if isinstance(value, FunctionType) else _codes_of_class(value)
    for code in codes:
        lines = linecache.getlines(code.co_filename)  # notebooks keep the text of their cells there
        try:
            tree = ast.parse("".join(_without_magics(lines)))
        except SyntaxError:
            continue
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == value.__name__:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip(), node
    try:
        text = textwrap.dedent(inspect.getsource(value)).rstrip()
        return text, ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        raise CodeError(
            f"{value.__name__}: its source is not known: define it at the top of a file or of a cell of a notebook"
        ) from None


def _without_magics(lines: list[str]) -> Iterator[str]:
    """The lines of a cell, with those that are not Python emptied."""
    return ("\n" if line.startswith(("%", "!", "?")) else line for line in lines)


def _codes_of_class(value: type) -> list[CodeType]:
    found = [getattr(member, "__func__", member) for member in vars(value).values()]
    return [
        f.__code__ for f in found if isinstance(f, FunctionType) and not f.__code__.co_filename.startswith("<string")
    ]


def _global_names(code: CodeType) -> Iterator[str]:
    """The global names that a function's code reads, with those of the functions inside it."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _names_of_signature(tree: ast.stmt) -> set[str]:
    """The names in decorators and defaults, which are read where the function is defined."""
    if not isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return set()
    parts = [*tree.decorator_list, *tree.args.defaults, *(d for d in tree.args.kw_defaults if d is not None)]
    return {name for part in parts for name in _loaded_names(part)}


def _loaded_names(tree: ast.AST) -> Iterator[str]:
    """The names that are read in a tree. Annotations are not: they stay text in a pod."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(annotation, ast.AST)
        for inner in ast.walk(annotation)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in skipped:
            yield node.id
