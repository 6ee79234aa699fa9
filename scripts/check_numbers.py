"""Foreign text becomes a number in one module of the operator only. Part of `make check`.

`int(`, `float(` and `Decimal(` accept texts of any length, on which they take minutes and gigabytes, or raise what
nobody expects; so do their relatives below. `elasticjob_operator.numerals` checks length, form and magnitude first.
Other modules that convert something are listed here by the text of the call, with the reason why it cannot be foreign
text. A conversion that is handed on, as in `map(int, words)`, is one too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "operator/elasticjob_operator"
CLASSES: Final = ("int", "float", "Decimal", "Fraction", "complex")
CONVERSIONS: Final = (*CLASSES, "fromisoformat", "strptime", "literal_eval", "eval")
TAKE_A_CLASS: Final = ("isinstance", "issubclass", "option", "argument")  # click's parse the user's own command line
NUMERALS: Final = "numerals.py"

PORT: Final = "the port of a socket of this process"
COMPUTED: Final = "a number that this module has computed"
CHECKED: Final = "a bounded number of a validated model"
ALLOWED: Final[Mapping[str, Mapping[str, str]]] = {
    "__main__.py": {"int(record.msecs)": "from the standard library's logging"},
    "api/patterns.py": {
        "int(least[:6])": "of six digits",
        "int(most[:6])": "of six digits",
        "float((text or '').replace(',', ''))": "of a line of at most 1,024 characters",
    },
    "convert/torchx.py": {
        "ast.literal_eval(_ENUM.sub('\\\\1', rest[:end.start() if end else None]).strip())": "of its user",
    },
    "history/faulty_nodes.py": {"float(0.5 ** (max(0.0, age) / HALF_LIFE_SECONDS))": COMPUTED},
    "history/moments.py": {"float(p.bytes_per_second or 0)": CHECKED},
    "html_report/bars.py": {"int((width - 8) / _LETTER)": COMPUTED},
    "html_report/plot.py": {"int(seconds)": COMPUTED, "float(math.floor(lowest))": COMPUTED, "float(t)": COMPUTED},
    "hub/server.py": {"int(self._server.sockets[0].getsockname()[1])": PORT},
    "kube/lease.py": {"float(numerals.read_count(spec.get('leaseDurationSeconds')) or 0)": "a number"},
    "kube/watch.py": {"int(SERVER_SECONDS * random.uniform(0.8, 1.2))": COMPUTED},
    "launch/bundle.py": {"int(file.executable)": "a truth"},
    "launch/function.py": {"ast.literal_eval(repr(value))": "a value of this process"},
    "plan/ending.py": {"float(spec.elastic_policy.graceful_shutdown_timeout_seconds)": CHECKED},
    "plan/plan.py": {"float(spec.elastic_policy.graceful_shutdown_timeout_seconds)": CHECKED},
    "pool/allocate.py": {"float(capacity)": COMPUTED, "int(level * line.request.weight)": COMPUTED},
    "pool/rounds.py": {"float(one.spec.scaling.weight)": CHECKED},
    "quantity.py": {
        "Decimal(2 ** 63)": "a constant",
        "int(whole)": "a quantity in its range",
        "int((amount * 1000).to_integral_value(ROUND_CEILING))": "a quantity in its range",
    },
    "run/http.py": {"int(self._server.sockets[0].getsockname()[1])": PORT},
    "times.py": {"datetime.fromisoformat(text.replace('Z', '+00:00'))": "of at most 64 characters"},
    "view/sparkline.py": {"int((value - low) / (high - low) * len(_BARS))": COMPUTED},
    "view/words.py": {"int(seconds)": COMPUTED},
}


def find_conversions(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each conversion of something that is no constant, and of each that is handed on."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = _name(node.func)
            converts = name in CONVERSIONS and not all(isinstance(one, ast.Constant) for one in node.args)
            handed_on = [] if name in TAKE_A_CLASS else [*node.args, *(one.value for one in node.keywords)]
        elif isinstance(node, ast.Assign | ast.Dict | ast.Return):
            converts = False
            handed_on = node.values if isinstance(node, ast.Dict) else [node.value] if node.value is not None else []
        else:
            continue
        if converts or any(_name(one) in CLASSES for one in handed_on):
            yield node.lineno, ast.unparse(node)


def _name(node: ast.AST) -> str:
    """`int` and `decimal.Decimal` by their last name; "" for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def find_wrong(root: Path, allowed: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """One line for each conversion that is not allowed, and for each permission that nothing needs any more."""
    unused = {(name, call) for name, calls in allowed.items() for call in calls}
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root).as_posix()
        for line, call in find_conversions(file.read_text()) if name != NUMERALS else ():
            unused.discard((name, call))
            if call not in allowed.get(name, {}):
                yield f"{file}:{line}: {call}: read it with elasticjob_operator.numerals, which checks it first"
    for name, call in sorted(unused):
        yield f"scripts/check_numbers.py: {name} has no {call} any more: take it out"


def main() -> int:
    found = list(find_wrong(SOURCE, ALLOWED))
    print("\n".join(line.removeprefix(f"{ROOT}/") for line in found) or "numbers: foreign text is read in one place")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
