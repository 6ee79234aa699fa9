"""The condition that says whether the job's checkpoints are in a store that outlives its pods."""

from __future__ import annotations

import pytest

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import archives

URL = "s3://bucket/runs/ns/job/uid"
SAVED = wire.Archived(step=7, time="2026-11-27T22:00:00Z", bytes=5, files=1)


def told(**archive: object) -> wire.Checkpoint:
    return wire.Checkpoint(number=1, copies=1, archive=wire.Archive(**archive))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param(told(saves=(SAVED,)), (True, archives.ARCHIVED), id="archived"),
        pytest.param(told(), None, id="nothing-yet"),
        pytest.param(told(reason="StoreRefused", message="no"), (False, "StoreRefused"), id="refused"),
        pytest.param(told(saves=(SAVED,), reason="NotInTime", message="no"), (False, "NotInTime"), id="too-late"),
        pytest.param(told(reason="Two words"), (False, archives.OTHER), id="a-reason-of-a-newer-agent"),
        pytest.param(wire.Checkpoint(number=1), (False, archives.TOO_OLD), id="an-older-agent"),
        pytest.param(None, None, id="nothing-told"),
    ],
)
def test_condition(said: wire.Checkpoint | None, expected: tuple[bool, str] | None) -> None:
    found = archives.find_archived(said, URL)
    assert (found and found[:2]) == expected
    assert found is None or found[2], "it says what to do"


def test_the_status_lists_the_saves_and_keeps_them_while_nobody_tells() -> None:
    known = archives.describe(told(saves=(SAVED,)), None, URL)
    assert known is not None
    assert (known.url, [one.step for one in known.saves]) == (URL, [7])
    assert archives.describe(None, known, URL) is known
    assert archives.describe(told(), known, URL) is known


def test_a_namesake_has_another_folder() -> None:
    folders = {api.names.archive_url("s3://b/x/", "ns", "job", uid) for uid in ("one", "two")}
    assert folders == {"s3://b/x/ns/job/one", "s3://b/x/ns/job/two"}
