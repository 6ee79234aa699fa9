"""SECURITY.md: each guarantee names the tests that hold it, which exist and notice a mistake; limits are the hub's."""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path

import pytest

from chaos.mutants import MUTANTS
from elasticjob_operator.hub import auth, handshake, registry
from elasticjob_operator.hub.limits import HubSettings, bytes_allowed

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


def test_a_deliberate_mistake_is_for_a_test_that_its_guarantee_names() -> None:
    """`make chaos` shows that these tests notice the mistakes."""
    rows = dict(read_rows())
    for mutant in MUTANTS:
        if mutant.breaks:
            named = {Path(name).name for name in NAMED.findall(rows[mutant.breaks])}
            assert Path(mutant.suite[0]).name in named, f"{mutant.name}: {mutant.breaks}"


def test_each_guarantee_has_a_deliberate_mistake() -> None:
    assert {guarantee for guarantee, _ in read_rows()} - {mutant.breaks for mutant in MUTANTS} == set()


def test_other_sections_name_tests_that_exist() -> None:
    for name in NAMED.findall((ROOT / "SECURITY.md").read_text()):
        assert (ROOT / name).is_file() if "/" in name else list((ROOT / "tests").rglob(name)), name


def test_the_limits_are_those_of_the_hub() -> None:
    one, most = HubSettings(), "| namespaces: each nine times as many as are free |"
    known = {name: found.default for name, found in inspect.signature(auth.TokenAuthenticator).parameters.items()}
    rate, burst = bytes_allowed(one)
    section = (ROOT / "SECURITY.md").read_text().partition("## What the hub allows")[2].partition("\n## ")[0]
    for row in (
        f"| sockets without a complete request | {one.max_pending_sockets:,} and {one.hello_seconds:.0f} s |",
        f"| tokens under review | {one.max_unauthenticated}, of which {known['parallel']} at the API server |",
        f"| bytes between a request and its answer | {handshake.MOST_EARLY >> 10} KiB of each socket |",
        f"| failed tokens | {one.failure_burst:.0f} per address, then one per second (429) |",
        f"| tokens of pods that the operator has not seen yet | {known['unseen']} and {known['find_seconds']:.0f} s |",
        f"| upgrades without a hello | {one.max_pending} and {one.hello_seconds:.0f} s; one per pod, the newest {most}",
        f"| agents | {one.max_connections:,}, one per pod {most}",
        f"| connections | {one.connect_burst:.0f} per pod, then one per second (429) |",
        f"| messages | {one.max_message_bytes >> 10} KiB each; {one.message_burst:.0f} per pod, then ",
        f" then {one.messages_per_second:.0f} per second; a message counts once more for each ",
        f" once more for each {one.message_bytes_per_token >> 10} KiB |",
        f"| bytes of a pod's last messages, beyond {one.kept_bytes >> 10} KiB of each kind | ",
        f" KiB of each kind | {one.max_kept_bytes >> 20} MiB; a failure without room loses its traceback",
        f" turn, beyond {one.kept_bytes >> 10} KiB of each connection | {one.max_arriving_bytes >> 20} MiB;",
        f"| bytes of worlds, in lists of more than {one.kept_bytes >> 10} KiB, that pods have yet to read | ",
        f" that pods have yet to read | {one.max_unread_bytes >> 20} MiB; ",
        f" a pod that takes nothing for {one.slow_seconds:.0f} s loses its connection |",
        f"| bytes, whatever frames they are | {burst / 1024:.0f} KiB per pod, then {rate / 1024:.0f} KiB per second |",
        f"| lines in the operator's log | {one.note_kib_burst:.0f} KiB per pod, then {one.note_kib_per_second} KiB ",
    ):
        assert row in section, row
    assert one.failures_per_second == one.connects_per_second == 1.0


@pytest.mark.parametrize("document", ["SECURITY.md", "docs/operations.md"])
def test_the_quota_that_bounds_memory_counts_pods_that_have_ended(document: str) -> None:
    """`pods` counts those that have not, and a job may keep as many of the others as it likes."""
    text = " ".join((ROOT / document).read_text().split())
    named = re.findall(r"(?:a|the) quota for pods|ResourceQuota for (?!`count/)\S*pods", text)
    assert named == [] and "`count/pods`" in text


def test_one_namespace_alone_gets_nine_tenths() -> None:
    rooms = registry.AgentRegistry(lambda job: None, time.time, HubSettings())
    for room in (rooms.pending, rooms.places):
        taken = 0
        while room.enter("a"):
            taken += 1
        assert taken == pytest.approx(0.9 * room.capacity, abs=1)
