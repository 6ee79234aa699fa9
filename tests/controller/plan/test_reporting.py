"""Conditions, goodput, progress and events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, make_agent, make_pod, make_world
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures.classify import Failure
from elasticjob_operator.membership.decide import Decision, State
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict
from elasticjob_operator.model.observe import Agent, Pod
from elasticjob_operator.plan import reporting as report
from elasticjob_operator.times import format_time


def at(seconds: float) -> str:
    return format_time(NOW + seconds)


def test_a_transition_time_moves_with_the_status_alone() -> None:
    first = report.with_condition([], "Running", False, "Waits", "", NOW)
    second = report.with_condition(first, "Running", False, "Starts", "soon", NOW + 5)
    assert (second[0].reason, second[0].last_transition_time) == ("Starts", at(0))
    third = report.with_condition(second, "Running", True, "Runs", "", NOW + 9)
    assert third[0].last_transition_time == at(9)


def reporting(step: int | None, rank: int = 0, **fields: Any) -> Agent:
    return replace(make_agent(rank, "running", 1), progress=wire.Progress(rank=rank, step=step, **fields))


def test_progress_is_that_of_the_furthest_rank() -> None:
    agents = [reporting(5, 1), reporting(7, 0, total_steps=70, step_seconds=2.0, metrics={"loss": 0.5})]
    assert report.update_progress(None, agents, now=NOW) == api.ProgressStatus(
        step=7,
        total_steps=70,
        percentage=10,
        step_seconds=2.0,
        estimated_remaining_seconds=126,
        metrics=[api.Metric(name="loss", value=0.5)],
        last_update_time=at(0),
        history=api.ReportHistory(reports=[api.ReportStatus(time=at(0), step=7, metrics={"loss": 0.5})]),
    )


@pytest.mark.parametrize("seconds", [1e308, 2.0**53, 1e-308])
def test_what_remains_is_a_number_that_the_status_can_hold(seconds: float) -> None:
    agents = [reporting(0, total_steps=2**53, step_seconds=seconds, metrics={"": 1.0, "loss": 1e308})]
    found = report.update_progress(None, agents, now=NOW)
    assert found is not None
    assert found.estimated_remaining_seconds is None or 0 <= found.estimated_remaining_seconds <= 2**53
    assert [metric.name for metric in found.metrics] == ["loss"], "the API server takes no metric without a name"


@pytest.mark.parametrize(
    ("said", "samples", "tokens"),
    [
        pytest.param({}, None, None, id="nothing"),
        pytest.param({"samples_per_second": 512.0, "tokens_per_second": 1e6}, 512.0, 1e6, id="counted"),
        pytest.param({"batch_size": 128, "batch_seconds": 0.25}, 512.0, None, id="a batch that grows"),
        pytest.param(
            {"batch_size": 128, "batch_seconds": 0.25, "samples_per_second": 9.0}, 9.0, None, id="counted, too"
        ),
        pytest.param({"batch_size": 128, "batch_seconds": 0.0}, None, None, id="no time"),
        pytest.param({"batch_size": 2**53, "batch_seconds": 5e-324}, 2.0**53, None, id="no end"),
    ],
)
def test_what_all_ranks_process(said: dict[str, Any], samples: float | None, tokens: float | None) -> None:
    found = report.update_progress(None, [reporting(7, **said)], now=NOW)
    assert found is not None
    assert (found.samples_per_second, found.tokens_per_second) == (samples, tokens)


@pytest.mark.parametrize(
    ("before", "ages", "after"),
    [
        pytest.param({}, {}, {}, id="unknown"),
        pytest.param({}, {"File": 60.0, "Memory": 1.5}, {"File": -60, "Memory": -1.5}, id="both"),
        pytest.param({"File": -90}, {"File": 60.0}, {"File": -60}, id="a newer one"),
        pytest.param({"File": -90, "Copies": -9, "Memory": -1}, {}, {"File": -90, "Copies": -9}, id="new pods"),
        pytest.param({}, {"Tape": 1.0, "x" * 200: 1.0}, {}, id="a tier that nobody knows"),
        pytest.param({}, {"File": None}, {}, id="no number"),
        pytest.param({}, {"File": 2.0**53}, {"File": -NOW}, id="older than time"),
    ],
)
def test_checkpoints_are_known_by_their_tier(
    before: dict[str, float], ages: dict[str, float | None], after: dict[str, float]
) -> None:
    saved = [api.SavedStatus(tier=tier, time=at(when)) for tier, when in before.items()]
    found = report.update_checkpoints(saved, ages, NOW)
    assert {one.tier: one.time for one in found} == {tier: at(when) for tier, when in after.items()}


def test_an_age_is_that_of_the_moment_when_it_was_said() -> None:
    said = replace(reporting(7, checkpoint_ages={"File": 30.0}), progress_since=NOW - 9)
    found = report.update_progress(None, [said], now=NOW)
    assert found is not None
    assert [(one.tier, one.time) for one in found.checkpoints] == [("File", at(-39))]


@pytest.mark.parametrize(
    ("step", "later", "force", "written"),
    [
        pytest.param(8, 5, False, False, id="too-soon"),
        pytest.param(8, 10, False, True, id="after-ten-seconds"),
        pytest.param(8, 5, True, True, id="at-the-end"),
        pytest.param(7, 60, False, False, id="no-news"),
        pytest.param(None, 60, False, False, id="nothing-reported"),
    ],
)
def test_progress_is_no_metrics_stream(step: int | None, later: float, force: bool, written: bool) -> None:
    before = report.update_progress(None, [reporting(7)], now=NOW)
    after = report.update_progress(before, [reporting(step)], now=NOW + later, force=force)
    assert (after != before) is written


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        pytest.param(
            Failure("p-1", rank=1, exit_code=1, reason="Error", traceback="Traceback\n x\nValueError: a"),
            "rank 1 (p-1) failed with exit code 1: ValueError: a",
            id="traceback",
        ),
        pytest.param(
            Failure("p-1", exit_code=137, reason="OOMKilled"), "p-1 failed with exit code 137 [OOMKilled]", id="oom"
        ),
        pytest.param(
            Failure("p-1", rank=0, reason="Lost", message="its agent stopped responding"),
            "rank 0 (p-1) failed [Lost]: its agent stopped responding",
            id="lost",
        ),
    ],
)
def test_a_failure_in_one_line(failure: Failure, told: str) -> None:
    assert report.describe_failure(failure) == told


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        pytest.param(
            "train.py: error: unrecognized arguments: --local-rank=0", "start the script with torchrun", id="launcher"
        ),
        pytest.param("KeyError: 'getpwuid(): uid not found: 1000700000'", "set USER and LOGNAME", id="user"),
        pytest.param("KeyError: 'getpwnam(): name not found: x'", "", id="name"),
        pytest.param("PermissionError: [Errno 13] Permission denied: '/.cache'", "set HOME to", id="home"),
        pytest.param("PermissionError: [Errno 13] Permission denied: '/data/.cache'", "", id="folder"),
        pytest.param("exec: \"bash\": [Errno 7] Argument list too long: b'/usr/bin/bash'", "128 KiB", id="devcluster"),
        pytest.param('exec: "bash": argument list too long: unknown', "128 KiB", id="runc"),
        pytest.param('invalid environment variable "KEY": contains nul byte (\\x00): unknown', "NUL byte", id="NUL"),
        pytest.param("container init caused: setenv: invalid argument: unknown", "NUL byte", id="NUL, older"),
    ],
)
def test_a_failure_whose_cause_is_in_the_template_names_the_remedy(message: str, remedy: str) -> None:
    told = report.describe_failure(Failure("p-1", rank=0, exit_code=1, reason="WorkerFailed", message=message))
    assert message in told
    assert (remedy in told) if remedy else told.endswith(message)


@pytest.mark.parametrize(
    ("pods", "world", "withdrawn", "expected"),
    [
        pytest.param([make_pod(0), make_pod(1)], 2, 0, None, id="all-well"),
        pytest.param(
            [make_pod(0, "Pending", waiting="ErrImagePull", waiting_message="denied"), make_pod(1)],
            1,
            0,
            ("ImagePullFailed", "digits-worker-0: ErrImagePull: denied"),
            id="image",
        ),
        pytest.param(
            [make_pod(0, "Pending", waiting="CreateContainerConfigError", waiting_message="no secret")],
            0,
            0,
            ("CreateContainerConfigError", "digits-worker-0: CreateContainerConfigError: no secret"),
            id="configuration",
        ),
        pytest.param(
            [make_pod(0, "Pending", unschedulable=NOW, unschedulable_message="0/3 nodes")],
            0,
            0,
            ("Unschedulable", "digits-worker-0: 0/3 nodes"),
            id="no-room",
        ),
        pytest.param(
            [make_pod(0)],
            1,
            1,
            ("Unschedulable", "1 pods were not scheduled within scalingTimeoutSeconds and will be retried later"),
            id="withdrawn",
        ),
        pytest.param([make_pod(0)], 1, 0, ("BelowWanted", "1 of 2 requested pods are training"), id="below-wanted"),
        pytest.param(
            [make_pod(0, "Pending", waiting="ContainerCreating"), make_pod(1)],
            2,
            0,
            None,
            id="creating-is-no-trouble",
        ),
    ],
)
def test_trouble(pods: list[Pod], world: int, withdrawn: int, expected: tuple[str, str] | None) -> None:
    assert (
        report.find_problem(pods, world_size=world, wanted=2, room=api.CapacityStatus(withdrawn=withdrawn)) == expected
    )


def test_what_the_scheduler_said_of_pods_that_were_withdrawn() -> None:
    room = api.CapacityStatus(withdrawn=1, said="0/3 nodes")
    told = report.find_problem([make_pod(0)], world_size=1, wanted=2, room=room)
    assert told is not None and told[1].endswith("within scalingTimeoutSeconds and will be retried later: 0/3 nodes")


@pytest.mark.parametrize(
    ("state", "generation", "phase"),
    [
        pytest.param(State.RUNNING, 1, "Running", id="running"),
        pytest.param(State.ENDING, 1, "Running", id="ending"),
        pytest.param(State.WAITING, 0, "Pending", id="never-ran"),
        pytest.param(State.WAITING, 4, "Pending", id="waits"),
        pytest.param(State.STARTING, 1, "Pending", id="first-start"),
        pytest.param(State.STARTING, 2, "Rescaling", id="next-start"),
        pytest.param(State.REGROUPING, 1, "Rescaling", id="regroups"),
    ],
)
def test_phases(state: State, generation: int, phase: str) -> None:
    assert report.phase_of(Decision(state, ""), generation) == phase


def test_a_world_trains_when_every_member_runs() -> None:
    members = make_world().members
    both = [MemberVerdict(m, MemberHealth.RUNNING) for m in members]
    assert report.is_training(Decision(State.RUNNING, "", verdicts=tuple(both)))
    assert report.is_training(
        Decision(State.RUNNING, "", verdicts=(both[0], MemberVerdict(members[1], MemberHealth.SUSPECT)))
    )
    assert not report.is_training(
        Decision(State.RUNNING, "", verdicts=(both[0], MemberVerdict(members[1], MemberHealth.STARTING)))
    )
    assert not report.is_training(Decision(State.STARTING, ""))


REPORTS = [api.ReportStatus(time=format_time(NOW + 10 * index), step=100 * index) for index in range(5)]


def made_progress(step: int | None, *saved: float, reports: list[api.ReportStatus] = REPORTS) -> api.ProgressStatus:
    return api.ProgressStatus(
        step=step,
        checkpoints=[
            *(api.SavedStatus(tier=api.Tier.FILE, time=format_time(NOW + after)) for after in saved),
            api.SavedStatus(tier=api.Tier.ARCHIVE, time=format_time(NOW + 40)),  # when it was finished
        ],
        history=api.ReportHistory(reports=reports),
    )


@pytest.mark.parametrize(
    ("progress", "told"),
    [
        pytest.param(None, "", id="nothing is reported"),
        pytest.param(made_progress(None, 20.0), "", id="no step is reported"),
        pytest.param(made_progress(450), "; the last step that was reported is 450", id="no save is known"),
        pytest.param(
            made_progress(450, 5.0, 25.0),
            "; of the steps until the last report, about 250 are made again",
            id="the newest save",
        ),
        pytest.param(
            made_progress(450, 25.0, reports=[]),
            "; of the steps until the last report, about 450",
            id="no report is kept",
        ),
        pytest.param(
            made_progress(150, 35.0),
            "; of the steps until the last report, about 50 are",
            id="training has gone back since",
        ),
    ],
)
def test_what_a_save_that_failed_costs(progress: api.ProgressStatus | None, told: str) -> None:
    found = report.describe_cost(progress)
    assert found.startswith(told) and bool(found) is bool(told)


def test_events_tell_of_changes_alone() -> None:
    before = api.Status(rendezvous=make_world(1, (0, 1)))
    after = api.Status(rendezvous=make_world(2, (0,), reason="lost"))
    lost = MemberVerdict(before.rendezvous.members[1], MemberHealth.LOST, why="its pod is gone")
    decision = Decision(State.STARTING, "lost", verdicts=(lost,))
    assert [(e.reason, e.message, e.warning) for e in report.describe_changes(before, after, decision, NOW)] == [
        ("MemberLost", "digits-worker-1 (rank 1) is lost: its pod is gone", True),
        ("WorldChanged", "generation 2 from 2 to 1 pods: a member was lost", False),
    ]
    assert report.describe_changes(after, after, decision, NOW) == ()
