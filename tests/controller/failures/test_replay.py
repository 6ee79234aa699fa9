"""What rules would have found in the reports that a status keeps, and in the lines of a log."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import NOW, make_spec
from elasticjob_operator import api
from elasticjob_operator.failures import replay
from elasticjob_operator.times import format_time


def rules_of(*rules: dict[str, Any]) -> list[api.HealthRule]:
    return make_spec(health={"rules": list(rules)}).health.rules or []


def status_of(losses: list[float], worlds: tuple[tuple[int, int], ...] = ((0, 2),)) -> api.Status:
    """A report every ten seconds; worlds by the number of the report that is their first, and their size."""
    reports = [
        api.ReportStatus(time=format_time(NOW + 10 * i), step=i, metrics={"loss": loss})
        for i, loss in enumerate(losses)
    ]
    timeline = [
        api.WorldStatus(generation=i, time=format_time(NOW + 10 * first), size=size)
        for i, (first, size) in enumerate(worlds, 1)
    ]
    progress = api.ProgressStatus(step=1, history=api.ReportHistory(reports=reports))
    return api.Status(progress=progress, timeline=timeline)


def metric(**check: Any) -> dict[str, Any]:
    return {"name": "Rule", "when": {"metric": {"name": "loss", **check}}}


def test_reports_of_a_status() -> None:
    found = replay.replay_reports(rules_of(metric(above=5)), status_of([1.0] * 20 + [9.0] + [1.0] * 20))
    assert [(one.rule, one.where, one.message) for one in found.fired] == [("Rule", "step 20", "loss is 9, above 5")]
    assert found.untested == ()


def test_each_world_is_judged_by_itself() -> None:
    losses = [1.0] * 20 + [9.0] * 20
    spike = rules_of(metric(sigma=6))
    assert [one.where for one in replay.replay_reports(spike, status_of(losses)).fired] == ["step 20"]
    assert replay.replay_reports(spike, status_of(losses, ((0, 2), (20, 4)))).fired == ()
    assert replay.replay_reports(spike, status_of([])).untested == (("Rule", "no such report is kept"),)


def test_what_reports_do_not_show_is_named() -> None:
    found = replay.replay_reports(
        rules_of(
            metric(notFinite=True), {"name": "Stuck", "when": {"noProgress": 2}}, {"name": "Log", "when": {"log": "a"}}
        ),
        status_of([1.0] * 20),
    )
    assert dict(found.untested) == {
        "Rule": "only finite numbers are kept",
        "Stuck": "it is known only while the job runs",
        "Log": "reports do not show it; pipe a log to `rules test -`",
    }


def test_lines_of_a_log() -> None:
    wanted = rules_of(
        {"name": "Ecc", "when": {"log": "(?i)ecc error"}},
        {"name": "Finite", "when": {"metric": {"name": "loss", "log": "loss=(\\S+)", "notFinite": True}}},
        {"name": "Reported", "when": {"metric": {"name": "loss", "above": 1}}},
    )
    lines = ["start\n", "loss=2.5\n", "ECC error\n", "loss=nan\n", "an ecc error again\n", "loss=oops\n"]
    found = replay.replay_lines(wanted, lines)
    assert [(one.rule, one.where, one.message) for one in found.fired] == [
        ("Ecc", "line 3", "wrote 'ECC error'"),
        ("Finite", "line 4", "loss is NaN or infinite"),
    ]
    assert found.untested == (("Reported", "no line tells it"),)


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_line_of_a_log_is_what_the_job_looks_at(end: str) -> None:
    """Without its end, and without colours."""
    wanted = rules_of(
        {"name": "Ecc", "when": {"log": "^GPU 3: ECC error$"}},
        {"name": "Finite", "when": {"metric": {"name": "loss", "log": "loss=(\\S+)$", "notFinite": True}}},
    )
    lines = ["start\n", f"GPU 3: \x1b[31mECC error\x1b[0m{end}", f"loss=\x1b[1mnan\x1b[0m{end}"]
    assert [one.where for one in replay.replay_lines(wanted, lines).fired] == ["line 2", "line 3"]


def test_a_log_of_several_pods_is_looked_at_without_the_ranks_before_its_lines() -> None:
    """As `kubectl elasticjob logs` writes it. Each pod is judged by its own numbers, as in the job."""
    wanted = rules_of(
        {"name": "Ecc", "when": {"log": "^GPU 3: ECC error$"}},
        {"name": "Own", "when": {"log": "^\\[1\\] "}},
        {"name": "Spike", "when": {"metric": {"name": "loss", "log": "^loss=(\\S+)$", "sigma": 8}}},
    )
    pairs = [(f"[0] loss={1 + 0.01 * (i % 5)}", f"[1-2] loss={9 + 0.01 * (i % 5)}") for i in range(20)]
    lines = [line for pair in pairs for line in pair]
    found = replay.replay_lines(wanted, [*lines, "[train-worker-7] GPU 3: ECC error", "[1] x", "[0] loss=5"])
    assert [(one.rule, one.where) for one in found.fired] == [
        ("Ecc", "line 41"),
        ("Own", "line 42"),
        ("Spike", "line 43"),
    ]


LOSSES = [2 + 0.01 * (i % 5) for i in range(40)]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([f"[{i}] loss={loss}" for i, loss in enumerate([*LOSSES, 50])], id="steps"),
        pytest.param(
            [line for i, loss in enumerate([*LOSSES, 50]) for line in (f"[{i}] loss={loss}", f"[{i}] lr=0.1")],
            id="steps-of-two-lines",
        ),
        pytest.param(
            [f"[{i}] loss={loss}" for i, loss in [*enumerate(LOSSES), *enumerate([*LOSSES, 50][20:], 20)]],
            id="steps-once-more-after-a-loss",
        ),
        pytest.param(
            [f"[{'warn' if i % 2 else 'info'}] loss={loss}" for i, loss in enumerate(LOSSES)]
            + ["[error] loss=50", "[warn] ERROR is only a word here"],
            id="levels",
        ),
        pytest.param(
            ["start"] + [f"[{i % 2}] loss={loss}" for i, loss in enumerate(LOSSES)] + ["[2] loss=50"],
            id="not-on-all-lines",
        ),
    ],
)
def test_brackets_that_the_script_writes_are_no_pods(lines: list[str]) -> None:
    wanted = rules_of(
        {"name": "Own", "when": {"log": "^(ERROR|loss)"}},
        {"name": "Spike", "when": {"metric": {"name": "loss", "log": "loss=(\\S+)", "sigma": 8}}},
    )
    found = replay.replay_lines(wanted, lines)
    last = max(i for i, line in enumerate(lines, 1) if "loss=50" in line)
    assert [(one.rule, one.where) for one in found.fired] == [("Spike", f"line {last}")]
