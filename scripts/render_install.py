"""Renders `manifests/install.yaml` from the chart, and the chart's copy of the CRD from `crds/`.

    python scripts/render_install.py           # write
    python scripts/render_install.py --check   # fail where a file is stale

The manifest is the chart with its defaults, including the namespace `elasticjob-system`. The real Helm engine renders
it, without a cluster.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import helm_python
import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "manifests" / "chart" / "elasticjob"
COPY = Path("files") / "elasticjobs.yaml"
CRD = ROOT / "crds" / "elasticjob.dev_elasticjobs.yaml"
NAMESPACE = "elasticjob-system"
HEADER = "# Rendered from manifests/chart/elasticjob by `make generate`. Do not edit.\n"

# Namespaces first, then objects that others depend on.
ORDER = (
    "Namespace",
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "NetworkPolicy",
    "Service",
    "PodDisruptionBudget",
    "Deployment",
)


def render_install(chart: Path) -> str:
    """The manifest as text."""
    with helm_python.Chart.load(chart) as loaded:
        files = loaded.render({"crds": {"keep": False}}, name="elasticjob", namespace=NAMESPACE)
    found = [d for name, text in files.items() if name.endswith(".yaml") for d in yaml.safe_load_all(text) if d]
    found.append(_namespace())
    found.sort(key=lambda d: (ORDER.index(d["kind"]), d["metadata"]["name"]))
    return HEADER + "".join("---\n" + yaml.safe_dump(_plain(d), sort_keys=False, width=110) for d in found)


def _plain(document: dict[str, object]) -> dict[str, object]:
    """Nothing in it is Helm's any more."""
    text = yaml.safe_dump(document, sort_keys=False)
    text = text.replace("app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kubectl")
    lines = [line for line in text.splitlines() if "helm.sh/chart:" not in line]
    plain: dict[str, object] = yaml.safe_load("\n".join(lines))
    return plain


def _namespace() -> dict[str, object]:
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def generate() -> dict[Path, str]:
    """Each generated file with the text it should have; nothing is written."""
    crd = CRD.read_text()
    with tempfile.TemporaryDirectory() as place:
        chart = Path(place) / CHART.name
        shutil.copytree(CHART, chart)
        (chart / COPY).write_text(crd)  # the manifest is rendered from it
        return {CHART / COPY: crd, ROOT / "manifests" / "install.yaml": render_install(chart)}


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    wanted = generate()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is stale: run `make generate`", file=sys.stderr)
        else:
            path.write_text(wanted[path])
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
