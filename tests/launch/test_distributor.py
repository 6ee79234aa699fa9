"""PySpark's TorchDistributor without PySpark: its calls as jobs of this machine and of a cluster."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from controller import client_fixture as given
from elasticjob_devcluster import Cluster
from elasticjob_operator.client import ClientError
from elasticjob_operator.launch import TorchDistributor, distributor
from operator_fixture import wait_for
from worker.gang_helper import clean_environment

# A script as a user of PySpark has it, with one line changed.
DRIVER = """
import os
import sys
from pathlib import Path

import beside
from elasticjob_operator.client import JobFailedError
from elasticjob_operator.launch import TorchDistributor


class Model:
    def __init__(self, total, rank):
        self.total, self.rank = total, rank


def make(offset):
    def train(weights, *more, scale=1):
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print("trained", dist.get_rank(), flush=True)
        rank = dist.get_rank()
        dist.destroy_process_group()
        return Model(scale * (beside.double(total.item()) + sum(weights.values()) + sum(more) + offset), rank)

    return train


def fail(size):
    raise ValueError(f"no such batch of {size}")


if __name__ == "__main__":
    here = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    train = make(100)
    model = here.run(lambda *given, **named: train(*given, **named), {"a": 10, "b": 20}, 3, 4, scale=2)
    print("function", type(model).__name__, model.total, model.rank, flush=True)
    print("script", here.run(str(Path(__file__).with_name("script.py")), "--rate", 0.5), flush=True)
    one = TorchDistributor(use_gpu=False)
    try:
        one.run(lambda: fail(os.environ["WORLD_SIZE"]))
    except JobFailedError as error:
        print("failed", "no such batch of 1" in str(error), flush=True)
"""
SCRIPT = """
import os, sys
from pathlib import Path
Path(f"said-{os.environ['RANK']}").write_text(" ".join(sys.argv[1:]))
"""


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("local_programs")
def test_functions_and_scripts_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "beside.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "driver.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.splitlines()
    assert {"trained 0", "trained 1"} <= set(said), done.stdout
    assert "function Model 282.0 0" in said, done.stdout  # 2 * (2 * 2 + 30 + 7 + 100)
    assert "script None" in said
    assert [(tmp_path / f"said-{rank}").read_text() for rank in "01"] == ["--rate 0.5"] * 2
    assert "failed True" in said


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function of a module of its own."""
    (tmp_path / "module_of_spark.py").write_text("def train(rate, epochs=1, **more):\n    return rate\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "module_of_spark", raising=False)
    found: Callable[..., Any] = importlib.import_module("module_of_spark").train
    return found


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_function_on_a_cluster(
    cluster: Cluster, namespace: str, train: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """No operator runs: the test writes what it would write."""
    given.install_crd(cluster)
    where: dict[str, Any] = {"kubeconfig": str(cluster.kubeconfig), "namespace": namespace}
    there = TorchDistributor(num_processes=(1, 3), local_mode=False, image="i", name="digits", **where)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(there.run, train, 0.1, momentum=0.9)
        path = f"/apis/elasticjob.dev/v1alpha1/namespaces/{namespace}/elasticjobs/digits"
        job: Any = wait_for(lambda: cluster.kube.get(path), "the job", 60)
        given.write_status(cluster, namespace, "digits", given.running_status())
        given.run_pod(cluster, namespace, "digits", 0, "echo said; echo 'elasticjob-result 1/1 {\"value\": 0.1}'")
        done = {**given.running_status(), "phase": "Complete", "conditions": [given.condition("Complete")]}
        given.write_status(cluster, namespace, "digits", done)
        assert result.result(120) == 0.1
    policy = job["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"]) == (1, 3)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] in (1, "1")
    assert "said" in capsys.readouterr().out


def _at(rate: float, /) -> float:
    return rate


def _all(*rates: float) -> float:
    return sum(rates)


def _named(rate: float, epochs: int = 1, **more: int) -> float:
    return rate


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "expected"),
    [
        pytest.param(_named, (0.1,), {}, {"rate": 0.1}, id="by place"),
        pytest.param(_named, (0.1, 3), {"a": 1, "b": 2}, {"rate": 0.1, "epochs": 3, "a": 1, "b": 2}, id="more"),
        pytest.param(_named, (), {"rate": 0.1}, {"rate": 0.1}, id="by name"),
        pytest.param(_all, (), {}, {}, id="none"),
        pytest.param(_all, (1.0,), {}, "rates: arguments travel to a cluster by name", id="as many as there are"),
        pytest.param(_at, (1.0,), {}, "rate: arguments travel to a cluster by name", id="only by place"),
        pytest.param(_named, (), {}, "missing a required argument: 'rate'", id="too few"),
    ],
)
def test_the_arguments_of_a_cluster_have_names(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], expected: dict[str, Any] | str
) -> None:
    if isinstance(expected, dict):
        assert distributor.find_keywords(function, args, kwargs) == expected
        return
    with pytest.raises(ClientError) as caught:
        distributor.find_keywords(function, args, kwargs)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "call", "told"),
    [
        pytest.param({"num_processes": 0}, None, "num_processes: 0: must be a number of pods", id="no process"),
        pytest.param({"local_mode": False}, (_named, 1.0), "image: is required on a cluster", id="no image"),
        pytest.param({}, ("gone.py",), "gone.py: no such file", id="no script"),
        pytest.param({}, (_named, (_ for _ in range(0))), "cannot be pickled: TypeError", id="a generator"),
        pytest.param({"gpus": 1}, (_named, 1.0), "gpus: on this machine", id="what launch refuses"),
    ],
)
def test_what_cannot_start_is_named(changes: dict[str, Any], call: tuple[Any, ...] | None, told: str) -> None:
    with pytest.raises(ClientError) as caught:
        made = TorchDistributor(**changes)
        made.run(*(call or (_named,)))
    assert told in str(caught.value)


def test_a_script_has_no_keywords() -> None:
    with pytest.raises(ClientError, match=r"write '--epochs=\.\.\.' as one word"):
        TorchDistributor().run("train.py", epochs=3)


def test_a_function_needs_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ClientError, match="pip install cloudpickle, or name a script"):
        TorchDistributor().run(_named, 1.0)


def test_a_value_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="spark: no result: rank 0 ended before the function returned"):
        distributor.read_value(tmp_path, "spark")
    (tmp_path / "value").write_bytes(b"cut")
    with pytest.raises(ClientError, match="spark: no result: it cannot be unpickled"):
        distributor.read_value(tmp_path, "spark")
