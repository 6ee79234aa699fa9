"""The chart's alerts: Prometheus accepts them, and each fires for what it is about and for nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from chart_fixture import CHART, find, render
from elasticjob_operator.cli.root import COMMANDS
from operator_fixture import ROOT

ALERTS = CHART / "files" / "alerts.yaml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")

LEADER = 'elasticjob_leader{namespace="ops",pod="a"}'
OTHERS = 'elasticjob_jobs_of_others{namespace="ops",pod="a"}'
ERRORS = 'elasticjob_reconcile_errors_total{namespace="ops",pod="a"}'
RESTARTS = 'elasticjob_background_restarts_total{namespace="ops",pod="a",task="pods"}'
IN_TIME = 'elasticjob_event_loop_lag_seconds_bucket{namespace="ops",pod="a",le="1.0"}'
LATER = 'elasticjob_event_loop_lag_seconds_bucket{namespace="ops",pod="a",le="2.5"}'
ALL = 'elasticjob_event_loop_lag_seconds_bucket{namespace="ops",pod="a",le="+Inf"}'
GOODPUT = 'elasticjob_goodput_ratio{namespace="ml",job="digits",pod="a"}'
TRAINED, LOST = (f'elasticjob_{name}_seconds{{namespace="ml",job="digits",pod="a"}}' for name in ("training", "lost"))
SLOW = 'elasticjob_straggler_slowdown_ratio{namespace="ml",job="digits",rank="3",worker="w-3",node="n3",pod="a"}'
SIZE = 'elasticjob_world_size{namespace="ml",job="digits",pod="a"}'
REPORTED = 'elasticjob_last_report_timestamp_seconds{namespace="ml",job="digits",pod="a"}'
FILE, MEMORY, COPIED, ARCHIVED = (
    f'elasticjob_checkpoint_age_seconds{{namespace="ml",job="digits",tier="{tier}",pod="a"}}'
    for tier in ("File", "Memory", "Copies", "Archive")
)
INTERVAL = 'elasticjob_archive_interval_seconds{namespace="ml",job="digits",pod="a"}'
LOSS = 'elasticjob_reported_metric{namespace="ml",job="digits",metric="loss",pod="a"}'
# One value a minute: `1x60` stays at 1, `0+100x60` grows by 100.
CALM = {
    LEADER: "1x60",
    'elasticjob_leader{namespace="ops",pod="b"}': "0x60",
    OTHERS: "0x60",
    ERRORS: "3x60",
    RESTARTS: "1x60",
    IN_TIME: "0+100x60",
    LATER: "0+100x60",
    ALL: "0+100x60",
    GOODPUT: "0.95x60",
    TRAINED: "0+57x60",
    LOST: "0+3x60",
    SLOW: "1.3x60",
    SIZE: "2x60",
    REPORTED: "0+60x60",
    FILE: "9000x60",
    MEMORY: "10x60",
    INTERVAL: "600x60",
    LOSS: "2.5-0.01x60",
}
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
CASES: dict[str, tuple[dict[str, str], list[str]]] = {
    "all is well": ({}, []),
    "nobody leads": ({LEADER: "0x60"}, ["ElasticJobWithoutLeader"]),
    "two lead": ({LEADER: "2x60"}, ["ElasticJobWithoutLeader"]),
    "a new leader after seconds": ({LEADER: "1x58 0 1"}, []),
    "another release decides": ({OTHERS: "3x60"}, ["ElasticJobTwoReleases"]),
    "another release decides for a moment": ({OTHERS: "0x56 3x4"}, []),
    "a pass failed": ({ERRORS: "3x55 4x5"}, ["ElasticJobReconcileErrors"]),
    "a task was restarted": ({RESTARTS: "1x55 2x5"}, ["ElasticJobBackgroundTaskRestarts"]),
    "late": ({IN_TIME: "0+95x60"}, ["ElasticJobOperatorLate"]),
    "little training": ({GOODPUT: "0.89x60"}, ["ElasticJobLowGoodput"]),
    "little training for twenty minutes": ({GOODPUT: "0.95x40 0.89x20"}, []),
    "little training of a job that waits": (
        {GOODPUT: "0.89x60", TRAINED: "900x60", SIZE: "0x60"},
        ["ElasticJobLowGoodput"],
    ),
    "little training of a job that has ended": (
        {GOODPUT: "0.89x60", TRAINED: "900x60", LOST: "90x60", SIZE: "0x60"},
        [],
    ),
    "a slow rank": ({SLOW: "1.6x60"}, ["ElasticJobSlowRank"]),
    "no report": ({REPORTED: "0+60x20 1200x40"}, ["ElasticJobNoReport"]),
    "no report, and no world": ({REPORTED: "0+60x20 1200x40", SIZE: "0x60"}, []),
    "no report for twenty minutes": ({REPORTED: "0+60x40 2400x20"}, []),
    "an old checkpoint": ({MEMORY: "7300x60"}, ["ElasticJobOldCheckpoint"]),
    "an old archive": ({ARCHIVED: "7300x60"}, ["ElasticJobOldArchive"]),
    "an archive as old as twice its interval": ({ARCHIVED: "1200x60"}, []),
    "an old archive of a job that saves often": ({ARCHIVED: "2000x60", INTERVAL: "60x60"}, ["ElasticJobOldArchive"]),
    "an archive that is to be filled once a week": ({ARCHIVED: "600000x60", INTERVAL: "604800x60"}, []),
    "an archive with all that a script has saved": ({ARCHIVED: "7300x60", COPIED: "7200x60"}, []),
    "an archive without what a script has saved": ({ARCHIVED: "7300x60", COPIED: "3600x60"}, ["ElasticJobOldArchive"]),
    "an old archive of a job that has ended": ({ARCHIVED: "7300x60", SIZE: "0x60"}, []),
    "an old checkpoint of a job that has ended": ({MEMORY: "7300x60", SIZE: "0x60"}, []),
    "a loss that is no number": ({LOSS: "2.5x50" + 10 * " NaN"}, ["ElasticJobMetricNotFinite"]),
    "a loss that was no number": ({LOSS: "2.5x50" + 5 * " NaN" + " 2.5x5"}, []),
    "a loss that is no number, of a job that is suspended": ({LOSS: "2.5x40" + 20 * " NaN", SIZE: "2x45 0x15"}, []),
    "a slow rank of a job that has ended": ({SLOW: "1.6x60", SIZE: "0x60"}, []),
    "a slow rank for eight minutes": ({SLOW: "1.3x52 1.6x8"}, []),
}


def promtool(*args: str | Path) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *args], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_chart_delivers_them() -> None:
    assert not any(o["kind"] == "PrometheusRule" for o in render({}))
    assert not any(
        o["kind"] == "PrometheusRule" for o in render({"metrics": {"enabled": False, "alerts": {"enabled": True}}})
    )
    rule = find(
        render({"metrics": {"alerts": {"enabled": True, "labels": {"release": "prometheus"}}}}), "PrometheusRule"
    )
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_each_is_documented_and_has_a_case() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    names = [rule["alert"] for rule in RULES]
    assert re.findall(r"^\| `(ElasticJob\w+)` \|", text, re.MULTILINE) == names
    assert {name for _, firing in CASES.values() for name in firing} == set(names)


def test_the_commands_that_they_name_exist() -> None:
    named = re.findall(r"kubectl elasticjob (\S+)", ALERTS.read_text())
    assert named
    assert set(named) <= COMMANDS.keys()


@needs_promtool
def test_prometheus_accepts_them() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", ALERTS)


@needs_promtool
@pytest.mark.parametrize(("changes", "firing"), CASES.values(), ids=CASES.keys())
def test_each_fires_for_what_it_is_about(changes: dict[str, str], firing: list[str], tmp_path: Path) -> None:
    series = [{"series": name, "values": values} for name, values in {**CALM, **changes}.items()]
    question = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "60m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing],
    }
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [question]}
    story = tmp_path / "story.yaml"
    story.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [case]}))
    promtool("test", "rules", story)
