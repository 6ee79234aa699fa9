"""The folder named `operator` must never become a package: it would shadow the standard library's module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slowest_first import SLOWEST, place_of

ROOT = Path(__file__).parents[1]


def test_operator_is_a_source_root() -> None:
    entries = {p.name for p in (ROOT / "operator").iterdir() if p.name != "__pycache__"}
    assert entries == {"elasticjob_operator"}


def test_the_interpreter_works_from_the_root_of_the_repository() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.add(1, 2))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


def test_no_test_folder_is_named_like_an_importable_package() -> None:
    found = [p.name for p in (ROOT / "tests").iterdir() if p.is_dir() and not p.name.startswith((".", "__"))]
    assert not {"operator", "elasticjob", "elasticjob_operator", "elasticjob_devcluster", "torch"} & set(found)


def test_the_slow_files_are_there_and_come_first() -> None:
    assert [file for file in SLOWEST if not (ROOT / "tests" / file).is_file()] == []
    last = place_of(f"tests/{SLOWEST[-1]}::test_a[b::c]")
    assert place_of(f"tests/{SLOWEST[0]}::test_a") == 0 < last < place_of("tests/test_layout.py::test_a")
