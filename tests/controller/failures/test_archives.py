"""The condition that says whether the job's checkpoints are in a store that outlives its pods."""

from __future__ import annotations

import pytest

from controller.builders import make_job, make_spec
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import archives
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan import archiving

URL = "s3://bucket/runs/ns/job/uid"
SAVED = wire.Archived(step=7, time="2026-11-27T22:00:00Z", bytes=5, files=1)
LATER = wire.Archived(step=90, time="2026-11-27T23:00:00Z", bytes=5, files=1)
BACK = wire.Archived(step=50, time="2026-11-27T22:30:00Z", bytes=5, files=1)  # the job went back to an earlier save
UNCOUNTED_BEFORE = wire.Archived(time="2026-11-27T22:30:00Z", bytes=5, files=1)  # the script reports no steps
UNCOUNTED = wire.Archived(time="2026-11-27T23:30:00Z", bytes=5, files=1)


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


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param([told(saves=(SAVED,)), told(reason="NotInTime")], 0, id="rank-0-counts"),
        pytest.param([told(), told(saves=(SAVED,))], 0, id="as-long-as-it-is-there"),
        pytest.param([None, told(), told(saves=(SAVED,))], 2, id="who-has-archived-instead"),
        pytest.param([None, told(saves=(SAVED,)), told(saves=(LATER, SAVED))], 2, id="who-has-archived-more"),
        pytest.param([None, told(saves=(LATER,)), told(saves=(SAVED,))], 1, id="in-any-order"),
        pytest.param([None, told(saves=(LATER,)), told(saves=(BACK, LATER))], 2, id="who-has-seen-what-the-other-has"),
        pytest.param([None, told(saves=(UNCOUNTED_BEFORE,)), told(saves=(UNCOUNTED,))], 2, id="without-steps"),
        pytest.param([None, told(saves=(LATER,)), told(saves=(LATER,))], 1, id="both-the-same"),
        pytest.param([None, told(reason="NotInTime"), told(saves=(LATER,))], 2, id="who-could"),
        pytest.param([None, told(saves=(LATER,), reason="NotInTime"), told(saves=(SAVED,))], 2, id="without-a-reason"),
        pytest.param([None, told(reason="NotInTime")], 1, id="who-could-not"),
        pytest.param([None, told(reason="NotInTime"), told(saves=(LATER,), reason="NotInTime")], 2, id="nobody-could"),
        pytest.param([None, wire.Checkpoint(number=1), told()], None, id="nobody-has"),
        pytest.param([], None, id="no-world"),
    ],
)
def test_who_tells_of_the_archive(said: list[wire.Checkpoint | None], expected: int | None) -> None:
    assert archiving.find_told(said) == (None if expected is None else said[expected])


def test_the_status_lists_the_saves_and_keeps_them_while_nobody_tells() -> None:
    known = archives.describe(told(saves=(SAVED,)), None, URL)
    assert known is not None
    assert (known.url, [one.step for one in known.saves]) == (URL, [7])
    assert archives.describe(None, known, URL) is known
    assert archives.describe(told(), known, URL) is known


def test_a_namesake_has_another_folder() -> None:
    folders = {api.names.archive_url("s3://b/x/", "ns", "job", uid) for uid in ("one", "two")}
    assert folders == {"s3://b/x/ns/job/one", "s3://b/x/ns/job/two"}


def make_origin(*steps: int | None, **checkpoints: object) -> Job:
    spec = make_spec(checkpoints={"path": "/checkpoints", **checkpoints}) if checkpoints else make_spec()
    saves = [api.ArchivedStatus(step=step) for step in steps]
    return make_job(spec, api.Status(archive=api.ArchiveStatus(url=URL, saves=saves) if saves else None))


@pytest.mark.parametrize(
    ("origin", "step", "expected"),
    [
        pytest.param(None, None, "there is no ElasticJob other in this namespace", id="no-job"),
        pytest.param(make_origin(), None, "other has no archive: set checkpoints.archive", id="no-archive"),
        pytest.param(make_origin(archive={"to": "s3://bucket"}), None, "other has archived nothing yet", id="no-save"),
        pytest.param(make_origin(9, 7), 8, "no save of step 8 in its archive, but: 9, 7", id="no-such-step"),
        pytest.param(make_origin(None), 8, "no save of step 8 in its archive, but: none with a step", id="no-steps"),
        pytest.param(make_origin(9, 7), None, "", id="the-newest"),
        pytest.param(make_origin(9, 7), 7, "", id="a-step"),
        pytest.param(make_origin(*range(16, 0, -1)), 0, "", id="not-all-are-listed"),
    ],
)
def test_where_a_job_begins_that_names_another_one(origin: Job | None, step: int | None, expected: str) -> None:
    found = archives.find_origin(api.CheckpointOrigin(job="other", step=step), "digits", origin)
    if expected:
        assert isinstance(found, str)
        assert expected in found
        assert found.startswith("checkpoints.from.")
    else:
        assert found == api.OriginStatus(job="other", url=URL)


def test_a_job_does_not_begin_with_itself() -> None:
    found = archives.find_origin(api.CheckpointOrigin(job="digits"), "digits", make_origin(7))
    assert isinstance(found, str)
    assert "names itself" in found


@pytest.mark.parametrize("name", ["digits", "llama-3.1-8b", "a" * 200])
def test_a_job_of_any_name_may_be_begun_from(name: str) -> None:
    assert api.CheckpointOrigin(job=name).job == name
