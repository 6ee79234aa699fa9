"""`manifests/install.yaml` and the chart's CRDs match their sources."""

from __future__ import annotations

import subprocess
import sys

import yaml

from chart_fixture import CHART, ROOT

CRDS = {path.name.removeprefix("elasticjob.dev_"): path for path in (ROOT / "crds").glob("*.yaml")}


def test_rendered_files_are_fresh() -> None:
    argv = [sys.executable, "scripts/render_install.py", "--check"]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_the_chart_brings_the_same_crds() -> None:
    assert len(CRDS) == 2
    for name, path in CRDS.items():
        assert (CHART / "files" / name).read_text() == path.read_text()


def test_the_manifest_is_complete_and_in_order() -> None:
    objects = list(yaml.safe_load_all((ROOT / "manifests" / "install.yaml").read_text()))
    kinds = [o["kind"] for o in objects]
    assert kinds[:4] == ["Namespace", *["CustomResourceDefinition"] * 2, "ServiceAccount"]
    assert kinds[-1] == "Deployment"
    assert objects[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    specs = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "CustomResourceDefinition"}
    crds = [yaml.safe_load(path.read_text()) for path in CRDS.values()]
    assert specs == {crd["metadata"]["name"]: crd["spec"] for crd in crds}
    assert "helm" not in "".join(map(str, objects)).lower()
