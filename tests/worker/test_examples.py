"""The examples without an operator: alone and under a plain torchrun. `test_gallery.py` runs their manifests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import elasticjob
from worker.gang_helper import PROGRAMS, REPOSITORY, Member, clean_environment, run_gang

EXAMPLES = REPOSITORY / "worker_image" / "examples"
MANIFESTS = REPOSITORY / "manifests" / "examples"
pytestmark = pytest.mark.timeout(300)

Said = dict[str, list[list[dict[str, Any]]]]  # by "script worldsize": for each run of it, what each rank said


@pytest.fixture(scope="module")
def gallery() -> Said:
    members = run_gang(PROGRAMS / "examples_program.py", 2, timeout=280)
    said: Said = {}
    for member in members:
        for name, run, facts in _sections(member):
            runs = said.setdefault(name, [])
            while len(runs) <= run:
                runs.append([])
            runs[run].append(facts)
    return said


def _sections(member: Member) -> list[tuple[str, int, dict[str, Any]]]:
    found, name = [], ""
    seen: dict[str, int] = {}
    for line in member.stdout.splitlines():
        if line.startswith("# "):
            name = line[2:]
            seen[name] = seen.get(name, -1) + 1
        elif line.startswith("{"):
            found.append((name, seen[name], json.loads(line)))
    return found


def test_launched_takes_the_right_path(gallery: Said) -> None:
    ((alone,),) = gallery["basics/launched.py alone"]
    assert (alone["path"], alone["worldSize"], alone["variables"]) == ("alone", 1, {})
    elastic, launched = gallery["basics/launched.py 2"]
    assert [facts["path"] for facts in elastic] == ["elastic", "elastic"]
    assert [facts["path"] for facts in launched] == ["launched", "launched"]


def test_gathering_alone(gallery: Said) -> None:
    assert gallery["basics/gathering.py alone"][0][0]["unequal"] == [[1, 2]]


def test_the_same_curve_in_worlds_of_two_sizes(gallery: Said) -> None:
    done = [facts for world in ("alone", "2") for run in gallery[f"same_curve.py {world}"] for facts in run]
    assert [facts["worldSize"] for facts in done if facts["event"] == "done"] == [1, 2, 2]
    assert len({facts["digest"] for facts in done if facts["event"] == "done"}) == 1


def run_script(*command: str, timeout: float = 120) -> list[dict[str, Any]]:
    """The JSON lines of a command that succeeds. Its whole process group is gone afterwards."""
    env = clean_environment(GLOO_SOCKET_IFNAME="lo")
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors[-3000:]
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_digits_reaches_its_accuracy_and_resumes(tmp_path: Path) -> None:
    script, *options = EXAMPLES / "digits.py", "--checkpoint-dir", str(tmp_path)
    for member in run_gang(script, 2, *options, "--epochs=4"):
        assert '"worldSize": 2' in member.stdout
    (tmp_path / "step-00000999.pt").write_bytes(b"not a checkpoint")
    second = run_script(sys.executable, str(script), *options, "--epochs=10")
    assert [line["step"] for line in second if line["event"] == "start"] == [4 * 29]
    (done,) = [line for line in second if line["event"] == "done"]
    assert done["accuracy"] >= 0.95
    assert set(done) == {"event", "generation", "rank", "worldSize", "epoch", "step", "loss", "accuracy", "time"}


def test_the_session_example_is_an_ordinary_script_too() -> None:
    script = str(EXAMPLES / "digits_session.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    said = run_script(*torchrun, script, "--epochs", "4")
    steps = {rank: [s["step"] for s in said if s["event"] == "step" and s["rank"] == rank] for rank in (0, 1)}
    assert steps[0] == steps[1] == list(range(1, len(steps[0]) + 1))
    first, second = (line["accuracy"] for line in said if line["event"] == "done")
    assert first == second >= 0.9


def test_the_session_example_needs_no_setting() -> None:
    job = yaml.safe_load((MANIFESTS / "digits-session.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][0] == "elasticjob-run"
    assert "env" not in container


SCRIPTS = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_example_has_a_manifest_that_runs_it(script: str) -> None:
    path = MANIFESTS / f"{script.removesuffix('.py').replace('/', '-').replace('_', '-')}.yaml"
    (job,) = yaml.safe_load_all(path.read_text())
    assert (job["apiVersion"], job["kind"]) == ("elasticjob.dev/v1alpha1", "ElasticJob")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"elasticjob/worker:{elasticjob.__version__}"
    assert f"/opt/elasticjob/examples/{script}" in container["command"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_guide_names_every_example(script: str) -> None:
    assert script in (REPOSITORY / "docs" / "runtime.md").read_text()


@pytest.mark.parametrize("script", ["digits.py", "steps.py"])
def test_the_unmodified_scripts_import_nothing_of_ours(script: str) -> None:
    assert "import elasticjob" not in (EXAMPLES / script).read_text()
