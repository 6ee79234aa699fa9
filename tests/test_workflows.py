"""The files for GitHub: workflows, templates and updates refer to existing commands and files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def load(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load(path)["jobs"]
    return found


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command of a script that calls something of ours."""
    for line in re.split(r"\n|&&", text):
        words = line.split()
        if words and (words[0] == "make" or words[0].startswith((".", "scripts/"))):
            yield words


def runs(path: Path) -> list[str]:
    return [step["run"] for job in jobs(path).values() for step in job.get("steps", []) if "run" in step]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def find_unknown(script: str) -> list[str]:
    """Make targets and programs that a script calls and that do not exist."""
    unknown = []
    for words in commands(script):
        if words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word and not word.startswith(("-", "$", '"'))]
            unknown += [f"make {target}" for target in targets if target not in make_targets()]
        elif not (ROOT / words[0]).exists():
            unknown.append(words[0])
    return unknown


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_exists(path: Path) -> None:
    assert [name for script in runs(path) for name in find_unknown(script)] == []
    for job in jobs(path).values():
        called = job.get("uses", "./README.md")
        assert called.startswith("./") and (ROOT / called).exists(), called


@pytest.mark.parametrize(
    ("script", "unknown"),
    [
        pytest.param("make check\nmake nonsense X=1", ["make nonsense"], id="target"),
        pytest.param("cd x && scripts/nonsense.sh", ["scripts/nonsense.sh"], id="program"),
        pytest.param("echo make && make test-unit WORKERS=1", [], id="both exist"),
    ],
)
def test_an_unknown_name_is_found(script: str, unknown: list[str]) -> None:
    assert find_unknown(script) == unknown


def test_ci_is_the_script_and_the_supported_versions_of_python() -> None:
    ci = jobs(GITHUB / "workflows/ci.yml")
    assert [step["run"] for step in ci["all"]["steps"] if "run" in step][-1] == ".ci/run"
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    versions = ci["unit"]["strategy"]["matrix"]["python"]
    assert versions[0] == oldest
    assert versions == sorted(set(versions), key=lambda version: int(version.partition(".")[2]))


def test_ci_runs_on_the_base_of_the_image() -> None:
    image = jobs(GITHUB / "workflows/ci.yml")["all"]["container"]["image"]
    assert f"ARG BASE={image}\n" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_little_and_ends(path: Path) -> None:
    assert load(path)["permissions"] == {"contents": "read"}
    for name, job in jobs(path).items():
        assert "uses" in job or 0 < job["timeout-minutes"] <= 240, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_with_their_version(path: Path) -> None:
    used = re.findall(r"uses: ([^.\s].*)$", path.read_text(), re.MULTILINE)
    steps = [step for job in jobs(path).values() for step in job.get("steps", [])]
    assert len(used) == sum("uses" in step for step in steps)
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_no_script_has_an_expression_in_it(path: Path) -> None:
    """The text of a branch or a title would become part of the script: values come in through the environment."""
    assert [script for script in runs(path) if "${{" in script] == []


def test_updates_look_into_folders_that_have_something_to_update() -> None:
    wanted = {"pip": ("pyproject.toml", "requirements.txt"), "docker": ("Dockerfile",), "github-actions": (".github",)}
    for update in load(GITHUB / "dependabot.yml")["updates"]:
        for folder in update.get("directories") or [update["directory"]]:
            place = ROOT / folder.strip("/")
            assert any((place / name).exists() for name in wanted[update["package-ecosystem"]]), folder


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_whole(path: Path) -> None:
    form = load(path)
    assert form["name"] and form["description"] and form["labels"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_weaknesses_are_reported_in_private() -> None:
    config = (GITHUB / "ISSUE_TEMPLATE/config.yml").read_text()
    way = "Report a vulnerability"
    assert way in config
    assert way in (ROOT / "SECURITY.md").read_text()


def test_the_pull_request_template_names_what_exists() -> None:
    text = (GITHUB / "PULL_REQUEST_TEMPLATE.md").read_text()
    assert find_unknown("\n".join(re.findall(r"`(make [^`]+)`", text))) == []
    for path in re.findall(r"`((?:docs/|[A-Z]+\.md)[^`]*)`", text):
        assert (ROOT / path).exists(), path


def test_the_hooks_of_pre_commit_are_the_programs_of_make_check() -> None:
    makefile = (ROOT / "Makefile").read_text()
    hooks = [hook for repo in load(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    for hook in hooks:
        entry = hook["entry"].removesuffix(" --force-exclude").removesuffix(" --fix")
        called = entry.replace(".venv/bin/python", "$(PY)").replace(".venv/bin/", "$(BIN)/")
        assert entry == "make check" or f"@{called}" in makefile, hook["id"]
        assert hook["language"] == "system", "a second set of pins"
