"""The base class of the API models. Values are frozen; this module does no I/O."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from elasticjob_operator import numerals


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class Model(BaseModel):
    """A frozen API object: snake_case in Python, camelCase in YAML, unknown fields rejected."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=_camel, populate_by_name=True, defer_build=True
    )

    # CEL rules of this object: (rule, message). A validator implements the same rule.
    CEL: ClassVar[tuple[tuple[str, str], ...]] = ()
    # CEL rules of a change, which also see `oldSelf`. On servers without CEL, `reading` keeps what is in force.
    CEL_OF_CHANGES: ClassVar[tuple[tuple[str, str], ...]] = ()
    # CEL rules of the whole job, which also see its status.
    CEL_OF_JOBS: ClassVar[tuple[tuple[str, str], ...]] = ()

    def dump(self) -> dict[str, Any]:
        """The JSON object as the API server stores it: fields without a value are absent, not null."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


MOST_SECONDS: Final = 10_000_000
Replicas = Annotated[int, Field(ge=1, le=100_000)]
Seconds = Annotated[int, Field(ge=0, le=MOST_SECONDS)]


def schema_of_number_or(*words: str, least: int, most: int) -> dict[str, Any]:
    """What the API server can check of `number_or`: the text by the pattern, the number by the bounds."""
    return {"pattern": f"^({'|'.join(words)}|[0-9]{{1,{len(str(most))}}})$", "minimum": least, "maximum": most}


def number_or(*words: str, least: int, most: int, otherwise: str) -> AfterValidator:
    """For `int | str`: one of these words, or a number in these bounds, which may be a text. `otherwise`: the error."""

    def check(value: int | str) -> int | str:
        if value in words:
            return value
        number = numerals.read_count(value, most, least=least)
        if number is None:
            raise ValueError(otherwise)
        return number

    return AfterValidator(check)


class StatusModel(Model):
    """A status object. Unknown fields, written by a newer operator, are kept."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
