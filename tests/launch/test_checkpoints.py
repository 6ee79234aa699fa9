"""`checkpoints JOB pull|push|prune`: the runtime's command, here or in a pod. No operator runs: the test plays it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from controller import client_fixture as given
from elasticjob.archive import reading
from elasticjob.archive.commands import push
from elasticjob.archive.storage import COMMAND, Storage
from elasticjob_devcluster import Cluster
from elasticjob_operator.cli.launch.checkpoints import needs_pod
from elasticjob_operator.cli.root import run
from launch.test_inside import Run, live, start_worker

__all__ = ["live"]

PROGRAM = """#!/bin/sh
echo "$@" >> {log}
[ "$2" = prune ] && echo "would delete 1 saves" && exit 0
mkdir "$4" && echo weights > "$4/model.pt" && ln -s model.pt "$4/last"
"""


def create_job(cluster: Cluster, namespace: str, to: str, url: str, **archive: Any) -> None:
    given.install_crd(cluster)
    path = f"/apis/elasticjob.dev/v1alpha1/namespaces/{namespace}/elasticjobs"
    job = given.manifest(checkpoints={"path": "/checkpoints", "archive": {"to": to, **archive}})
    if to.startswith("file://"):
        mount = {"name": "store", "mountPath": to.removeprefix("file://")}
        job["spec"]["template"]["spec"]["volumes"] = [{"name": "store", "emptyDir": {}}]
        job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [mount]
    cluster.kube.request("POST", path, job)
    given.write_status(cluster, namespace, "digits", given.running_status() | {"archive": {"url": url}})


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_here_where_the_archive_can_be_reached(live: Run, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "model.pt").write_bytes(b"weights")
    to = f"file://{tmp_path}/store"
    url = f"{to}/{namespace}/digits/uid"
    push(Storage(url, None, COMMAND), tmp_path / "made", 7)
    create_job(cluster, namespace, to, url)
    code, out, err = live("checkpoints", "digits", "pull", str(tmp_path / "back"), "--step", "7")
    assert (code, "step 7, 1 files" in out) == (0, True), err
    assert (tmp_path / "back" / "model.pt").read_bytes() == b"weights"
    code, out, err = live("checkpoints", "digits", "pull", str(tmp_path / "other"), "--step", "8")
    assert (code, "holds no save of step 8" in err) == (1, True)
    code, out, err = live("checkpoints", "digits", "push", str(tmp_path / "back"), "--step", "9")
    assert code == 0, err
    new = out.strip().rpartition(" ")[2]
    assert new.startswith(f"{to}/{namespace}/digits/pushed-")
    assert [save.step for _, save in reading.find_saves(Storage(new, None, COMMAND))] == [9]
    code, out, err = live("checkpoints", "digits", "prune", "--keep", "1")
    assert (code, "keeps step 7" in out) == (0, True), err
    shutil.rmtree(tmp_path / "store")
    code, _, err = live("checkpoints", "digits", "prune", "--keep", "1")
    assert (code, "is on a volume of the job, and no pod of it runs: resume digits" in err) == (1, True)


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_in_a_pod_where_only_pods_have_the_keys(
    live: Run, cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://bucket/training/{namespace}/digits/uid"
    create_job(cluster, namespace, "s3://bucket/training", url, credentialsSecret="archive")
    program, log = tmp_path / "bin" / "elasticjob", tmp_path / "log"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(log=log))
    program.chmod(0o755)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    keys = "--credentials /var/run/secrets/elasticjob.dev-archive"

    code, _, err = live("checkpoints", "digits", "pull", str(tmp_path / "back"))
    assert (code, "Secret archive, and no pod of the job runs: using your own identity" in err) == (1, True)
    command = f"elasticjob archive pull {url} {tmp_path}/back"
    assert f"pip install 'elasticjob[s3]', and repeat this; or run, where it is: {command}" in err

    start_worker(cluster, namespace, 0, path=f"{program.parent}:{os.environ['PATH']}")
    code, out, err = live("checkpoints", "digits", "pull", str(tmp_path / "back"), "--step", "7")
    assert (code, out) == (0, f"{tmp_path}/back\n"), err
    assert {one.name: one.read_text() for one in (tmp_path / "back").iterdir()} == dict.fromkeys(
        ("model.pt", "last"), "weights\n"
    )
    code, out, err = live("checkpoints", "digits", "prune", "--keep", "2", "--yes")
    assert (code, out) == (0, "would delete 1 saves\n"), err
    first, second = log.read_text().splitlines()
    assert first.startswith(f"archive pull {url} /") and first.endswith(f"/save --step 7 {keys}")
    assert not Path(first.split()[3]).exists(), "the pod keeps nothing of it"
    assert second == f"archive prune {url} --keep 2 --yes {keys}"

    (tmp_path / "keys").mkdir()
    code, _, err = live("checkpoints", "digits", "prune", "--keep", "2", "--credentials", str(tmp_path / "keys"))
    assert (code, f"archive prune {url} --keep 2 --credentials {tmp_path}/keys" in err) == (1, True)
    code, _, err = live("checkpoints", "digits", "push", str(tmp_path / "back"))
    assert (code, f"archive push s3://bucket/training/{namespace}/digits/pushed-" in err) == (1, True)
    assert len(log.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("to", "secret", "has_credentials", "expected"),
    [
        ("s3://bucket", None, False, False),
        ("s3://bucket", "keys", False, True),
        ("s3://bucket", "keys", True, False),
        ("file:///there/is/none", None, False, True),
        ("file://{here}", None, False, False),
    ],
)
def test_where_it_runs(tmp_path: Path, to: str, secret: str | None, has_credentials: bool, expected: bool) -> None:
    (tmp_path / "team" / "digits").mkdir(parents=True)
    archive = {"to": "s3://bucket"} | ({} if secret is None else {"credentialsSecret": secret})
    job = given.job(checkpoints={"path": "/c", "archive": archive})
    url = to.format(here=tmp_path) + "/team/digits/uid"
    assert needs_pod(job, url, has_credentials=has_credentials) is expected


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("digits steal", "is not one of 'pull', 'push', 'prune'"),
        ("digits --keep 1", "name what to do: pull FOLDER, push FOLDER or prune --keep N"),
        ("digits pull", "pull: needs a FOLDER"),
        ("digits pull .", "name a folder that does not exist, in one that does"),
        ("digits pull new --keep 1", "pull: has no --keep and no --yes"),
        ("digits pull new -o json", "-o is for the list of checkpoints alone"),
        ("digits prune", "prune needs --keep N"),
        ("digits prune x --keep 1", "prune: has no FOLDER"),
        ("digits prune --keep 0", "0 is not in the range x>=1"),
        ("digits prune --keep 1 --step 1", "prune: has no --step"),
        ("digits prune --keep 1", "none found: give --kubeconfig"),
    ],
)
def test_mistakes(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert run(["checkpoints", *line.split()]) == 2
    assert told in capsys.readouterr().err
