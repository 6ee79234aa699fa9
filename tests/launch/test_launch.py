"""`launch`: the handle of a job on a cluster, and what is refused before anything starts."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller import client_fixture as given
from elasticjob_devcluster import Cluster
from elasticjob_operator.api import InvalidJobError
from elasticjob_operator.client import ClientError
from elasticjob_operator.launch import launch
from elasticjob_operator.launch import local as local_cluster


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function of a module of its own."""
    (tmp_path / "module_of_ours.py").write_text("def train(a=1):\n    return a\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "module_of_ours", raising=False)
    found: Callable[..., Any] = importlib.import_module("module_of_ours").train
    return found


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"on": "moon"}, "on: must be 'local' or 'cluster', not 'moon'"),
        ({"image": None}, "image: is required on a cluster"),
        ({"on": "local", "template": "small"}, 'template: is for on="cluster"'),
        ({"workers": 0}, "workers: 0: must be a number of pods, or (min, max)"),
        ({"workers": (4, 2)}, "workers: (4, 2): must be"),
        ({"workers": (1, 2, 3)}, "workers: (1, 2, 3): must be"),
        ({"workers": "many"}, "workers: 'many': must be"),
        ({"on": "local", "gpus": 1}, "gpus: on this machine"),
        ({"on": "local", "context": "c"}, 'context, kubeconfig: are for on="cluster"'),
        ({"arguments": ["x"]}, "arguments: of a function are keywords"),
        ({"arguments": {"b": 1}}, "arguments: train(): got an unexpected keyword argument 'b'"),
        ({"target": "gone.py"}, "gone.py: no such file"),
        ({"target": __file__, "arguments": {"a": 1}}, "arguments: of a script are a list of words"),
        ({"target": __file__, "arguments": "ab"}, "arguments: of a script are a list of words"),
        ({"target": "python", "packages": ["numpy"]}, "packages: are installed for code that is sent"),
        ({"packages": ["-r x"]}, "packages: '-r x' is not a requirement"),
        ({"code": "gone"}, "gone: cannot be read"),
        ({"kubeconfig": "/gone"}, "kubeconfig /gone: no such file"),
        ({"env": {"A": 1}}, "env: must map names to strings"),
        ({"name": "x" * 254}, "at most 253 characters"),
        ({"name": 7}, "metadata.name: '7': must be lower-case letters"),
    ],
)
def test_what_cannot_start_names_the_argument(train: Callable[..., Any], changes: dict[str, Any], told: str) -> None:
    with pytest.raises((ClientError, InvalidJobError)) as caught:
        launch(**{"target": train, "on": "cluster", "image": "i", **changes})
    assert told in str(caught.value)


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_handle_of_a_job_on_a_cluster(
    cluster: Cluster, namespace: str, train: Callable[..., Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No operator runs: the test writes what it would write."""
    given.install_crd(cluster)
    where: dict[str, Any] = {"on": "cluster", "kubeconfig": str(cluster.kubeconfig), "namespace": namespace}
    run = launch(train, {"a": 2}, workers=(1, 3), image="i", name="digits", packages=["click"], **where)
    assert (run.name, run.namespace) == ("digits", namespace)
    job = run.job().raw
    digest = job["metadata"]["annotations"]["elasticjob.dev/code-digest"]
    path = f"/api/v1/namespaces/{namespace}/configmaps/digits-code-{digest[7:17]}"
    assert "click" in cluster.kube.request("GET", path)["data"]["0-elasticjob-requirements.txt"]
    run.scale(2)
    assert run.job().raw["spec"]["replicas"] == 2
    updated = run.update(train, {"a": 3}, env={"A": "b"}).spec
    assert updated is not None and updated.code is not None and updated.code.revision == 1
    sent = cluster.kube.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/digits-update-a")["data"]
    assert json.loads(sent["revision.json"])["variables"] == {"A": "b"}
    assert any('"a": 3' in text for text in sent.values())
    assert run.undo().raw["spec"].get("code") is None, "it was on its way"
    with pytest.raises(ClientError, match="python: is no script, folder or function"):
        run.update("python")
    with pytest.raises(ClientError, match=r"not finished within 0\.1 s: digits: Pending"):
        run.wait(timeout=0.1)

    given.write_status(cluster, namespace, "digits", given.running_status())
    given.run_pod(cluster, namespace, "digits", 0, "echo said; echo 'elasticjob-result 1/1 {\"value\": [2]}'")
    done = {**given.running_status(), "phase": "Complete", "conditions": [given.condition("Complete")]}
    given.write_status(cluster, namespace, "digits", done)
    assert run.wait(timeout=60).phase == "Complete"
    assert "digits: Complete, 2 workers" in capsys.readouterr().out
    assert run.result(timeout=60) == [2]
    assert list(run.logs()) == ["said"]
    assert "digits" in run.report(tmp_path / "report.html").read_text()

    failed = {
        "phase": "Failed",
        "conditions": [given.condition("Failed", reason="MaxRestartsExceeded")],
        "lastFailure": {"pod": "digits-worker-0", "rank": 0, "exitCode": 1, "traceback": "ValueError: no"},
    }
    given.write_status(cluster, namespace, "digits", failed)
    with pytest.raises(ClientError, match=r"digits failed: MaxRestartsExceeded: it is so\nValueError: no"):
        run.wait(timeout=60)
    run.delete()
    with pytest.raises(ClientError, match="not found"):
        run.status()


def test_a_job_does_not_launch_itself_again(train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICJOB_UID", "u")
    with pytest.raises(ClientError, match="was called inside of a job"):
        launch(train)


def test_what_is_missing_is_named(train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        local_cluster, "_NEEDED", {"gone_a": "a (pip install a)", "os": "b", "gone_c": "a (pip install a)"}
    )
    with pytest.raises(ClientError, match=r"needs a \(pip install a\): see docs/launch\.md"):
        launch(train)


@pytest.mark.parametrize(("cpus", "workers", "threads"), [(8, 4, "2"), (1, 4, "1"), (5, 2, "2")])
def test_workers_share_the_threads(cpus: int, workers: int, threads: str) -> None:
    found = local_cluster.worker_environment(cpus, workers, {})
    assert found["OMP_NUM_THREADS"] == threads
    assert found["HOME"] == os.path.expanduser("~")  # noqa: PTH111 - what shells mean by it


@pytest.mark.parametrize(
    ("variable", "value", "passed"),
    [
        pytest.param("HF_HOME", "/data/hf", "/data/hf", id="a variable"),
        pytest.param("PYTHONPATH", "/code", "/code", id="where modules are"),
        pytest.param("OMP_NUM_THREADS", "3", "3", id="the user knows better"),
        pytest.param("PS1", "$(date) $", "$$(date) $$", id="a dollar sign is none of Kubernetes"),
        pytest.param("RANK", "3", None, id="of another launcher"),
        pytest.param("PET_NNODES", "2", None, id="of torchrun"),
        pytest.param("ELASTICJOB_UID", "u", None, id="of another job"),
        pytest.param("PATH", "/bin", None, id="the pod's own"),
        pytest.param("BASH_FUNC_f%%", "() { :; }", None, id="no name for Kubernetes"),
        pytest.param("NAME", "caf\udce9", None, id="no text"),
    ],
)
def test_workers_have_the_variables_of_their_user(variable: str, value: str, passed: str | None) -> None:
    assert local_cluster.worker_environment(4, 2, {variable: value}).get(variable) == passed
