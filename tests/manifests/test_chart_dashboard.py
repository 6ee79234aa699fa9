"""The dashboard in the chart: off by default; if on, it can only read, and only the proxy reaches it."""

from __future__ import annotations

import json

import helm_python
import pytest

from chart_fixture import CHART, Object, find, render
from elasticjob_operator.dashboard import __main__

NAME = "elasticjob-dashboard"
PROXY = {"namespaceSelector": {"matchLabels": {"name": "auth"}}}
ON: Object = {"dashboard": {"enabled": True, "hosts": ["jobs.example.com", "other"], "from": [PROXY]}}
ONE: Object = {"dashboard": {**ON["dashboard"], "namespace": "team-a", "logs": True}}


def test_it_is_off_by_default() -> None:
    assert NAME not in json.dumps(render())


@pytest.mark.parametrize("values", [ON, ONE], ids=["all", "one namespace"])
def test_its_objects_belong_together(values: Object) -> None:
    report = helm_python.lint(CHART, values, strict=True)
    assert report["errors"] == []
    objects = render(values)
    deployment = find(objects, "Deployment", NAME)
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    assert labels >= deployment["spec"]["selector"]["matchLabels"].items()
    assert labels >= find(objects, "Service", NAME)["spec"]["selector"].items()
    assert labels >= find(objects, "NetworkPolicy", NAME)["spec"]["podSelector"]["matchLabels"].items()
    for kind, path in (("Service", "selector"), ("Deployment", "selector"), ("NetworkPolicy", "podSelector")):
        for other in (o for o in objects if o["kind"] == kind and o["metadata"]["name"] != NAME):
            chosen = other["spec"].get(path) or {}
            assert not labels >= chosen.get("matchLabels", chosen).items() or not chosen, "the operator's own"
    pod = deployment["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == NAME == find(objects, "ServiceAccount", NAME)["metadata"]["name"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    one = pod["containers"][0]
    assert one["securityContext"]["readOnlyRootFilesystem"] is True and one["resources"]["limits"]["memory"]
    context = __main__.main.make_context("dashboard", list(one["args"]))
    assert context.params["hosts"] == ("jobs.example.com", "other")
    assert context.params["namespace"] == values["dashboard"].get("namespace", "")
    (rule,) = find(objects, "NetworkPolicy", NAME)["spec"]["ingress"]
    assert rule["from"] == [PROXY]


@pytest.mark.parametrize(("values", "kind"), [(ON, "ClusterRole"), (ONE, "Role")])
def test_it_can_only_read(values: Object, kind: str) -> None:
    objects = render(values)
    rules = find(objects, kind, NAME)["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}
    resources = {resource for rule in rules for resource in rule["resources"]}
    assert resources - {"pods/log"} == {"elasticjobs", "pods", "events"}
    assert ("pods/log" in resources) == values["dashboard"].get("logs", False)
    bound = find(objects, f"{kind}Binding", NAME)
    assert bound["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": "elasticjob-system"}]
    assert bound["metadata"].get("namespace") == values["dashboard"].get("namespace")


def test_its_rights_can_be_given_by_others() -> None:
    objects = render({**ON, "rbac": {"create": False}})
    assert [o["kind"] for o in objects if o["metadata"]["name"] == NAME and "Role" in o["kind"]] == []


@pytest.mark.parametrize("missing", ["hosts", "from"])
def test_it_does_not_start_without_its_proxy(missing: str) -> None:
    values = {"dashboard": {**ON["dashboard"], missing: []}}
    with pytest.raises(helm_python.HelmError, match=rf"dashboard\.{missing}: name"):
        render(values)
