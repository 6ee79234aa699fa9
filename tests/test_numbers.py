"""The check that foreign text becomes a number in one place only."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_numbers import ALLOWED, SOURCE, find_wrong


def test_the_operator_passes() -> None:
    assert list(find_wrong(SOURCE, ALLOWED)) == []


def test_it_finds_conversions_and_forgotten_permissions(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('a = int("1")\nb = float(text)\nc = decimal.Decimal(text)\nd = int(known)\n')
    (tmp_path / "numerals.py").write_text("a = int(text)\n")
    found = list(find_wrong(tmp_path, {"one.py": {"int(known)": "why", "int(gone)": "why"}}))
    assert [line.partition(": read")[0].rpartition("/")[2] for line in found[:2]] == [
        "one.py:2: float(text)",
        "one.py:3: decimal.Decimal(text)",
    ]
    assert found[2:] == ["scripts/check_numbers.py: one.py has no int(gone) any more: take it out"]


@pytest.mark.parametrize(
    "line",
    [
        "map(int, words)",
        "sorted(words, key=float)",
        "collections.defaultdict(decimal.Decimal)",
        "Fraction(text)",
        "complex(text)",
        "datetime.fromisoformat(text)",
        "datetime.strptime(text, '%Y')",
        "ast.literal_eval(text)",
        "to_number = int",
        "readers = {'count': int}",
    ],
)
def test_it_finds_conversions_in_disguise(line: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(f"{line}\n")
    assert len(list(find_wrong(tmp_path, {}))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(value, (int, float))",
        "count: int = 0",
        "Numbers = dict[str, Decimal]",
        "click.option('--seed', type=int)",
        "Count = Annotated[int, Field(ge=0)]",
        "readers: dict[str, tuple[int, float]] = {}",
    ],
)
def test_it_lets_types_be(line: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(f"{line}\n")
    assert list(find_wrong(tmp_path, {})) == []
