"""A release of the chart on a real API server: installed, upgraded, rolled back and uninstalled by the real Helm."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from chart_fixture import CHART, MATRIX, ROOT
from devcluster_fixture import remove_namespace
from elasticjob_devcluster import Cluster, KubeError
from operator_fixture import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

Object = dict[str, Any]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/elasticjobs.elasticjob.dev"
OF_TEMPLATES = CRD.replace("elasticjobs.", "elasticjobtemplates.")
KEPT = {
    "customresourcedefinitions/elasticjobs.elasticjob.dev",
    "customresourcedefinitions/elasticjobtemplates.elasticjob.dev",
}
SYSTEMS = (f"chart-release-{number}" for number in itertools.count())  # one for each test: it is long in going
QUIET: Object = {"replicas": 0}  # nodes that run processes have no image of the operator
# What this API server serves: no monitoring, no cert-manager.
INSTALLABLE = ("laptop", "namespaced", "dressed")


def find_ours(cluster: Cluster, release: str) -> set[str]:
    """All objects, of whatever kind, that carry the label of the release."""
    kube, found = cluster.kube, set()
    roots = ["/api/v1"] + [
        f"/apis/{g['preferredVersion']['groupVersion']}" for g in kube.request("GET", "/apis")["groups"]
    ]
    for root in roots:
        for resource in kube.request("GET", root)["resources"]:
            if "list" not in resource["verbs"]:
                continue
            with contextlib.suppress(KubeError):
                query = f"{root}/{resource['name']}?labelSelector=app.kubernetes.io/instance={release}"
                items = kube.request("GET", query).get("items") or ()
                found |= {f"{resource['name']}/{item['metadata']['name']}" for item in items}
    return {name for name in found if not name.startswith(("endpoints", "replicasets"))}


def remove_crds(cluster: Cluster) -> None:
    for path in (CRD, OF_TEMPLATES):
        with contextlib.suppress(KubeError):
            cluster.kube.request("DELETE", path)
    await_no_crds(cluster)


def await_no_crds(cluster: Cluster) -> None:
    wait_for(lambda: all(cluster.kube.get(path) is None for path in (CRD, OF_TEMPLATES)), "no CRD is there")


@pytest.fixture
def system() -> str:
    """The namespace of the releases of a test."""
    return next(SYSTEMS)


@pytest.fixture
def helm(cluster: Cluster, system: str) -> Iterator[helm_python.Config]:
    remove_crds(cluster)  # Helm takes over none that is not its own
    with helm_python.Config(kubeconfig_path=cluster.kubeconfig, namespace=system) as config:
        yield config
        for release in config.list(all_states=True):
            config.uninstall(release["name"])
    remove_crds(cluster)
    remove_namespace(cluster, system)


def install(helm: helm_python.Config, system: str, name: str, values: Object, chart: Path = CHART) -> Object:
    release: Object = helm.install(chart, name, {**values, **QUIET}, namespace=system, create_namespace=True)
    return release


def make_older(place: Path) -> Path:
    """The chart with a CRD as an earlier version may have had it."""
    older = place / CHART.name
    shutil.copytree(CHART, older)
    crd = older / "files" / "elasticjobs.yaml"
    crd.write_text(crd.read_text().replace("    - ej\n", "    - older\n"))
    return older


def test_a_release_comes_changes_goes_back_and_goes(
    cluster: Cluster, helm: helm_python.Config, system: str, tmp_path: Path
) -> None:
    kube = cluster.kube
    deployment = f"/apis/apps/v1/namespaces/{system}/deployments/life-elasticjob"

    assert install(helm, system, "life", {}, make_older(tmp_path))["status"] == "deployed"
    assert kube.request("GET", CRD)["spec"]["names"]["shortNames"] == ["older"]
    first = find_ours(cluster, "life")
    assert {"deployments/life-elasticjob", "services/life-elasticjob-hub", "serviceaccounts/life-elasticjob"} <= first
    assert first >= KEPT

    changed = {**QUIET, "operator": {"logLevel": "debug"}, "metrics": {"dashboard": {"enabled": True}}}
    assert helm.upgrade(CHART, "life", changed)["revision"] == 2
    assert find_ours(cluster, "life") - first == {"configmaps/life-elasticjob-dashboard"}
    assert "--log-level=debug" in json.dumps(kube.get(deployment))
    assert kube.request("GET", CRD)["spec"]["names"]["shortNames"] == ["ej"], "the CRD was upgraded"

    helm.rollback("life", version=1)
    assert find_ours(cluster, "life") == first
    assert kube.request("GET", CRD)["spec"]["names"]["shortNames"] == ["older"]
    assert "--log-level=info" in json.dumps(kube.get(deployment))

    helm.uninstall("life")
    wait_for(lambda: find_ours(cluster, "life") <= KEPT, "all is gone")
    for path in (CRD, OF_TEMPLATES):
        assert kube.get(path) is not None, "with the CRD every job would go"
    secrets = kube.request("GET", f"/api/v1/namespaces/{system}/secrets")["items"]
    assert not [s for s in secrets if s["type"].startswith("helm.sh/")]


def test_a_crd_of_another_release_is_named_in_the_error(helm: helm_python.Config, system: str) -> None:
    install(helm, system, "one", {})
    with pytest.raises(helm_python.HelmError, match=r"elasticjobs\.elasticjob\.dev"):
        install(helm, system, "two", {})
    assert install(helm, system, "three", {"crds": {"install": False}})["status"] == "deployed"


@pytest.mark.parametrize("case", INSTALLABLE)
def test_what_the_chart_renders_is_accepted(cluster: Cluster, helm: helm_python.Config, system: str, case: str) -> None:
    values = MATRIX[case]
    for namespace in values.get("watchNamespaces", ()):
        with contextlib.suppress(KubeError):
            cluster.kube.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    try:
        assert install(helm, system, "case", values)["status"] == "deployed"
        helm.uninstall("case")
        wait_for(lambda: find_ours(cluster, "case") <= KEPT, "all is gone")
    finally:
        for namespace in values.get("watchNamespaces", ()):
            remove_namespace(cluster, namespace)


def test_the_manifest_is_accepted(cluster: Cluster) -> None:
    """As `kubectl apply --server-side` sends it; only a dry run, since it would be a second operator."""
    kube = cluster.kube
    roots = {"v1": "/api/v1"}
    for document in yaml.safe_load_all((ROOT / "manifests/install.yaml").read_text()):
        group, kind, metadata = document["apiVersion"], document["kind"], document["metadata"]
        root = roots.get(group, f"/apis/{group}")
        if kind in ("CustomResourceDefinition", "PodDisruptionBudget") and kube.get("/apis/policy/v1") is None:
            continue  # of today's API: an old server has it otherwise, and the chart serves it
        plural = next(r["name"] for r in kube.request("GET", root)["resources"] if r["kind"] == kind)
        place = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
        if place:
            with contextlib.suppress(KubeError):
                kube.request("POST", "/api/v1/namespaces", {"metadata": {"name": metadata["namespace"]}})
        kube.request("POST", f"{root}{place}/{plural}?dryRun=All", document)
    remove_namespace(cluster, "elasticjob-system")
