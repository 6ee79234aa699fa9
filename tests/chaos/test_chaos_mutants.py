"""Tests the suites: they must detect the mistakes that are cheap to detect. `make chaos` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.mutants import MUTANTS, ROOT, Mutant, kill


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", [pytest.param(m, id=m.name.replace(" ", "-")) for m in MUTANTS if m.quick])
def test_a_mistake_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    assert not kill(mutant, tmp_path)


def test_every_mutant_still_fits_the_code() -> None:
    assert [m.name for m in MUTANTS if m.old not in (ROOT / m.file).read_text()] == []
