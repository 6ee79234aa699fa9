"""The condition that says whether other pods hold copies of the last checkpoint."""

from __future__ import annotations

import pytest

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import copies

TWO = api.Checkpoints(path="/checkpoints", replicas=2)
COPIED = api.Condition(type="CheckpointCopied", status="True", reason=copies.COPIED)
LOST = api.Condition(type="CheckpointCopied", status="False", reason=copies.LOST)


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
