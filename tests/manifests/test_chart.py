"""The chart without a cluster: the rendered objects for all kinds of values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import click
import helm_python
import pytest
from prometheus_client import parser

from chart_fixture import CHART, MATRIX, ROOT, Object, container, find, render
from elasticjob_operator import __main__, __version__
from elasticjob_operator.hub.server import Hub
from elasticjob_operator.run.metrics import Metrics

MATRIX_CASES = [pytest.param(values, id=name) for name, values in MATRIX.items()]


@pytest.mark.parametrize("values", MATRIX_CASES)
def test_lint_finds_nothing(values: Object) -> None:
    report = helm_python.lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize("values", MATRIX_CASES)
def test_every_object_is_whole_and_labelled(values: Object) -> None:
    objects = render(values)
    seen = set()
    for item in objects:
        key = (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        assert key not in seen, "rendered twice"
        seen.add(key)
        assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "elasticjob"
        assert item["metadata"]["labels"].items() >= values.get("commonLabels", {}).items()
        assert (item["metadata"].get("annotations") or {}).items() >= values.get("commonAnnotations", {}).items()
    text = json.dumps(objects)
    assert "<no value>" not in text
    assert "%!" not in text, "a printf with a wrong argument"


@pytest.mark.parametrize("values", MATRIX_CASES)
def test_who_may_edit_jobs_may_only_read_a_status(values: Object) -> None:
    """It says which operator decides over a job, among other things that are believed."""
    for role in render(values):
        labels = role["metadata"]["labels"]
        if any(label.startswith("rbac.authorization.k8s.io/aggregate-to-") for label in labels):
            assert all("*" not in rule["resources"] and "*" not in rule["verbs"] for rule in role["rules"])
            rules = [rule for rule in role["rules"] if "elasticjobs/status" in rule["resources"]]
            assert all({*rule["verbs"]} <= {"get", "list", "watch"} for rule in rules)


@pytest.mark.parametrize("values", MATRIX_CASES)
def test_the_operator_understands_its_arguments(values: Object) -> None:
    argv = container(render(values))["args"]
    assert argv[0] == "run"
    __main__.run.make_context("run", list(argv[1:]), resilient_parsing=False).close()


BOUNDED = {
    "heartbeatTimeoutSeconds": "--heartbeat-timeout",
    "stableSeconds": "--stable-seconds",
    "parallelRequests": "--parallel",
    "maxReplicasPerJob": "--max-replicas-per-job",
    "maxTemplateBytes": "--max-template-bytes",
    "maxPoolWeight": "--max-pool-weight",
}


@pytest.mark.parametrize(("value", "flag"), BOUNDED.items())
def test_the_operator_refuses_the_numbers_that_the_chart_refuses(value: str, flag: str) -> None:
    """With `--parallel 0`, for example, it would never send a request, and say nothing."""
    with helm_python.Chart.load(CHART) as chart:
        assert chart.schema is not None
        rules = chart.schema["properties"]["operator"]["properties"][value]
    for number in (rules["minimum"], rules["maximum"]):
        __main__.run.make_context("run", [f"{flag}={number}"]).close()
    for number in (rules["minimum"] - 1, rules["maximum"] + 1):
        with pytest.raises(click.BadParameter, match="is not in the range") as refused:
            __main__.run.make_context("run", [f"{flag}={number}"])
        assert refused.value.param is not None and flag in refused.value.param.opts


def test_pools_and_their_prices_are_arguments() -> None:
    argv = container(render(MATRIX["pools"]))["args"]
    assert [text for text in argv if text.startswith(("--pool", "--device-price"))] == [
        "--pool=a100=nvidia.com/gpu,accelerator=a100",
        "--device-price=a100=0.9,capacity-type=spot",
        "--device-price=a100=3",
        "--pool=cpu=cpu",
        "--pool-objective=completion",
    ]


@pytest.mark.parametrize("values", MATRIX_CASES)
def test_pods_are_restricted(values: Object) -> None:
    pod = find(render(values), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    for one in pod["containers"]:
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one["resources"]["limits"]["memory"]
    assert {kind for v in pod.get("volumes", []) for kind in v} <= {"name", "secret"}


def test_selectors_find_the_pods() -> None:
    objects = render(MATRIX["monitoring"])
    labels = find(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert labels >= find(objects, "Deployment")["spec"]["selector"]["matchLabels"].items()
    for service in (o for o in objects if o["kind"] == "Service"):
        assert labels >= service["spec"].get("selector", {}).items()
    assert labels >= find(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items()
    assert labels >= find(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items()
    monitored = find(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
    matching = [o for o in objects if o["kind"] == "Service" and o["metadata"]["labels"].items() >= monitored]
    assert [o["metadata"]["name"] for o in matching] == ["elasticjob-metrics"]


def test_selectors_do_not_depend_on_what_may_change() -> None:
    """A Deployment's selector cannot be changed: an upgrade with other labels must render the same one."""
    plain, dressed = render(), render({"commonLabels": {"a": "b"}, "podLabels": {"c": "d"}, "replicas": 3})
    assert find(plain, "Deployment")["spec"]["selector"] == find(dressed, "Deployment")["spec"]["selector"]


