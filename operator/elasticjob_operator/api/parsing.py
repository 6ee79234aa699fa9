"""Parses a spec, and reports every invalid field."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from elasticjob_operator import text
from elasticjob_operator.api.base import Model
from elasticjob_operator.api.fields import advise, spell
from elasticjob_operator.api.spec import Spec


class Problem(Model):
    """One validation error of a job: the path of the field as a user would write it, and the remedy."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class InvalidJobError(ValueError):
    """The spec of a job is invalid; `problems` lists all errors."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(p) for p in self.problems))


_MESSAGES = {"missing": "is required"}
_LONGEST_FIELD, _LONGEST_MESSAGE = 512, 2048  # characters: they may repeat what is in a spec, however long that is


def parse_spec(raw: object) -> Spec:
    """Validate the `spec` of a job as read from YAML or the API. Raises InvalidJobError, which lists every problem."""
    if not isinstance(raw, dict):
        raise InvalidJobError([Problem(field="spec", message="is required: set at least spec.template")])
    try:
        return Spec.model_validate(raw)
    except ValidationError as error:
        raise InvalidJobError(find_problems(error, "spec")) from None


def find_problems(error: ValidationError, root: str) -> list[Problem]:
    """The errors that pydantic found, with field paths as a user would write them; one problem per field."""
    found: dict[str, Problem] = {}
    for item in error.errors(include_url=False, include_input=False):
        # The names of union branches ("int", "function-after[...]") are pydantic's, not the user's.
        path = tuple(p for p in item["loc"] if isinstance(p, int) or not _is_branch(p))
        if item["type"] == "extra_forbidden":
            message = f"is not a field of ElasticJob: {advise(path)}"
        else:
            message = _MESSAGES.get(item["type"]) or item["msg"].removeprefix("Value error, ")
            message = message[:1].lower() + message[1:]
        field = text.cut(spell(root, path), _LONGEST_FIELD)
        found.setdefault(field, Problem(field=field, message=text.cut(message, _LONGEST_MESSAGE)))
    return list(found.values())


def _is_branch(part: str) -> bool:
    return part in ("int", "str", "constrained-int", "constrained-str") or "[" in part
