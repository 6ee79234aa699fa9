"""The commands on the page about the devcluster, executed as a new user would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from elasticjob_devcluster import Cluster
from elasticjob_devcluster.api.apply import apply_object, read_objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]


def test_the_operator_on_a_devcluster_as_the_page_says(cluster: Cluster, tmp_path: Path) -> None:
    section = (ROOT / "docs/devcluster.md").read_text().partition("## The operator on a devcluster")[2]
    commands = re.findall(r"^\$ (.*)$", section.partition("## ")[0], re.MULTILINE)
    script = "\n".join(commands).replace("~/.local/state", str(tmp_path / "state"))
    script = script.replace("operator.log", str(tmp_path / "operator.log")).replace("--out=/tmp", f"--out={tmp_path}")
    script = script.replace("$PWD/.venv/bin", str(Path(sys.executable).parent))
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    try:
        done = subprocess.run(
            ["bash", "-emc", script], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=200
        )
    finally:
        down = [sys.executable, "-m", "elasticjob_devcluster", "down"]
        subprocess.run(down, env=env, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{(tmp_path / 'operator.log').read_text()[-3000:]}"
    assert "customresourcedefinition/elasticjobs.elasticjob.dev created" in done.stdout
    assert "steps: Complete" in done.stdout
    assert done.stdout.endswith("elasticjob steps deleted\nThe cluster is gone.\n")


def test_an_object_is_created_then_replaced(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    for value, outcome in (("a", "created"), ("b", "replaced")):
        path.write_text(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {{key: {value}}}\n")
        (wanted,) = read_objects([tmp_path])
        assert apply_object(cluster.kube, wanted, namespace) == f"configmap/m {outcome}"
        found = cluster.kube.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/m")
        assert found["data"] == {"key": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is no YAML"),
        ("just text", "is no Kubernetes object"),
        ("apiVersion: v1\nkind: Teapot\nmetadata: {name: t}\n", "this server has no Teapot of v1"),
    ],
)
def test_mistakes_name_the_file_or_the_kind(cluster: Cluster, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        for wanted in read_objects([path]):
            apply_object(cluster.kube, wanted, "default")
