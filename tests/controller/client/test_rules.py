"""The interpretation of API server responses: tables, no cluster."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller import client_fixture as given
from elasticjob_operator.api import names
from elasticjob_operator.client import Change, Happening, Job, JobFailedError, NotFoundError, Pod, errors, logs, rules
from elasticjob_operator.client import history as past
from elasticjob_operator.client.connection import find_kubeconfig
from elasticjob_operator.client.execute import ExecUnavailableError, exit_code_of
from elasticjob_operator.client.logs import is_newer, split_stamp
from elasticjob_operator.rest.errors import decode_error
from elasticjob_operator.times import parse_time


def status(code: int, reason: str, message: str) -> str:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message})


@pytest.mark.parametrize(
    ("code", "body", "kind", "text"),
    [
        (401, "", errors.UnauthorizedError, "renew the login"),
        (403, status(403, "Forbidden", "no"), errors.ForbiddenError, "not allowed: no. docs/cli.md"),
        (404, "404 page not found\n", errors.NotFoundError, "install the operator's CRD"),
        (404, status(404, "NotFound", '"x" not found'), errors.NotFoundError, 'not found: "x" not found'),
        (409, status(409, "AlreadyExists", "x exists"), errors.AlreadyExistsError, "choose another name"),
        (409, status(409, "Conflict", "stale"), errors.ConflictError, "try again"),
        (410, status(410, "Expired", "too old"), errors.GoneError, "too old"),
        (422, status(422, "Invalid", "spec.replicas"), errors.InvalidError, "refused: spec.replicas"),
        (500, "boom", errors.ClientError, "answered 500 Internal Server Error: boom"),
    ],
)
def test_answers_in_words(code: int, body: str, kind: type[Exception], text: str) -> None:
    error = errors.explain(decode_error(code, body.encode()), "get job x")
    assert type(error) is kind
    assert text in str(error)
    assert str(error).startswith("get job x")


@pytest.mark.parametrize(
    ("status", "condition", "met"),
    [
        ({}, "Running", False),
        (given.running_status(), "running", True),
        (given.running_status(), "Finished", False),
        ({"conditions": [given.condition("Failed")]}, "Finished", True),
        ({"conditions": [given.condition("Failed")]}, "Failed", True),
        ({"conditions": [given.condition("Failed")]}, "Complete", None),
        ({"conditions": [given.condition("Complete")]}, "Suspended", None),
        ({"conditions": [given.condition("Suspended", status="False")]}, "Suspended", False),
    ],
)
def test_conditions(status: dict[str, object], condition: str, met: bool | None) -> None:
    if met is None:
        with pytest.raises(JobFailedError):
            rules.is_met(given.job(status), condition)
    else:
        assert rules.is_met(given.job(status), condition) is met


def pods(count: int) -> list[Pod]:
    return [Pod(given.pod_object("digits", i, "true")) for i in range(count)]


def test_ranks_are_those_of_processes() -> None:
    job = given.job(given.running_status(pods=3, nproc=4))
    assert job.rank_ranges()["digits-worker-1"] == range(4, 8)
    assert [p.name for p in rules.choose_pods(job, pods(3), 11, patient=False)] == ["digits-worker-2"]
    with pytest.raises(NotFoundError, match="rank 12 of digits: the job has ranks 0 to 11"):
        rules.choose_pods(job, pods(3), 12, patient=False)
    assert rules.choose_pods(job, pods(3), 12, patient=True) == []
    waiting = given.job({})
    assert [p.name for p in rules.choose_pods(waiting, pods(2), 1, patient=False)] == ["digits-worker-1"]


def test_watch_lines() -> None:
    raw = {"type": "MODIFIED", "object": given.job().raw}
    change = rules.parse_change(json.dumps(raw))
    assert change is not None and change.job.name == "digits"
    assert rules.parse_change(json.dumps(raw | {"type": "BOOKMARK"})) is None
    assert rules.parse_change("") is None
    with pytest.raises(errors.GoneError):
        rules.parse_change(json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}))


@pytest.mark.parametrize(
    ("line", "stamp", "text"),
    [
        ("2026-01-02T03:04:05.12Z hello", "2026-01-02T03:04:05.12Z", "hello"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z", ""),
        ("no stamp", None, "no stamp"),
    ],
)
def test_stamps(line: str, stamp: str | None, text: str) -> None:
    assert split_stamp(line) == (stamp, text)


def test_a_shorter_fraction_is_not_older() -> None:
    assert is_newer("2026-01-02T03:04:05.2Z", "2026-01-02T03:04:05.123456789Z")
    assert not is_newer("2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05.123Z")
    assert not is_newer("2026-01-02T03:04:05.123Z", "2026-01-02T03:04:05.123Z")
    assert is_newer(None, "2026-01-02T03:04:05Z")


def test_stamps_of_a_node_with_another_time_zone_than_utc() -> None:
    assert logs.whole_second("2026-01-02T03:04:05.2+02:00") == "2026-01-02T01:04:05Z"
    assert logs.whole_second("2026-01-02T03:04:05-01:00") == "2026-01-02T04:04:05Z"
    assert logs.whole_second("2026-01-02T03:04:05.999999999Z") == "2026-01-02T03:04:05Z"
    assert logs.whole_second(None) is None
    assert is_newer("2026-10-25T02:30:00.1+01:00", "2026-10-25T02:45:00.1+02:00"), "the end of summer time"
    assert not is_newer("2026-01-02T03:04:05.1+02:00", "2026-01-02T03:04:05.123+02:00")


def test_which_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    default = tmp_path / ".kube" / "config"
    assert find_kubeconfig(None, None, tmp_path) is None
    default.write_text("")
    other = tmp_path / "other"
    other.write_text("")
    assert find_kubeconfig(None, None, tmp_path) == str(default)
    assert find_kubeconfig(None, f"/gone{os.pathsep}{other}", tmp_path) == str(other)
    assert find_kubeconfig(str(default), str(other), tmp_path) == str(default)
    with pytest.raises(errors.ConfigError, match="KUBECONFIG=/gone"):
        find_kubeconfig(None, "/gone", tmp_path)


def test_exit_codes_of_exec() -> None:
    causes = {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}}
    assert exit_code_of('{"status": "Success"}', "p") == 0
    assert exit_code_of(json.dumps(causes), "p") == 3
    with pytest.raises(ExecUnavailableError, match="no such container"):
        exit_code_of('{"status": "Failure", "message": "no such container"}', "p")
    with pytest.raises(ExecUnavailableError):
        exit_code_of("", "p")


# --- history ---------------------------------------------------------------------------------------------


def event(time: float, reason: str, message: str) -> Happening:
    return Happening(time, "Normal", reason, message, "elasticjob/digits")


def test_history_of_events_and_samples() -> None:
    events = [
        event(100, "WorldFormed", "generation 1 with 4 pods: the job starts"),
        event(160, "WorldChanged", "generation 2 from 4 to 3 pods: a member was lost"),
        event(159, "MemberLost", "digits-worker-3 (rank 3) is lost: its connection closed"),
        event(300, "Completed", "all ranks ended well"),
    ]
    samples = [
        past.Sample(150, "Running", 1, 4, training=True, step=10, progress_time=150),
        past.Sample(161, "Rescaling", 2, 3, training=False, cause="a member was lost"),
        past.Sample(162, "Running", 2, 3, training=True, recovery_seconds=1.5, step=20, progress_time=160),
        past.Sample(172, "Running", 2, 3, training=True, recovery_seconds=1.5, step=40, progress_time=170),
    ]
    history = past.build_history(samples, events)
    assert [(w.generation, w.size, w.seconds) for w in history.worlds] == [(1, 4, None), (2, 3, 1.5)]
    assert history.worlds[1].cause == "a member was lost"
    sizes = [(p.time, p.value) for p in history.sizes]
    assert sizes == [(100, 4), (161, 0), (162, 3), (300, 0)]
    assert [p.value for p in history.throughput] == [1.0, 2.0]
    assert [n.reason for n in history.notable] == ["MemberLost", "Completed"]
    assert (history.start, history.end) == (100, 300)


def test_what_the_status_remembers_is_drawn_without_a_recording() -> None:
    said = [{"time": f"1970-01-01T00:0{one}:00Z", "step": 60 * one, "metrics": {"loss": 1 / one}} for one in (1, 2, 3)]
    status = {"progress": {"step": 240, "history": {"everySeconds": 60, "reports": [*said, {"time": "?", "step": 1}]}}}
    reports = past.list_reports(Job.parse({"status": status}).status)
    samples = [past.Sample(250, "Running", step=240, progress_time=240.0, metrics={"loss": 0.25})]
    history = past.build_history(samples, [], reports=reports)
    assert [(p.time, p.value) for p in history.throughput] == [(120, 1.0), (180, 1.0), (240, 1.0)]
    assert [(p.time, p.value) for p in history.metrics["loss"]] == [(60, 1), (120, 1 / 2), (180, 1 / 3), (240, 1 / 4)]
    assert (history.start, history.end) == (60, 250)


def test_the_last_world_of_a_finished_job_is_drawn_without_a_recording() -> None:
    events = [
        event(100, "WorldFormed", "generation 1 with 2 pods: the job starts"),
        event(160, "WorldChanged", "generation 2 from 2 to 3 pods: new pods are ready to join"),
        event(300, "Completed", "all ranks ended well"),
    ]
    samples = [past.Sample(400, "Complete", 2, 0, training=False)]
    sizes = [(p.time, p.value) for p in past.build_history(samples, events).sizes]
    assert sizes == [(100, 2), (160, 3), (300, 0)]


def raw_event(kind: str, name: str, uid: str, at: str, reason: str) -> dict[str, Any]:
    return {"involvedObject": {"kind": kind, "name": name, "uid": uid}, "reason": reason, "lastTimestamp": at}


def test_of_any_number_of_events_the_newest_are_kept() -> None:
    """A tenant may write as many as fit, and the dashboard of a cluster reads those of all."""
    newest, more = rules.NewestEvents("digits"), 500
    count = rules.MOST_EVENTS + more
    for number in range(count):
        at = f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        for kind, name in (
            ("ElasticJob", "digits"),
            ("Pod", "digits-worker-0"),
            ("Pod", "other"),
            ("ConfigMap", "digits"),
        ):
            newest.take(raw_event(kind, name, "u", at, f"{kind}{number}"))
    told = [e.reason for e in rules.choose_events(newest.found, "digits", None)]
    assert told == [f"{kind}{number}" for number in range(more, count) for kind in ("ElasticJob", "Pod")]


def test_events_of_an_earlier_job_of_the_same_name_are_left_out() -> None:
    job = given.job()  # UID u, created at 00:00:00
    before, after = "2025-12-31T23:59:50Z", "2026-01-01T00:00:05Z"
    found = [
        raw_event("ElasticJob", "digits", "u", after, "mine"),
        raw_event("ElasticJob", "digits", "other", after, "another job"),
        raw_event("Pod", "digits-worker-0", "p0", before, "Started"),
        raw_event("Pod", "digits-worker-0", "p0", after, "Killing"),
        raw_event("Pod", "digits-worker-0", "p1", after, "Scheduled"),
        raw_event("Pod", "digits2-worker-0", "p2", after, "another job's pod"),
    ]
    assert [e.reason for e in rules.choose_events(found, "digits", job)] == ["mine", "Scheduled"]
    assert len(rules.choose_events(found, "digits", None)) == 5, "of a job that is gone all is told"


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ([], "its phase is Running"),
        ([given.condition("Degraded", reason="CrashLoop", message="rank 0 failed")], "(CrashLoop: rank 0 failed)"),
        ([given.condition("Running", "False", "WaitingForPods", "1 of 2")], "(WaitingForPods: 1 of 2)"),
        ([given.condition("Running"), given.condition("Degraded", "False")], "its phase is Running"),
    ],
)
def test_impatience_is_told_why(conditions: list[dict[str, str]], text: str) -> None:
    assert rules.describe_state(given.job(given.running_status() | {"conditions": conditions})).endswith(text)


def test_a_step_back_is_no_negative_throughput() -> None:
    samples = [
        past.Sample(0, "Running", 1, 1, step=50, progress_time=0),
        past.Sample(10, "Running", 2, 1, step=30, progress_time=10),
    ]
    assert [p.value for p in past.build_history(samples, []).throughput] == [0.0]


def test_a_recording_survives_being_cut_off() -> None:
    sample = past.take_sample(given.job(), 1000.0)
    line = past.format_sample(sample)
    assert past.read_recording(f"{line}\n{line}\n") == [sample, sample]
    assert past.read_recording(f"{line}\n{line[:20]}") == [sample]
    with pytest.raises(ValueError, match="line 1"):
        past.read_recording(f"nonsense\n{line}\n")
    newer = json.dumps(json.loads(line) | {"more": 1})
    assert past.read_recording(newer) == [sample]


def test_a_sample_has_the_progress_as_far_as_there_is_any() -> None:
    sample = past.take_sample(given.job(), 1000.0)
    when = parse_time(given.GENERATION_TIME)
    assert (sample.step, sample.total_steps, sample.progress_time, sample.metrics) == (40, 100, when, {"loss": 0.5})
    raw = given.running_status()
    del raw["progress"]
    silent = past.take_sample(given.job(raw), 1000.0)
    assert (silent.step, silent.total_steps, silent.progress_time, silent.metrics) == (None, None, None, {})


def test_time_that_goes_by_is_booked() -> None:
    raw = given.running_status()
    raw["goodput"]["since"] = "2026-01-01T00:00:00Z"
    job = given.job(raw)
    start = job.created
    assert start is not None
    assert past.goodput_seconds(job, start + 10) == (100.0, 10.0)
    finished = given.job(raw | {"conditions": [given.condition("Complete")]})
    assert past.goodput_seconds(finished, start + 1000) == (90.0, 10.0)


def test_a_status_of_another_version_is_shown_as_far_as_it_is_understood() -> None:
    status = {"phase": "Dreaming", "rendezvous": {"generation": 7, "topology": "ring"}}
    job = Job.parse({"metadata": {"name": "a"}, "status": status})
    assert (job.phase, job.status.rendezvous.generation) == ("Pending", 7)


# --- the history's members and lost time -----------------------------------------------------------------------------


def seen(time: float, generation: int, nodes: list[str], **more: Any) -> past.Sample:
    members = [[f"digits-worker-{i}", node] for i, node in enumerate(nodes)]
    sample = past.Sample(time, "Running", generation, len(nodes), members=members, members_of=generation, training=True)
    return replace(sample, **more)


def test_members_are_written_once_for_each_world() -> None:
    first = past.take_sample(given.job(), 1000.0)
    assert first.members == [["digits-worker-0", "node-0"], ["digits-worker-1", "node-1"]]
    again = past.take_sample(given.job(), 1001.0, first)
    assert again.members == [] and again.members_of == first.generation
    assert not past.is_news(first, again)
    next_world = past.take_sample(given.job(given.running_status(generation=4)), 1002.0, again)
    assert next_world.members == first.members


def test_stays_join_the_worlds_in_which_a_pod_kept_its_rank() -> None:
    samples = [
        seen(100, 1, ["a", "b"], formed=95),
        seen(110, 1, ["a", "b"], members=[]),
        seen(120, 2, ["a", "c"], formed=118),
        past.Sample(130, "Rescaling", 2, 0),
        seen(140, 3, ["a"], formed=139),
    ]
    stays = past.build_history(samples, [event(150, "Completed", "")]).stays
    told = [(s.rank, s.node, s.start, s.end, s.generations) for s in stays]
    assert told == [
        (0, "a", 95, 130, (1, 2)),
        (0, "a", 139, 150, (3, 3)),
        (1, "b", 95, 118, (1, 1)),
        (1, "c", 118, 130, (2, 2)),
    ]


@pytest.mark.parametrize(
    ("lost_seconds", "booked", "shown"),
    [
        pytest.param(0.0, {}, {}, id="nothing"),
        pytest.param(3.0, {"start": 3.0}, {"start": 3.0}, id="all of it is booked"),
        pytest.param(
            9.5, {"start": 3.0, "restart": 4.0}, {"start": 3.0, "restart": 4.0, "open": 2.5}, id="and no world"
        ),
        pytest.param(5.0, {}, {"open": 5.0}, id="a recording of an operator that booked nothing"),
    ],
)
def test_lost_time_is_what_the_status_books_and_the_rest(
    lost_seconds: float, booked: dict[str, float], shown: dict[str, float]
) -> None:
    samples = [
        past.Sample(0, "Pending", lost_seconds=1.0, lost={"start": 1.0}),
        past.Sample(9, "Running", lost_seconds=lost_seconds, lost=booked),
    ]
    assert past.build_history(samples, []).lost == shown
    assert past.build_history([], []).lost == {}


def listed(uid: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": uid, "uid": uid, "resourceVersion": version}}


def test_a_new_list_tells_what_was_missed_also_deletions() -> None:
    known: dict[str, Job] = {}

    def read(*raws: dict[str, Any]) -> list[Change]:
        return rules.find_differences(known, [rules.read_job(raw, known) for raw in raws])

    first = read(listed("a", "1"), listed("b", "1"))
    assert [(c.type, c.job.name) for c in first] == [("ADDED", "a"), ("ADDED", "b")]
    second = read(listed("b", "2"), listed("c", "3"))
    assert [(c.type, c.job.name) for c in second] == [("DELETED", "a"), ("MODIFIED", "b"), ("ADDED", "c")]
    assert read(listed("b", "2"), listed("c", "3")) == []
    assert set(known) == {"b", "c"}


@pytest.mark.parametrize(
    ("containers", "trainer", "phase", "started"),
    [
        pytest.param([], None, "Running", False, id="nothing is reported"),
        pytest.param(
            [("worker", {"waiting": {"reason": "ImagePullBackOff"}})], None, "ImagePullBackOff", False, id="waits"
        ),
        pytest.param([("worker", {"running": {}})], None, "Running", True, id="runs"),
        pytest.param([("worker", {"terminated": {}})], None, "Running", True, id="has ended"),
        pytest.param([("worker", {}), ("sidecar", {"running": {}})], None, "Running", False, id="only a sidecar runs"),
        pytest.param([("worker", {"running": {}})], "sidecar", "Running", False, id="another container trains"),
    ],
)
def test_what_the_containers_of_a_pod_do(
    containers: list[tuple[str, dict[str, Any]]], trainer: str | None, phase: str, started: bool
) -> None:
    raw: dict[str, Any] = given.pod_object("digits", 0, "true")
    if trainer:
        raw["metadata"]["annotations"] = {names.ANNOTATION_TRAINER: trainer}
    statuses = [{"name": name, "state": state} for name, state in containers]
    pod = Pod(raw | {"status": {"phase": "Running", "containerStatuses": statuses}})
    assert (pod.phase, pod.started) == (phase, started)


@pytest.mark.parametrize(("raw", "type"), [({}, "Normal"), ({"type": "Warning"}, "Warning")])
def test_the_type_of_an_event(raw: dict[str, Any], type: str) -> None:
    assert Happening.parse(raw).type == type


@pytest.mark.parametrize(
    ("metadata", "accepted"),
    [({"name": "digits"}, True), ({"generateName": "digits-"}, True), ({}, False), (None, False)],
)
def test_a_manifest_needs_a_name_or_the_beginning_of_one(metadata: dict[str, str] | None, accepted: bool) -> None:
    body = given.manifest("digits") | {"metadata": metadata}
    if accepted:
        rules.check_manifest(body)
    else:
        with pytest.raises(errors.InvalidError, match=r"metadata\.name: is required"):
            rules.check_manifest(body)
