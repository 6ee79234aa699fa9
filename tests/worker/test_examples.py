"""Every example runs, and its results are checked. The gallery shares one gang; launchers and digits have their own."""

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

from worker.gang_helper import PROGRAMS, REPOSITORY, Member, clean_environment, run_gang

EXAMPLES = REPOSITORY / "worker_image" / "examples"
MANIFESTS = REPOSITORY / "manifests" / "examples"
pytestmark = pytest.mark.timeout(300)

Said = dict[str, list[list[dict[str, Any]]]]  # by "script worldsize": for each run of it, what each rank said


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("examples")
    members = run_gang(PROGRAMS / "examples_program.py", 3, str(folder), timeout=280)
    said: Said = {"steps": [[json.loads(line) for line in _read_all(folder / "steps")]]}
    for member in members:
        for name, run, facts in _sections(member):
            runs = said.setdefault(name, [])
            while len(runs) <= run:
                runs.append([])
            runs[run].append(facts)
    return said


def _read_all(folder: Path) -> list[str]:
    return [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


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


def test_backend_trains_as_one_process_would(gallery: Said) -> None:
    ((first, second),) = gallery["basics/backend.py 2"]
    assert first["available"]["gloo"] is True
    assert max(first["difference"], second["difference"]) < 1e-5


def test_groups(gallery: Said) -> None:
    (ranks,) = gallery["basics/groups.py 3"]
    assert [facts["token"] for facts in ranks] == [1, 2, 3]
    assert [facts["fromBefore"] for facts in ranks] == [2, 0, 1]
    assert {(facts["SUM"], facts["PRODUCT"], facts["MAX"], facts["MIN"]) for facts in ranks} == {(6, 6, 3, 1)}
    assert [facts.get("even") for facts in ranks] == [2, None, 2]


def test_gathering(gallery: Said) -> None:
    (ranks,) = gallery["basics/gathering.py 3"]
    for facts in ranks:
        assert facts["concatenated"] == [0, 0, 1, 1, 2, 2]
        assert facts["stacked"] == facts["list"] == [0, 1, 2]
        assert facts["unequal"] == [[1, 2], [2, 2], [3, 2]]
    assert [facts["gather"] for facts in ranks] == [[0, 1, 2], None, None]
    assert gallery["basics/gathering.py alone"][0][0]["unequal"] == [[1, 2]]


def test_fsdp_splits_the_parameters_and_continues_at_another_size(gallery: Said) -> None:
    (before,) = gallery["fsdp.py 2"]
    (after,) = gallery["fsdp.py 3"]
    assert sum(facts["mine"] for facts in before) == sum(facts["mine"] for facts in after) == before[0]["whole"]
    assert [facts["resumedAt"] for facts in after] == [10, 10, 10]
    assert after[0]["losses"][-1] < before[0]["losses"][0] / 2


def test_the_language_model_learns_and_continues_at_another_size(gallery: Said) -> None:
    (before,) = gallery["language_model.py 2"]
    (after,) = gallery["language_model.py 3"]
    assert before[0]["lastLoss"] < before[0]["firstLoss"] - 0.5
    assert after[0]["firstLoss"] < before[0]["firstLoss"] - 0.5
    assert after[0]["step"] == 40


def test_steps_write_one_line_a_step(gallery: Said) -> None:
    (lines,) = gallery["steps"]
    assert sorted((line["rank"], line["step"], line["world"]) for line in lines) == [
        (rank, step, 2) for rank in range(2) for step in range(3)
    ]
    assert set(lines[0]) == {"t", "rank", "world", "pid", "generation", "step"}


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
    script = [str(EXAMPLES / "digits.py"), "--checkpoint-dir", str(tmp_path)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    first = run_script(*torchrun, *script, "--epochs", "4")
    (tmp_path / "step-00000999.pt").write_bytes(b"not a checkpoint")
    second = run_script(sys.executable, *script, "--epochs", "10")
    assert {line["worldSize"] for line in first} == {2}
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


def test_the_agent_meets_before_it_assigns_ranks_and_starts() -> None:
    (said,) = run_script(sys.executable, str(EXAMPLES / "basics" / "agent.py"))
    assert said["steps"] == ["rendezvous", "ranks", "processes"]
    assert said["state"] == "SUCCEEDED"
    assert [(told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"]) for told in said["workers"]] == [
        ("0", "0", "2"),
        ("1", "1", "2"),
    ]
    assert {told["TORCHELASTIC_RUN_ID"] for told in said["workers"]} == {"basics"}


def test_spawn_is_not_elastic() -> None:
    said = run_script(sys.executable, str(EXAMPLES / "spawn.py"), "2")
    assert sorted((line["rank"], line["elastic"], line["total"]) for line in said) == [(0, False, 3), (1, False, 3)]


def test_rpc_asks_every_rank() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"]
    port = ["--master-addr=127.0.0.1", f"--master-port={_free_port()}"]
    (said,) = run_script(*torchrun, *port, str(EXAMPLES / "rpc.py"))
    assert said["total"] == sum(number**2 for number in range(12))


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


SCRIPTS = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_example_has_a_manifest_that_runs_it(script: str) -> None:
    path = MANIFESTS / f"{script.removesuffix('.py').replace('/', '-').replace('_', '-')}.yaml"
    (job,) = yaml.safe_load_all(path.read_text())
    assert (job["apiVersion"], job["kind"]) == ("elasticjob.dev/v1alpha1", "ElasticJob")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "elasticjob/worker:0.1.0"
    assert f"/opt/elasticjob/examples/{script}" in container["command"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_guide_names_every_example(script: str) -> None:
    assert script in (REPOSITORY / "docs" / "runtime.md").read_text()


@pytest.mark.parametrize("script", ["digits.py", "steps.py"])
def test_the_unmodified_scripts_import_nothing_of_ours(script: str) -> None:
    assert "import elasticjob" not in (EXAMPLES / script).read_text()
