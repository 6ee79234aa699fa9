"""The random mistakes of `make mutants`: which ones are made, and that each changes the code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts import mutants

MODULE = f"{mutants.OPERATOR}/sizing/legal.py"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        pytest.param("x = a < b", ["(a <= b)"], id="comparison"),
        pytest.param("x = a is None", ["(a is not None)"], id="identity"),
        pytest.param("x = a and b", ["(a or b)"], id="and"),
        pytest.param("x = not a", ["(a)"], id="not"),
        pytest.param("x = a + 1", ["(a - 1)"], id="plus"),
        pytest.param("if a:\n    pass", ["(False)"], id="guard"),
        pytest.param("x = 'ä' if a else b", ["(False)"], id="offsets count bytes"),
        pytest.param("x = 'a' + b", [], id="joined texts are left alone"),
        pytest.param("assert a < b", [], id="assertions are left alone"),
        pytest.param("if TYPE_CHECKING:\n    pass", [], id="imports for types are left alone"),
    ],
)
def test_mistakes_of_a_text(text: str, made: list[str]) -> None:
    found = mutants.find_mistakes(MODULE, text)
    assert [mistake.after for mistake in found] == made
    for mistake in found:
        data = text.encode()
        assert data[mistake.begin : mistake.end].decode() == mistake.before
        ast.parse((data[: mistake.begin] + mistake.after.encode() + data[mistake.end :]).decode())


def test_a_seed_draws_the_same_mistakes() -> None:
    first, second, other = (mutants.draw(seed, 20, "") for seed in (1, 1, 2))
    assert first == second != other
    assert len(set(first)) == 20


def test_only_the_named_folder_is_changed() -> None:
    drawn = mutants.draw(1, 1000, f"{mutants.OPERATOR}/sizing")
    assert drawn
    assert {mistake.folder for mistake in drawn} == {"sizing"}


@pytest.mark.timeout(300)
def test_a_mistake_is_noticed_and_a_harmless_change_is_not(tmp_path: Path) -> None:
    text = (mutants.ROOT / MODULE).read_text()
    wrong = next(m for m in mutants.find_mistakes(MODULE, text) if "limit < self.min" in m.before)
    suite = ["tests/controller/sizing/test_legal.py"]
    assert mutants.notice(wrong, tmp_path, [suite])
    harmless = mutants.Mistake(MODULE, wrong.line, wrong.begin, wrong.end, wrong.before, f"({wrong.before})")
    assert not mutants.notice(harmless, tmp_path, [suite])
