"""What a script imports before it does anything else, read from its source. Pure: nothing is run, `read` is given.

A process that has carried out these steps is in the state in which the script would be after as many of its statements.
So the list ends at the first statement that could change what a later import does: a call, a condition, a loop, or a
change of `sys.path` or of the environment that is not a plain text. `HARMLESS` lists the calls that do not end it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

MAX_FILES = 200  # of the script's own modules

# Functions, classes and decorators, by the last part of their name, that change nothing that an import could find.
HARMLESS = frozenset(
    {
        *("abstractmethod", "bool", "cache", "cached_property", "classmethod", "compile", "contextmanager", "Counter"),
        *("dataclass", "defaultdict", "deque", "dict", "field", "final", "float", "frozenset", "int", "len", "list"),
        *("Lock", "lru_cache", "namedtuple", "NamedTuple", "NewType", "OrderedDict", "overload", "override"),
        *("ParamSpec", "partial", "property", "range", "set", "setter", "sorted", "staticmethod", "str"),
        *("total_ordering", "tuple", "TypedDict", "TypeVar", "wraps"),
        *("ArgumentParser", "getenv", "getLogger", "get_logger"),
        *("abspath", "absolute", "basename", "dirname", "expanduser", "join", "Path", "resolve"),
        *("monotonic", "now", "perf_counter", "time"),
        *("device", "inference_mode", "no_grad", "record"),  # of torch
    }
)

# The source of one of the script's own modules; None for all others.
Read = Callable[[str], "Source | None"]


@dataclass(frozen=True)
class Source:
    """A module of the script's own."""

    text: str
    is_package: bool = False


@dataclass(frozen=True)
class Import:
    """`import module`, or `from module import names`: a name is an attribute or a module below it."""

    module: str
    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.module


@dataclass(frozen=True)
class SetVariable:
    """`os.environ[name] = value`; with `is_default`, `os.environ.setdefault(name, value)`."""

    name: str
    value: str
    is_default: bool = False

    @property
    def label(self) -> str:
        return self.name


@dataclass(frozen=True)
class Attempt:
    """Steps that a script can do without: the first module or name that is missing ends the attempt."""

    steps: tuple[Step, ...]

    @property
    def label(self) -> str:
        return self.steps[0].label


Step = Import | SetVariable | Attempt


def find_imports(steps: Iterable[Step]) -> Iterator[Import]:
    """All imports, also those of attempts."""
    for step in steps:
        if isinstance(step, Import):
            yield step
        elif isinstance(step, Attempt):
            yield from find_imports(step.steps)


def find_packages(steps: Iterable[Step]) -> tuple[str, ...]:
    """The packages that are imported, each of them once."""
    return tuple(dict.fromkeys(step.module.partition(".")[0] for step in find_imports(steps)))


def find_attributes(text: str, package: str) -> tuple[str, ...]:
    """The names that a source uses of a package it imports as a whole, in their order: `package.name`."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    imports = [one for node in nodes if isinstance(node, ast.Import) for one in node.names if one.name == package]
    known = {one.asname or package for one in imports}
    found = (
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known
    )
    return tuple(dict.fromkeys(found))


def find_leading(text: str, read: Read, package: str = "") -> tuple[Step, ...]:
    """The steps of a script, in its order. A script that cannot be parsed has none: its own start says why.

    `read` gives the source of the modules that are the script's own. They are not imported: they run in the worker.
    What they import is part of the steps. `package` is the package of the script, "" for a plain file.
    """
    return tuple(_Reader(read).read_file(Source(text), package, is_package=False)[0])


class _Reader:
    """Follows the script into its own modules, each of them once, as an interpreter would."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._seen: set[str] = set()

    def read_file(self, source: Source, package: str, *, is_package: bool) -> tuple[list[Step], bool]:
        """The steps of one file, and whether the file was read to its end."""
        try:
            statements = ast.parse(source.text).body
        except (SyntaxError, ValueError, RecursionError):
            return [], False
        steps: list[Step] = []
        for statement in statements:
            found = _read_statement(statement)
            if found is None:
                return steps, False
            more, is_whole = self._expand(found, package)
            steps += more
            if not is_whole:
                return steps, False
        return steps, True

    def _expand(self, found: Sequence[_Raw], package: str) -> tuple[list[Step], bool]:
        """The steps behind what is written in a file, and whether all of it could be read."""
        steps: list[Step] = []
        more: list[Step]
        for raw in found:
            match raw:
                case SetVariable():
                    more, is_whole = [raw], True
                case _RawImport():
                    more, is_whole = self._follow(raw, package)
                case _RawAttempt(imports):
                    inner, is_whole = self._expand(imports, package)
                    more = [Attempt(tuple(inner))] if inner else []
            steps += more
            if not is_whole:
                return steps, False
        return steps, True

    def _follow(self, raw: _RawImport, package: str) -> tuple[list[Step], bool]:
        module = raw.resolve(package)
        if module is None:
            return [], False
        if module == "__future__":
            return [], True
        steps: list[Step] = []
        own = False
        for name in (*find_parents(module), *(f"{module}.{name}" for name in raw.names)):
            source = self._read(name)
            own = own or source is not None
            if source is None or name in self._seen:
                continue
            self._seen.add(name)
            if len(self._seen) > MAX_FILES:
                return steps, False
            inner = name if source.is_package else name.rpartition(".")[0]
            more, is_whole = self.read_file(source, inner, is_package=source.is_package)
            steps += more
            if not is_whole:
                return steps, False
        return (steps, True) if own else ([Import(module, raw.names)], True)


