"""A job that begins from the archive of another one waits for it, once."""

from __future__ import annotations

from dataclasses import replace

from controller.builders import NOW, make_job, make_spec
from elasticjob_operator import api
from elasticjob_operator.plan.plan import Seen, plan

URL = "s3://bucket/default/other/uid"
ORIGIN = {"path": "/checkpoints", "archive": {"to": "s3://bucket"}, "from": {"job": "other"}}


def make_other(url: str = URL) -> api.Status:
    return api.Status(archive=api.ArchiveStatus(url=url, saves=[api.ArchivedStatus(step=7)]))


def test_a_job_waits_without_pods_until_the_other_has_a_save() -> None:
    job = make_job(make_spec(checkpoints=ORIGIN))
    waits = plan(Seen(job=job, now=NOW))
    assert not waits.create
    degraded = waits.status.condition("Degraded")
    assert degraded is not None
    assert (degraded.status, degraded.reason) == ("True", "NothingToRestore")
    assert waits.wake_at is not None, "nobody tells when the other job changes"
    job = replace(job, status=waits.status)
    found = plan(Seen(job=job, now=NOW, origin=make_job(status=make_other())))
    assert found.status.origin == api.OriginStatus(job="other", url=URL)
    assert not found.status.is_true("Degraded")
    assert plan(Seen(job=replace(job, status=found.status), now=NOW)).create, "also if the other job is gone by now"


def test_a_later_job_of_that_name_is_another_one() -> None:
    job = make_job(make_spec(checkpoints=ORIGIN))
    first = plan(Seen(job=job, now=NOW, origin=make_job(status=make_other()))).status
    then = plan(Seen(job=replace(job, status=first), now=NOW, origin=make_job(status=make_other("s3://bucket/new"))))
    assert then.status.origin == api.OriginStatus(job="other", url=URL)


def test_what_is_named_after_the_start_has_no_effect() -> None:
    job = make_job(make_spec(checkpoints={"path": "/checkpoints", "archive": {"to": "s3://bucket"}}))
    status = plan(Seen(job=job, now=NOW)).status
    then = plan(Seen(job=make_job(make_spec(checkpoints=ORIGIN), status), now=NOW))
    assert then.create
    assert then.status.origin is None
