"""YAML that somebody else has written, read within bounds: a text of some lines can stand for more than a memory holds.

Whatever is wrong with it is one error: PyYAML raises those of Python for a number of 5,000 digits, or `!!bool x`. It
copies what is merged (`<<`) as often as it is named, also where all of it is the same. And of its values, those come
out that JSON has, as in Kubernetes: what looks like a date or a time is a text, and `1e3` is a number.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

from elasticjob_operator import numerals
from elasticjob_operator.api import bounds

MOST_VALUES: Final = 100_000  # in one document
MOST_BYTES: Final = 2**24  # of one
_STANDARD: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_STANDARD}merge"
_COMPUTED: Final = (f"{_STANDARD}int", f"{_STANDARD}float")
_KNOWN: Final = (*_COMPUTED, *(f"{_STANDARD}{name}" for name in ("null", "bool", "str", "seq", "map")))
# Without numbers to the base of 60, and with exponents as they are in JSON.
_FORMS: Final = {
    f"{_STANDARD}int": re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$"),
    f"{_STANDARD}float": re.compile(
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
    ),
}
_TEXTS: Final = (f"{_STANDARD}timestamp", f"{_STANDARD}value")  # what looks like a date, and `=`
_REMEDY: Final = "after expanding aliases (*name): remove what is not needed, or split the file"
_TOO_MANY: Final = f"has more than {MOST_VALUES} values {_REMEDY}"


class DocumentError(ValueError):
    """The text cannot be read; the message says why."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML has it
        first: [(tag, _FORMS.get(tag, form)) for tag, form in found if tag not in _TEXTS]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _merged = 0  # pairs, in all mappings

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag not in _KNOWN:
            kind = node.tag.removeprefix(_STANDARD)
            raise ConstructorError(None, None, f"a value of {kind!r}, which JSON does not have", node.start_mark)
        if isinstance(node, yaml.ScalarNode) and node.tag in _COMPUTED and len(node.value) > numerals.LONGEST:
            raise ConstructorError(None, None, f"a number of {len(node.value)} characters", node.start_mark)
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError("JSON has neither infinity nor NaN")
            return value
        except DocumentError:
            raise
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:  # of a scalar
            kind = node.tag.removeprefix(_STANDARD)
            raise ConstructorError(None, None, f"no {kind} ({error})", node.start_mark) from None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Count what it will copy, innermost first, before it does."""
        for key, value in [*node.value]:
            if key.tag != _MERGE:
                continue
            for part in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                if isinstance(part, yaml.MappingNode):
                    self.flatten_mapping(part)
                    self._merged += 1 + len(part.value)
                if self._merged > MOST_VALUES:
                    raise DocumentError(_TOO_MANY)
        super().flatten_mapping(node)


def load_documents(text: str) -> list[Any]:
    """The documents of a text, without those that are empty. Raises DocumentError."""
    try:
        documents = [one for one in yaml.load_all(text, _Loader) if one is not None]
        sizes = [bounds.measure(document, MOST_VALUES, MOST_BYTES) for document in documents]
    except yaml.YAMLError as error:
        raise DocumentError(f"is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise DocumentError("is nested too deeply to be parsed") from None
    for size in sizes:
        if size.values > MOST_VALUES:
            raise DocumentError(_TOO_MANY)
        if size.bytes > MOST_BYTES:
            raise DocumentError(f"has more than {MOST_BYTES} bytes {_REMEDY}")
        if size.depth > bounds.MOST_DEPTH:
            raise DocumentError(f"is nested {size.depth} levels deep; the limit is {bounds.MOST_DEPTH}")
    return documents
