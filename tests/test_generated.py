"""Generated files match their sources."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from elasticjob_operator.api import crd

ROOT = Path(__file__).parents[1]


def test_the_committed_crd_is_fresh() -> None:
    committed = (ROOT / "crds" / "elasticjob.dev_elasticjobs.yaml").read_text()
    assert committed == crd.render_crd(), "run `make generate` and commit the result"


VERSIONS = runpy.run_path(str(ROOT / "scripts" / "versions.py"))


def test_every_place_has_the_version_of_the_operator() -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in VERSIONS["generate"]().items() if path.read_text() != text]
    assert stale == [], "run `make generate` and commit the result"


@pytest.mark.parametrize("path", sorted(VERSIONS["generate"]()), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_new_version_replaces_the_old_one(path: Path) -> None:
    text = VERSIONS["set_version"](path.read_text(), "98.7.6")
    assert "98.7.6" in text
    assert VERSIONS["read_version"]() not in text


def test_no_project_file_states_a_version_of_its_own() -> None:
    for path in (ROOT / folder / "pyproject.toml" for folder in (".", "devcluster", "worker_image")):
        assert tomllib.loads(path.read_text())["project"]["dynamic"] == ["version"]


LOCKS = runpy.run_path(str(ROOT / "scripts" / "locks.py"))
WANTED = LOCKS["Lock"]("a.txt", "pyproject.toml", "", extra=("one>=1", "two"))
WHOLE = "one==1.5 \\\n    --hash=sha256:aa\ntwo==2.0 \\\n    --hash=sha256:bb\n"


@pytest.mark.parametrize("lock", LOCKS["LOCKS"], ids=lambda lock: lock.path)
def test_the_locks_of_the_images_fit_what_is_tested(lock: Any) -> None:
    constraints = LOCKS["read_pins"]((ROOT / "constraints.txt").read_text())
    assert LOCKS["find_problems"](lock, (ROOT / lock.path).read_text(), constraints) == [], "run `make locks`"


@pytest.mark.parametrize(
    ("text", "constraints", "problem"),
    [
        pytest.param(WHOLE, {}, "", id="whole"),
        pytest.param(WHOLE.partition("two")[0], {}, "two is missing", id="a package is missing"),
        pytest.param(WHOLE.replace("    --hash=sha256:bb\n", ""), {}, "two==2.0 has no hash", id="no hash"),
        pytest.param(WHOLE, {"one": "1.6"}, "one is 1.5, constraints.txt has 1.6", id="another version is tested"),
    ],
)
def test_a_lock_that_does_not_fit_is_named(text: str, constraints: dict[str, str], problem: str) -> None:
    assert "; ".join(LOCKS["find_problems"](WANTED, text, constraints)) == (f"a.txt: {problem}" if problem else "")


@pytest.mark.parametrize("file", ["Dockerfile", "worker_image/Dockerfile"])
def test_images_are_built_from_what_is_pinned(file: str) -> None:
    lines = (ROOT / file).read_text().replace("\\\n", " ").splitlines()
    bases = [line.partition("=")[2] for line in lines if line.startswith("ARG") and "BASE=" in line]
    assert bases and all("@sha256:" in base for base in bases)
    for command in (part for line in lines for part in line.split("&&") if "pip install" in part):
        own = "--no-index" in command  # wheels that were built here
        chosen = "${TORCH}" in command  # by whoever builds the image
        assert own or chosen or "--require-hashes" in command, command.strip()