def test_metrics_that_are_off_are_nowhere() -> None:
    objects = render(MATRIX["no-metrics"])
    assert "--metrics-address=off" in container(objects)["args"]
    assert not [o for o in objects if o["kind"] == "ServiceMonitor" or o["metadata"]["name"].endswith("-metrics")]
    ports = [p["port"] for rule in find(objects, "NetworkPolicy")["spec"]["ingress"] for p in rule["ports"]]
    assert ports == ["hub"]
    with_them = find(render(), "NetworkPolicy")["spec"]["ingress"]
    assert [p["port"] for rule in with_them for p in rule["ports"]] == ["hub", "http"]


def test_cluster_wide_by_default() -> None:
    objects = render()
    resources = {r for rule in find(objects, "ClusterRole", "elasticjob")["rules"] for r in rule["resources"]}
    assert {"elasticjobs", "pods", "nodes", "tokenreviews"} <= resources
    assert not resources & {"secrets", "leases"}
    assert "--namespace" not in " ".join(container(objects)["args"])


def test_namespaced_mode_gives_nothing_cluster_wide_but_the_review_of_tokens() -> None:
    objects = render(MATRIX["namespaced"], namespace="ops")
    rules = find(objects, "ClusterRole", "ops-elasticjob")["rules"]
    assert [(r["resources"], r["verbs"]) for r in rules] == [(["tokenreviews"], ["create"])]
    places = {o["metadata"]["namespace"] for o in objects if o["kind"] == "Role"}
    assert places == {"ops", "team-a", "team-b"}
    own = find(objects, "Role", "elasticjob")
    assert not {r for rule in own["rules"] for r in rule["resources"]} & {"pods", "elasticjobs"}
    assert {"--namespace=team-a", "--namespace=team-b"} <= set(container(objects)["args"])


@pytest.mark.parametrize("values", MATRIX_CASES)
def test_rules_are_never_wide(values: Object) -> None:
    for role in (o for o in render(values) if o["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            if "secrets" in rule["resources"]:
                assert role["kind"] == "Role"
                assert set(rule["verbs"]) <= {"create"} or rule["resourceNames"]


def test_two_releases_share_no_cluster_wide_object() -> None:
    wide = ("ClusterRole", "ClusterRoleBinding")
    one, two = render(namespace="a"), render(namespace="b")
    names = [{o["metadata"]["name"] for o in objects if o["kind"] in wide} for objects in (one, two)]
    assert not names[0] & names[1]


def test_images() -> None:
    one = container(render(MATRIX["mirror"]))
    assert one["image"] == "registry.example.com/mirror/elasticjob/operator@sha256:" + "0" * 64
    assert f"--runtime-image=registry.example.com/mirror/elasticjob/runtime:{__version__}" in one["args"]
    assert "--worker-image=registry.example.com/mirror/elasticjob/worker:9" in one["args"]
    assert container(render())["image"] == f"elasticjob/operator:{__version__}"


def test_certificates_from_elsewhere_are_waited_for_and_addressed_by_their_name() -> None:
    objects = render(MATRIX["cert-manager"])
    certificate = find(objects, "Certificate", "elasticjob-hub-tls")["spec"]
    pod = find(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "hub-tls", "secret": {"secretName": certificate["secretName"]}}]
    url = next(a for a in pod["containers"][0]["args"] if a.startswith("--hub-url="))
    assert url.partition("//")[2].partition(":")[0] in certificate["dnsNames"]
    own = find(objects, "Role", "elasticjob")["rules"]
    assert [r["verbs"] for r in own if "secrets" in r["resources"]] == [["get"]]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        pytest.param({"replica": 3}, "'replica' not allowed", id="misspelt"),
        pytest.param({"tls": {"mode": "none"}}, "/tls/mode", id="no such mode"),
        pytest.param({"watchNamespaces": ["A b"]}, "/watchNamespaces/0", id="no namespace"),
        pytest.param({"leaderElection": {"enabled": False}}, "leaderElection.enabled", id="two without a leader"),
        pytest.param({"serviceAccount": {"create": False}}, "serviceAccount.name", id="no account"),
        pytest.param({"images": {"operator": {"digest": "abc"}}}, "/images/operator/digest", id="no digest"),
        pytest.param({"terminationGracePeriodSeconds": 10**6}, "/terminationGracePeriodSeconds", id="twelve days"),
        pytest.param({"operator": {"stableSeconds": 1e308}}, "/operator/stableSeconds", id="for ever"),
        pytest.param({"tracing": {"endpoint": "otel:4317"}}, "/tracing/endpoint", id="no URL"),
        pytest.param({"tls": {"checkSeconds": 1e308}}, "/tls/checkSeconds", id="never"),
    ],
)
def test_wrong_values_are_refused_by_name(values: Object, says: str) -> None:
    with helm_python.Chart.load(CHART) as chart, pytest.raises(helm_python.HelmError) as error:
        chart.validate_schema(chart.merge_values(values))
        chart.render(values, name="elasticjob", namespace="default")
    assert says in str(error.value)


