"""`manifests/install.yaml` and the chart's CRD match their sources."""

from __future__ import annotations

import subprocess
import sys

import yaml

from chart_fixture import CHART, ROOT

CRD = ROOT / "crds" / "elasticjob.dev_elasticjobs.yaml"


def test_rendered_files_are_fresh() -> None:
    argv = [sys.executable, "scripts/render_install.py", "--check"]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_the_chart_brings_the_same_crd() -> None:
    assert (CHART / "files" / "elasticjobs.yaml").read_text() == CRD.read_text()


def test_the_manifest_is_complete_and_in_order() -> None:
    objects = list(yaml.safe_load_all((ROOT / "manifests" / "install.yaml").read_text()))
    kinds = [o["kind"] for o in objects]
    assert kinds[:2] == ["Namespace", "CustomResourceDefinition"]
    assert kinds[-1] == "Deployment"
    assert objects[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    spec = next(o for o in objects if o["kind"] == "CustomResourceDefinition")["spec"]
    assert spec == yaml.safe_load(CRD.read_text())["spec"]
    assert "helm" not in "".join(map(str, objects)).lower()
