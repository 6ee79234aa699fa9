"""The operator's log: what may be written into it about the jobs of one namespace."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticjob_operator
from elasticjob_operator.__main__ import set_up_logging

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
