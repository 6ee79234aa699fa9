"""The condition that says whether other pods hold copies of the last checkpoint."""

from __future__ import annotations

import pytest

from controller.builders import make_agent
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import copies

TWO = api.Checkpoints(path="/checkpoints", replicas=2)
COPIED = api.Condition(type="CheckpointCopied", status="True", reason=copies.COPIED)
LOST = api.Condition(type="CheckpointCopied", status="False", reason=copies.LOST)
UNFIT = api.Condition(type="CheckpointCopied", status="False", reason=copies.UNFIT)


@pytest.mark.parametrize(
    ("before", "told", "wanted", "expected"),
    [
        pytest.param(None, wire.Checkpoint(number=3, copies=2), TWO, (True, copies.COPIED), id="copied"),
        pytest.param(COPIED, wire.Checkpoint(number=3, copies=1), TWO, (False, copies.TOO_FEW), id="too-few"),
        pytest.param(None, wire.Checkpoint(), TWO, None, id="none-yet"),
        pytest.param(COPIED, wire.Checkpoint(), TWO, (False, copies.LOST), id="lost"),
        pytest.param(LOST, wire.Checkpoint(), TWO, (False, copies.LOST), id="still-lost"),
        pytest.param(LOST, wire.Checkpoint(number=1, copies=3), TWO, (True, copies.COPIED), id="a-new-one"),
        pytest.param(COPIED, wire.Checkpoint(number=3, restoring=True), TWO, None, id="being-restored"),
        pytest.param(COPIED, None, TWO, None, id="nothing-told"),
        pytest.param(None, wire.Checkpoint(number=3, copies=2), None, None, id="not-asked-for"),
    ],
)
def test_condition(
    before: api.Condition | None,
    told: wire.Checkpoint | None,
    wanted: api.Checkpoints | None,
    expected: tuple[bool, str] | None,
) -> None:
    found = copies.find_copies(before, told, wanted)
    assert (found and found[:2]) == expected
    assert found is None or found[2], "it says what to do"


@pytest.mark.parametrize(
    ("before", "told", "expected"),
    [
        pytest.param(None, None, (False, copies.UNFIT), id="before-the-first-world"),
        pytest.param(COPIED, wire.Checkpoint(number=3, copies=2), (False, copies.UNFIT), id="of-the-next-save"),
        pytest.param(COPIED, wire.Checkpoint(number=3, restoring=True), (False, copies.UNFIT), id="being-restored"),
    ],
)
def test_a_name_that_a_pod_cannot_have(
    before: api.Condition | None, told: wire.Checkpoint | None, expected: tuple[bool, str]
) -> None:
    agents = [
        make_agent(2, said={"checkpoint": wire.Checkpoint(unfit="'z.pt' (300 bytes): File name too long")}),
        make_agent(1, said={"checkpoint": wire.Checkpoint(unfit="'a.pt' (300 bytes): File name too long")}),
        make_agent(0, said={"checkpoint": wire.Checkpoint()}),
        make_agent(3),
    ]
    found = copies.find_copies(before, told, TWO, agents)
    assert found and found[:2] == expected
    assert "digits-worker-1" in found[2] and "'a.pt'" in found[2], "it names one pod, always the same, and the file"
    assert "checkpoints.path" in found[2], "and the remedy"
    assert copies.find_copies(before, told, None, agents) is None


@pytest.mark.parametrize(
    ("before", "told", "expected"),
    [
        pytest.param(None, wire.Checkpoint(), (False, copies.UNFINISHED), id="nothing-was-ever-copied"),
        pytest.param(COPIED, wire.Checkpoint(number=3, copies=2), (False, copies.UNFINISHED), id="something-older-was"),
        pytest.param(COPIED, wire.Checkpoint(number=3, restoring=True), None, id="a-world-begins"),
        pytest.param(COPIED, None, None, id="no-world"),
    ],
)
def test_a_file_that_is_held_up_for_long(
    before: api.Condition | None, told: wire.Checkpoint | None, expected: tuple[bool, str] | None
) -> None:
    said = wire.Checkpoint(unfinished="'run/a.pt', beside which 'run/log' is always being written")
    found = copies.find_copies(before, told, TWO, [make_agent(1, said={"checkpoint": said}), make_agent(0)])
    assert (found and found[:2]) == expected
    assert found is None or all(
        word in found[2] for word in ("digits-worker-1", "'run/a.pt'", "logs", "mode `a`", "less often")
    )
    told_before = api.Condition(type="CheckpointCopied", status="False", reason=copies.UNFINISHED)
    assert copies.find_copies(told_before, wire.Checkpoint(), TWO) is None, "nothing was lost"


def test_a_name_that_is_gone() -> None:
    agents = [make_agent(0, said={"checkpoint": wire.Checkpoint()})]
    assert copies.find_copies(UNFIT, wire.Checkpoint(), TWO, agents) is None, "nothing was lost"
    found = copies.find_copies(UNFIT, wire.Checkpoint(number=3, copies=2), TWO)
    assert found and found[:2] == (True, copies.COPIED)
