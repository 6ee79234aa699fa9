"""`submit` with files of this machine: what is sent runs, and nothing is left of a job that cannot be sent."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from elasticjob_devcluster import Cluster
from elasticjob_operator.cli import common
from elasticjob_operator.cli.launch.following import come_back
from elasticjob_operator.cli.root import run
from elasticjob_operator.client import Client, ForbiddenError, build_manifest
from elasticjob_operator.launch.attach import attach
from elasticjob_operator.launch.bundle import Bundle, File
from elasticjob_operator.launch.send import send
from operator_fixture import Jobs, wait_for

SCRIPT = """
import os
import sys
import greeting            # from requirements.txt
from parts import words    # sent with the script
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} says {greeting.TEXT} {words.TEXT} {sys.argv[1:]}")
"""


def make_wheel(folder: Path) -> None:
    """A package that pip finds without a network."""
    folder.mkdir()
    info = "greeting-1.0.dist-info"
    with zipfile.ZipFile(folder / "greeting-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("greeting.py", "TEXT = 'hello'\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_what_runs_is_what_was_sent(
    cluster: Cluster, jobs: Jobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    (project / "parts").mkdir(parents=True)
    (project / "train.py").write_text(SCRIPT)
    (project / "parts" / "words.py").write_text("TEXT = 'from afar'\n")
    # click is there already: it must not be fetched, which this index could not do.
    (project / "requirements.txt").write_text("--no-index\n--find-links wheels\ngreeting\nclick>=8\n")
    make_wheel(project / "wheels")
    target = ["-n", jobs.namespace, "--kubeconfig", str(cluster.kubeconfig)]
    line = ["submit", str(project), "--name", "sent", "--image", "local", "--max", "1", "--follow"]
    code = run([*line, *target, "--", "--epochs", "3"])
    said = capsys.readouterr()
    assert code == 0, said.err
    assert re.search(r"rank 0 of 1 says hello from afar \['--epochs', '3'\]", said.out), said.out
    found = re.search(r"elasticjob sent created with 4 files, \S+ \S+, sha256:(\w{12})", said.out)
    assert found is not None, said.out

    job = jobs.get("sent")
    digest = job["metadata"]["annotations"]["elasticjob.dev/code-digest"]
    assert digest.startswith(f"sha256:{found[1]}")
    assert {p["metadata"]["annotations"]["elasticjob.dev/code-digest"] for p in jobs.pods("sent")} == {digest}
    path = f"/api/v1/namespaces/{jobs.namespace}/configmaps/sent-code-{found[1][:10]}"
    config_map = cluster.kube.request("GET", path)
    assert config_map["immutable"]
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert run(["describe", "sent", *target]) == 0
    assert digest in "".join(capsys.readouterr().out.split()), "it may be wrapped"
    jobs.delete("sent")
    wait_for(lambda: cluster.kube.get(path) is None, "the code is deleted with its job")


def test_a_dry_run_shows_both_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    line = ["submit", str(tmp_path / "train.py"), "--image", "i", "--dry-run", "--name", "n"]
    assert run(line) == 0
    job, config_map = yaml.safe_load_all(capsys.readouterr().out)
    assert (job["kind"], config_map["kind"]) == ("ElasticJob", "ConfigMap")
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["torchrun", "/opt/elasticjob/code/train.py"]
    assert run([*line, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == [job, config_map]
    assert run([*line, "--in-image"]) == 0
    assert (
        yaml.safe_load(capsys.readouterr().out)["spec"]["template"]["spec"]["containers"][0]["command"][0] == "torchrun"
    )


def test_a_template_gives_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    requirements = tmp_path / "needed.txt"
    requirements.write_text("click\n")
    line = ["submit", str(tmp_path / "train.py"), "--template", "small", "--dry-run", "--name", "n"]
    assert run([*line, "--requirements", str(requirements)]) == 0
    spec = next(yaml.safe_load_all(capsys.readouterr().out))["spec"]
    assert spec["templateRef"] == {"kind": "ElasticJobTemplate", "name": "small"}
    assert "replicas" not in spec
    (trainer,) = spec["template"]["spec"]["containers"]
    (installer,) = spec["template"]["spec"]["initContainers"]
    assert "image" not in trainer
    assert "image" not in installer, "it gets that of the template's trainer"
    assert run([*line, "--max", "2", "--image", "mine:1"]) == 0
    spec = next(yaml.safe_load_all(capsys.readouterr().out))["spec"]
    assert (spec["elasticPolicy"], spec["template"]["spec"]["containers"][0]["image"]) == ({"maxReplicas": 2}, "mine:1")


def test_code_for_a_manifest_that_leaves_its_pods_to_a_template() -> None:
    manifest = {**build_manifest("n", "i", ["x"]), "spec": {"templateRef": {"name": "small"}}}
    sent = attach(manifest, Bundle((File("train.py", b"print(1)"),))).manifest["spec"]["template"]["spec"]
    assert [c["name"] for c in sent["containers"]] == ["worker"]
    assert sent["containers"][0]["workingDir"] == "/opt/elasticjob/code"


def test_a_manifest_can_have_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(build_manifest("n", "i", ["torchrun", "train.py"])))
    assert run(["submit", "-f", str(path), "--code", str(tmp_path / "code"), "--dry-run"]) == 0
    job, _ = yaml.safe_load_all(capsys.readouterr().out)
    assert job["spec"]["template"]["spec"]["containers"][0]["workingDir"] == "/opt/elasticjob/code"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("submit script.py --in-image --code . --image i", "--in-image sends nothing"),
        ("submit python --requirements r.txt --image i", "--requirements: is for code that is sent"),
        ("submit script.py --code gone --image i", "Path 'gone' does not exist"),
        ("submit other.py --in-image", "--image: is required without --template"),
        ("submit -f job.yaml --template small", "--template: is for a script: name it in the manifest"),
        ("submit script.py --image i", "script.py: imports helper, which lies beside it"),
        ("submit . --image i", ".: which script of it?"),
        ("submit other.py --code . --image i", "other.py: is not in the code that is sent"),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("import helper")
    Path("helper.py").touch()
    Path("r.txt").touch()
    assert run(line.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err


def test_a_script_that_is_not_here_is_said_to_be_in_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["submit", "trian.py", "--image", "i", "--dry-run"]) == 0
    assert "trian.py: is no file here, so that the image must have it" in capsys.readouterr().err


@pytest.mark.parametrize("length", [1, 300_000])
def test_a_template_that_operators_refuse_is_told_before_it_is_sent(
    capsys: pytest.CaptureFixture[str], length: int
) -> None:
    """Not refused: the administrator may have raised the limit."""
    line = ["submit", "train.py", "--in-image", "--name", "long", "--image", "a:1", "--dry-run", "--", "x" * length]
    assert run(line) == 0
    told = capsys.readouterr().err
    assert ("spec.template: has 300" in told and "the limit is 262144" in told) is (length > 1)


def test_who_leaves_is_told_how_to_come_back() -> None:
    target = common.Target(namespace="team a", context="c")
    flags = "kubectl elasticjob -n 'team a' --context c"
    told = f"digits goes on. To come back: {flags} logs -f digits; to end it: {flags} delete digits"
    assert come_back("digits", target) == told
    assert "kubectl elasticjob logs -f digits" in come_back("digits", common.Target())


class Refusing:
    """An API server that takes jobs, and refuses ConfigMaps at the n-th request (a dry run is the first)."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.requests: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        plural = request.path.split("/")[-1 if request.method == "POST" else -2]
        self.requests.append(f"{request.method} {plural}{' dry' if 'dryRun' in request.query else ''}")
        if plural == "configmaps" and sum("configmaps" in r for r in self.requests) == self.refused:
            status = {"kind": "Status", "reason": "Forbidden", "message": "no configmaps for you", "code": 403}
            return web.json_response(status, status=403)
        body: dict[str, Any] = await request.json() if request.can_read_body else {}
        body.setdefault("metadata", {})["uid"] = "u"
        return web.json_response(body, status=201)


@pytest.fixture
async def refusing(tmp_path: Path) -> AsyncIterator[tuple[Refusing, Path]]:
    server = Refusing(0)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    yield server, path
    await runner.cleanup()


@pytest.mark.parametrize(
    ("refused", "requests"),
    [
        pytest.param(0, ["POST configmaps dry", "POST elasticjobs", "POST configmaps"], id="none"),
        pytest.param(1, ["POST configmaps dry"], id="no-right"),
        pytest.param(
            2, ["POST configmaps dry", "POST elasticjobs", "POST configmaps", "DELETE elasticjobs"], id="changed-mind"
        ),
    ],
)
async def test_no_job_waits_for_code_that_never_comes(
    refusing: tuple[Refusing, Path], refused: int, requests: list[str]
) -> None:
    server, kubeconfig = refusing
    server.refused = refused
    shipment = attach(build_manifest("n", "i", ["x"]), Bundle((File("t.py", b""),)))
    async with Client(kubeconfig=str(kubeconfig), namespace="a") as client:
        if refused:
            with pytest.raises(ForbiddenError, match=r"create configmap n-code-.*, the code of the job: not allowed"):
                await send(client, shipment)
        else:
            assert (await send(client, shipment)).name == "n"
    assert server.requests == requests