@dataclass(frozen=True)
class _RawImport:
    """An import as it is written; `level` counts the dots before the module."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0

    def resolve(self, package: str) -> str | None:
        """The full name of the module; None where the dots lead out of the package."""
        if not self.level:
            return self.module
        parts = package.split(".") if package else []
        if self.level > len(parts):
            return None
        return ".".join([*parts[: len(parts) - self.level + 1], *([self.module] if self.module else [])])


@dataclass(frozen=True)
class _RawAttempt:
    """The imports of a `try` statement whose handlers do nothing that matters here."""

    imports: tuple[_RawImport, ...]


_Raw = _RawImport | _RawAttempt | SetVariable


def find_parents(module: str) -> Iterator[str]:
    """a.b.c -> a, a.b, a.b.c: so are they imported."""
    parts = module.split(".")
    return (".".join(parts[: count + 1]) for count in range(len(parts)))


def _read_statement(statement: ast.stmt) -> list[_Raw] | None:
    """What a statement means for the imports after it; None where that cannot be known."""
    match statement:
        case ast.Import(names):
            return [_RawImport(one.name) for one in names]
        case ast.ImportFrom(module, names, level):
            star = any(one.name == "*" for one in names)
            return [_RawImport(module or "", () if star else tuple(one.name for one in names), level)]
        case ast.Expr(ast.Constant()) | ast.Pass():
            return []
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [] if _defines_only(statement, [statement.args, statement.returns]) else None
        case ast.ClassDef():
            defines = _defines_only(statement, [*statement.bases, *statement.keywords])
            return [] if defines and all(_read_statement(one) == [] for one in statement.body) else None
        case ast.Try(body, handlers, orelse, []) if _catches_import_error(handlers):
            return _read_try(body, [line for one in handlers for line in one.body], orelse)
        case ast.If(ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), orelse=[]):
            return []
        case ast.Assign([ast.Subscript(value=target, slice=ast.Constant(str(name)))], ast.Constant(str(value))):
            return [SetVariable(name, value)] if _is_environ(target) else None
        case ast.Expr(
            ast.Call(ast.Attribute(target, "setdefault"), [ast.Constant(str(name)), ast.Constant(str(value))], [])
        ):
            return [SetVariable(name, value, is_default=True)] if _is_environ(target) else None
        case ast.Assign(targets) if all(isinstance(one, ast.Name) for one in targets):
            return [] if _is_harmless(statement) else None
        case ast.AnnAssign(target=ast.Name()):
            return [] if _is_harmless(statement) else None
    return None


def _read_try(body: list[ast.stmt], handling: list[ast.stmt], orelse: list[ast.stmt]) -> list[_Raw] | None:
    """A `try` of imports. If a handler is not harmless, a missing module ends the list as it would elsewhere."""
    read = [_read_statement(one) for one in [*body, *orelse]]
    if any(one is None for one in read):
        return None
    imports = [step for one in read for step in one or []]
    raw = [one for one in imports if isinstance(one, _RawImport)]
    if len(raw) < len(imports):
        return None
    return [_RawAttempt(tuple(raw))] if raw and all(_read_statement(one) == [] for one in handling) else imports


def _catches_import_error(handlers: list[ast.ExceptHandler]) -> bool:
    caught = {name for one in handlers if one.type is not None for name in _names(one.type)}
    return caught <= {"ImportError", "ModuleNotFoundError", "Exception"} and bool(caught)


def _names(node: ast.AST) -> list[str]:
    """The last part of every name in an expression."""
    inner = [one for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)]
    hidden = {id(one.value) for one in inner if isinstance(one, ast.Attribute)}
    return [one.attr if isinstance(one, ast.Attribute) else one.id for one in inner if id(one) not in hidden]


def _is_environ(node: ast.expr) -> bool:
    return _names(node) == ["environ"]


def _is_harmless(node: ast.AST) -> bool:
    """Whether an expression calls nothing that might change what a later import finds."""
    return all(_is_harmless_call(one.func) for one in ast.walk(node) if isinstance(one, ast.Call))


def _is_harmless_call(function: ast.expr) -> bool:
    match function:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name in HARMLESS
    return False


def _defines_only(
    statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, expressions: Sequence[ast.AST | None]
) -> bool:
    """Whether a definition does nothing else. `expressions`: what it evaluates, apart from its decorators."""
    called = [one.func if isinstance(one, ast.Call) else one for one in statement.decorator_list]
    evaluated = [*statement.decorator_list, *expressions]
    return all(map(_is_harmless_call, called)) and all(_is_harmless(one) for one in evaluated if one is not None)
