"""The arithmetic of docs/big-models.md: its tables follow from what the runtime keeps of each byte of a state."""

from __future__ import annotations

import re

import pytest

from operator_fixture import ROOT

PAGE = (ROOT / "docs/big-models.md").read_text()
BYTES = 12  # of a parameter: itself and AdamW's two moments, in float32
PER_POD = 8  # ranks


def read_table(heading: str) -> list[list[str]]:
    """The rows of the table whose columns end with this one, without its head."""
    table = PAGE[PAGE.index(f"| {heading} |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]


def read_number(text: str) -> float:
    found = re.fullmatch(r"([\d,.]+)( billion| s)?", text)
    assert found is not None, text
    return float(found[1].replace(",", ""))


@pytest.mark.parametrize("row", read_table("a file"), ids=lambda row: "-".join(row[:2]))
def test_the_memory_of_a_change_is_that_of_the_whole_state_or_of_four_shards(row: list[str]) -> None:
    parameters, ranks = read_number(row[0]), read_number(row[1])
    whole = parameters * BYTES  # GB, as parameters are in billions
    shard = whole / ranks
    is_alone = ranks == PER_POD  # no other pod keeps copies
    assert read_number(row[2]) == pytest.approx(shard, abs=0.05)
    assert read_number(row[3]) == pytest.approx(whole, abs=0.5)  # one rank of each pod keeps it
    if is_alone:
        assert row[4] == "none"
    else:
        assert read_number(row[4]) == pytest.approx(PER_POD * 4 * shard, abs=0.5)
    assert read_number(row[5]) == pytest.approx(PER_POD * (2 if is_alone else 4) * shard, abs=0.5)
    assert read_number(row[6]) == pytest.approx(whole, abs=0.5)


@pytest.mark.parametrize("row", read_table("a file, all ranks together"), ids=lambda row: "-".join(row[:2]))
def test_the_time_of_a_change_is_that_of_its_bytes(row: list[str]) -> None:
    whole = read_number(row[0]) * BYTES
    assert read_number(row[2]) == read_number(row[4]) == pytest.approx(whole, abs=0.5)
    assert read_number(row[3]) == pytest.approx(PER_POD * whole / read_number(row[1]), abs=0.5)
