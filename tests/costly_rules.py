"""`spec.health.rules` that take the operator as long as the API allows."""

from __future__ import annotations

from typing import Any, Final

from elasticjob_operator.api.health_rules import MOST_RULES

# As many instructions as an expression may have, of which many consume nothing, or classes that are large.
_SHAPES: Final = (
    "(?:(?:a?){30}){4}",
    "(?:()(a)){49}",
    r"[^é-ü]{64}(?:\W?){64}",
    "(?i)(" + "(?:a|b)*" * 28 + ")",
)


def costly_rules(mark: str = "x") -> list[dict[str, Any]]:
    """As many as a job may have, with expressions that no other mark gives."""
    rules: list[dict[str, Any]] = []
    for number in range(MOST_RULES):
        shape = number % len(_SHAPES)
        text = f"{_SHAPES[shape]}{mark}{number}"
        when: dict[str, Any] = {"log": text}
        if shape == 3:
            check = {"sigma": 1} if number == shape else {"fallsPercent": 1}
            when = {"metric": {"name": f"m{number}", "log": text, **check}}
        rules.append({"name": f"R{number}", "when": when})
    return rules
