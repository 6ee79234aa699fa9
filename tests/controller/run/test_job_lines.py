"""The operator's log: what may be written into it about the jobs of one namespace."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticjob_operator
from elasticjob_operator.__main__ import set_up_logging
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.run import job_lines
from elasticjob_operator.run.job_lines import JobLines

logger = logging.getLogger("elasticjob_operator.apply.apply")


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """Afterwards everything is logged as before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_job_of_thousands_of_pods_does_not_fill_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("human", "info")
    for number in range(5_000):
        logger.info("%s/%s: deleting %s: %s", "evil", "big", f"big-worker-{number}", "scale-down")
    logger.info("%s/%s: deleting %s: %s", "nice", "digits", "digits-worker-0", "scale-down")
    logger.warning("the API server: %s", "unavailable")
    said = capsys.readouterr().err
    assert 100 < said.count("evil/big") < 1_000
    assert "nice/digits: deleting digits-worker-0" in said and "unavailable" in said


def test_long_lines_do_not_fill_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """What a pod reports of a hang has up to 64 KiB, and tenants have as many jobs as they like."""
    set_up_logging("human", "info")
    for number in range(5_000):
        logger.info("%s/%s: %s", "evil", f"job-{number}", "x" * 60_000)
    assert 100 * 60_000 > len(capsys.readouterr().err) > 10 * 60_000


def test_every_line_about_a_job_begins_with_its_name() -> None:
    """By this the lines of a namespace are counted."""
    wrong, own = [], {"lease.py", "serving.py"}  # they tell of objects of the operator itself
    for file in sorted(Path(elasticjob_operator.__file__).parent.rglob("*.py")):
        if file.name in own:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger."):
                texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                wrong += [f"{file}: {text}" for text in texts if "%s/%s" in text and not text.startswith("%s/%s: ")]
    assert wrong == []


def test_what_was_left_out_is_counted_in_the_next_line() -> None:
    now = 0.0
    lines = JobLines(lambda: now)

    def tell() -> str | None:
        record = logger.makeRecord(logger.name, logging.INFO, "", 0, "%s/%s: %s", ("evil", "big", "100 %"), None)
        return record.getMessage() if lines.filter(record) else None

    told = [tell() for _ in range(int(job_lines.LINES_AT_ONCE) + 7)]
    assert told.count(None) == 7 and told[0] == "evil/big: 100 %"
    now = 2 / job_lines.LINES_PER_SECOND
    assert tell() == "evil/big: 100 % (7 lines about jobs of this namespace were left out before)"
    assert tell() == "evil/big: 100 %"
    assert tell() is None


def test_what_is_skipped_counts_for_its_namespace(caplog: pytest.LogCaptureFixture) -> None:
    Intake().skip("pods", "evil/pod-0", "ValueError", "it is no pod")
    Intake().skip("nodes", "node-0", "ValueError", "it is no node")
    assert [job_lines.find_namespace(record) for record in caplog.records] == ["evil", None]
