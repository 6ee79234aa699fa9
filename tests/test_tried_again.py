"""A test that fails once and then passes is not forgotten: the summary says how it has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pytest_rerunfailures")
pytestmark = pytest.mark.timeout(120)
_HERE = Path(__file__).parent

_ONCE = """
from pathlib import Path

import pytest


@pytest.fixture
def place(request):
    seen = Path(request.fspath).with_name("seen")
    if not seen.exists():
        seen.touch()
        raise RuntimeError("rank 1 has ended with -6")


def test_it(place):
    pass
"""


def test_the_summary_says_why_a_test_was_tried_again(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        f"import runpy\nhooks = runpy.run_path({str(_HERE / 'conftest.py')!r})\n"
        "pytest_terminal_summary = hooks['pytest_terminal_summary']\n"
    )
    (tmp_path / "test_once.py").write_text(_ONCE)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--reruns", "1", "-p", "no:cacheprovider", str(tmp_path)],
        env={"PYTHONPATH": str(_HERE), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "tried again: test_once.py::test_it (setup)" in ended.stdout
    assert "RuntimeError: rank 1 has ended with -6" in ended.stdout
