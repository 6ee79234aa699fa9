"""SECURITY.md: each guarantee names the tests that hold it, and these exist; the limits are those of the hub."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticjob_operator.hub.limits import HubSettings

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`((?:tests/)?[\w/]*test_\w+\.py)`")


def read_rows() -> list[tuple[str, str]]:
    """(guarantee, tests) of the table."""
    section = (ROOT / "SECURITY.md").read_text().partition("## Guarantees and their tests")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(cells[0].strip(), cells[-1]) for cells in rows[1:]]


@pytest.mark.parametrize(("guarantee", "named"), read_rows(), ids=lambda cell: cell.replace(" ", "-")[:60])
def test_a_guarantee_names_tests_that_exist(guarantee: str, named: str) -> None:
    found = NAMED.findall(named)
    assert found, f"{guarantee}: no test is named"
    for name in found:
        assert (ROOT / name).is_file() if "/" in name else len(list((ROOT / "tests").rglob(name))) == 1, name


def test_other_sections_name_tests_that_exist() -> None:
    for name in NAMED.findall((ROOT / "SECURITY.md").read_text()):
        assert (ROOT / name).is_file() if "/" in name else list((ROOT / "tests").rglob(name)), name


def test_the_limits_are_those_of_the_hub() -> None:
    one = HubSettings()
    section = (ROOT / "SECURITY.md").read_text().partition("## What the hub allows")[2].partition("\n## ")[0]
    for row in (
        f"| sockets without a complete request | {one.max_pending_sockets:,} and {one.hello_seconds:.0f} s |",
        f"| tokens under review | {one.max_unauthenticated}, of which 16 at the API server |",
        f"| failed tokens | {one.failure_burst:.0f} per address, then one per second (429) |",
        f"| upgrades without a hello | {one.max_pending} and {one.hello_seconds:.0f} s; one per pod, the newest |",
        f"| agents | {one.max_connections:,}, one per pod |",
        f"| connections | {one.connect_burst:.0f} per pod, then one per second (429) |",
        f"| messages | {one.max_message_bytes >> 10} KiB each; {one.message_burst:.0f} per pod, then ",
        f" then {one.messages_per_second:.0f} per second; a message counts once more for each ",
        f" once more for each {one.message_bytes_per_token >> 10} KiB |",
        f"| lines in the operator's log | {one.note_kib_burst:.0f} KiB per pod, then {one.note_kib_per_second} KiB ",
    ):
        assert row in section, row
    assert one.failures_per_second == one.connects_per_second == 1.0