def test_the_schema_knows_exactly_the_values_there_are() -> None:
    with helm_python.Chart.load(CHART) as chart:
        schema, values = chart.schema, chart.values
    assert schema is not None

    def compare(rules: Object, found: Object, path: str) -> None:
        if "properties" not in rules:
            return
        assert set(rules["properties"]) - {"global"} == set(found), path
        for key, value in found.items():
            if isinstance(value, dict):
                compare(rules["properties"][key], value, f"{path}.{key}")

    compare(schema, values, "values")


def test_every_value_is_used() -> None:
    text = "".join(p.read_text() for p in (CHART / "templates").iterdir())
    with helm_python.Chart.load(CHART) as chart:
        values = chart.values
    missing = [key for key in values if f".Values.{key}" not in text]
    assert missing == []


def test_notes_say_what_to_do_next() -> None:
    with helm_python.Chart.load(CHART) as chart:
        notes = {
            name: chart.render(values, name="elasticjob", namespace="ops")["elasticjob/templates/NOTES.txt"]
            for name, values in MATRIX.items()
        }
    assert "kubectl -n ops rollout status deployment/elasticjob" in notes["defaults"]
    assert "kubectl delete crd elasticjobs.elasticjob.dev" in notes["defaults"]
    assert "kubectl apply --server-side -f crds/" in notes["no-crd"]
    assert "delete every ElasticJob" in notes["crd-goes"]
    assert "in clear" in notes["laptop"]


def test_versions_agree() -> None:
    with helm_python.Chart.load(CHART) as chart:
        assert chart.metadata["version"] == chart.metadata["appVersion"] == __version__
    for file in ("Dockerfile", "worker_image/Dockerfile"):
        assert set(re.findall(r"^ARG VERSION=(.*)$", (ROOT / file).read_text(), re.MULTILINE)) == {__version__}


def _expressions(dashboard: Object) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


async def test_the_dashboard_and_the_alerts_ask_for_metrics_that_exist() -> None:
    async def nobody(token: str, address: str) -> object:
        raise NotImplementedError

    metrics = Metrics(version="1")
    metrics.watch_hub(Hub(authenticate=nobody, wake=lambda key: None))  # type: ignore[arg-type]
    families = list(parser.text_string_to_metric_families(metrics.expose(0.0).decode()))
    known = {family.name for family in families}
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    series = {n + e for n, t in ((f.name, f.type) for f in families) for e in endings.get(t, [""])}
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    asked = {name for text in _expressions(dashboard) for name in re.findall(r"\belasticjob_\w+", text)}
    assert asked - series == set()
    alerts = (CHART / "files" / "alerts.yaml").read_text()
    assert set(re.findall(r"\belasticjob_\w+", alerts)) - series == set()
    ours = {n for n in known if n.startswith("elasticjob_") and not n.endswith("_created")}
    shown = {n for n in ours if any(a == n or a.startswith(f"{n}_") for a in asked)}
    assert ours - shown <= {"elasticjob_build_info", "elasticjob_generation"}, "a metric without a panel"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    rendered = find(render(MATRIX["monitoring"]), "ConfigMap")["data"]["elasticjob.json"]
    assert json.loads(rendered) == dashboard


def test_click_is_what_parses_the_arguments() -> None:
    """The test of the arguments would prove nothing if unknown ones passed."""
    with pytest.raises(click.NoSuchOption):
        __main__.run.make_context("run", ["--no-such-thing"])


@pytest.mark.parametrize(
    ("rbac", "group", "is_given"),
    [
        pytest.param({}, "autoscaling", True, id="autoscalers, unless turned off"),
        pytest.param({"autoscaling": False}, "autoscaling", False, id="no autoscalers"),
        pytest.param({}, "scheduling.k8s.io", False, id="no gangs, unless turned on"),
        pytest.param({"gangScheduling": {"kubernetes": True}}, "scheduling.k8s.io", True, id="Kubernetes' gangs"),
        pytest.param({"gangScheduling": {"kai": True}}, "scheduling.run.ai", True, id="KAI's gangs"),
    ],
)
def test_what_is_off_has_no_permissions(rbac: Object, group: str, is_given: bool) -> None:
    roles = [o for o in render({"rbac": rbac}) if o["kind"] in ("ClusterRole", "Role")]
    assert any(group in rule["apiGroups"] for role in roles for rule in role.get("rules") or ()) is is_given


@pytest.mark.parametrize(
    ("values", "argument"),
    [
        pytest.param({"rbac": {"gangScheduling": {"kubernetes": True}}}, "--integrations=gangs", id="gangs"),
        pytest.param({"images": {"runtime": {"asVolume": True}}}, "--runtime-as-volume", id="runtime"),
        pytest.param({"tracing": {"endpoint": "http://otel:4318"}}, "--otlp-endpoint=http://otel:4318", id="traces"),
    ],
)
def test_what_is_off_is_no_argument(values: Object, argument: str) -> None:
    assert argument in container(render(values))["args"]
    assert argument not in container(render({}))["args"]
