"""What the API server's rejections mean for a job."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from elasticjob_operator.apply import refusals
from elasticjob_operator.plan.values import Kind
from elasticjob_operator.rest.errors import MOST_MESSAGE, ApiError, decode_error

POD = ApiError(422, "Invalid", "spec.containers[0].image: Required value")
QUOTA = ApiError(403, "Forbidden", "exceeded quota")
SCALER = refusals.name_child(Kind.AUTOSCALER, ApiError(422, "Invalid", "spec.metrics[0].type: Required value"))
NO_SCALER = ("AutoscalerRefused", "elasticPolicy.metrics has no effect: spec.metrics[0].type: Required value")
GROUP = refusals.name_child(Kind.POD_GROUP, ApiError(422, "Invalid", "spec.queue: Invalid value"))
BAD_GROUP = ("ObjectRejected", "the API server rejects the job's PodGroup: spec.queue: Invalid value")
BUDGET = refusals.name_child(Kind.DISRUPTION_BUDGET, QUOTA)
NO_BUDGET = (
    "BudgetRefused",
    "exceeded quota; the job trains without its PodDisruptionBudget: a drain may evict more of its pods at once than "
    "elasticPolicy.minReplicas allows",
)
SERVICE = refusals.name_child(Kind.SERVICE, ApiError(422, "Invalid", "spec.ports: Required value"))
NO_SERVICE = (
    "ServiceRefused",
    "spec.ports: Required value; pods start without the job's Service: their names lead nowhere until it is there",
)
BAD_POD = ("InvalidTemplate", "spec.template: the API server rejects the pod: spec.containers[0].image: Required value")


@pytest.mark.parametrize(
    ("refused", "problem", "is_blocking"),
    [
        pytest.param([], None, False, id="nothing"),
        pytest.param([POD], BAD_POD, True, id="a pod"),
        pytest.param([SCALER], NO_SCALER, False, id="an autoscaler: the job does without"),
        pytest.param([GROUP], BAD_GROUP, True, id="a group, which pods need: that is no fault of the template"),
        pytest.param([BUDGET], NO_BUDGET, False, id="a budget: pods that are lost are replaced"),
        pytest.param([SERVICE], NO_SERVICE, False, id="a Service: pods do not wait for it"),
        pytest.param([SERVICE, GROUP], BAD_GROUP, True, id="what pods need comes first"),
        pytest.param([BUDGET, SCALER, QUOTA], ("CreateForbidden", "exceeded quota"), True, id="pods come before all"),
        pytest.param([SCALER, QUOTA], ("CreateForbidden", "exceeded quota"), True, id="pods come first"),
        pytest.param([SCALER, POD], BAD_POD, True, id="an invalid pod comes first"),
    ],
)
def test_the_most_important_rejection_is_told(
    refused: list[ApiError], problem: tuple[str, str] | None, is_blocking: bool
) -> None:
    assert refusals.find_problem(refused) == problem
    assert refusals.is_blocking(refused) is is_blocking


def test_an_autoscaler_that_may_not_be_made_names_the_remedy() -> None:
    named = refusals.name_child(Kind.AUTOSCALER, QUOTA)
    assert refusals.is_refusal(named)
    assert "install the operator's chart with rbac.autoscaling=true" in named.message


LONG = "x" * 250_000
DEVICES = {"requests": {f"{number}/{LONG}": "1" for number in range(16)}}


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        pytest.param(
            {"containers": [{"name": LONG, "resources": {"requests": {f"a/{n}": "1" for n in range(16)}}}]},
            "Limit must be set for non overcommitable resources",
            id="a container without limits",
        ),
        pytest.param(
            {"containers": [{"name": "w", "resources": DEVICES}]},
            "Limit must be set for non overcommitable resources",
            id="resources without limits",
        ),
        pytest.param(
            {"containers": [{"name": "w", "resources": {"limits": {f"{n}/{LONG}": "x" for n in range(16)}}}]},
            "quantities must match",
            id="amounts that are none",
        ),
        pytest.param(
            {"containers": [{"name": LONG}]},
            "spec.containers[0].resources.requests: Invalid value: 2: must be less than or equal to cpu limit",
            id="a limit that was added",
        ),
    ],
)
def test_what_is_told_of_a_pod_is_cut_where_it_is_made(pod: dict[str, Any], message: str) -> None:
    error = ApiError(422, "Invalid", message)
    refusals.name_pod(error, {"spec": pod})
    tracemalloc.start()
    try:
        told = refusals.name_pod(error, {"spec": pod}).message
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told != message
    assert most < 100_000, f"{most} bytes"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        pytest.param(Kind.POD_GROUP, "does not serve x/v1, so no PodGroup was created", id="a group: the job waits"),
        pytest.param(Kind.AUTOSCALER, "serves neither autoscaling/v2 nor", id="an autoscaler: told"),
        pytest.param(Kind.DISRUPTION_BUDGET, "", id="a budget: the job does without"),
    ],
)
def test_a_kind_that_is_not_served(kind: Kind, told: str) -> None:
    named = refusals.name_unserved(kind, "x/v1")
    assert (named is not None) is bool(told)
    if named is not None:
        assert told in named.message
        assert refusals.is_refusal(named)
        assert refusals.name_child(kind, named) is named, "it is told once"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param("the server could not find the requested resource", True, id="not served"),
        pytest.param('namespaces "team" not found', False, id="its namespace goes"),
    ],
)
def test_a_create_that_finds_nothing(message: str, expected: bool) -> None:
    assert refusals.is_unserved(ApiError(404, "NotFound", message)) is expected


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ApiError(404, "NotFound", 'namespaces "team" not found'), id="its namespace goes"),
        pytest.param(ApiError(404, "NotFound", 'horizontalpodautoscalers "a" not found'), id="it is gone again"),
        pytest.param(ApiError(503, "Unavailable", "try again"), id="an API server that is away"),
    ],
)
def test_what_passes_is_no_rejection(error: ApiError) -> None:
    assert refusals.name_child(Kind.AUTOSCALER, error) is error


UNREAD = (
    'Pod in version "v1" cannot be handled as a Pod: quantities must match the regular expression '
    "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
ABOVE = (
    'Pod "a" is invalid: spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu '
    "limit of 1"
)
SPOILED = 'Pod "a" is invalid: spec.nodeSelector: Invalid value: "not a label": a valid label must be alphanumeric'


@pytest.mark.parametrize(
    ("message", "body", "reason", "told"),
    [
        pytest.param(
            UNREAD,
            {"overhead": {"cpu": "1", "a b": "Exists"}, "containers": [{"resources": {"limits": {"memory": "16 GB"}}}]},
            "InvalidTemplate",
            "no quantities: spec.overhead[a b]: 'Exists', spec.containers[0].resources.limits[memory]: '16 GB'",
            id="quantities: the server does not say which",
        ),
        pytest.param(UNREAD, {"containers": []}, "InvalidTemplate", "must match", id="a quantity that is not found"),
        pytest.param(
            SPOILED, {}, "PodAltered", "an admission webhook or a policy", id="a field that a webhook has added"
        ),
        pytest.param(
            SPOILED,
            {"nodeSelector": {"pool": "not a label"}},
            "InvalidTemplate",
            "spec.nodeSelector",
            id="a field of the template",
        ),
        pytest.param(
            SPOILED,
            {"nodeSelector": {"kubernetes.io/os": "linux"}},
            "PodAltered",
            "spec.nodeSelector",
            id="a value that a webhook has added to a field of the template",
        ),
        pytest.param(
            'Pod "a" is invalid: spec.containers[1].volumeMounts[0].name: Not found: "proxy-config"',
            {"containers": [{"name": "a"}]},
            "PodAltered",
            "spec.containers[1].volumeMounts[0].name",
            id="a container that a webhook has added, and its volume is missing",
        ),
        pytest.param(
            'spec.containers[1].env[1].valueFrom: Invalid value: "": must specify one of: `fieldRef`',
            {
                "containers": [
                    {"name": "trainer", "env": [{"name": "A"}, {"name": "K", "valueFrom": {"fileKeyRef": {}}}]}
                ]
            },
            "PodAltered",
            "or has put a container before those of the template: env[1] of trainer is K",
            id="a variable of the template, behind a container that a webhook has put in front",
        ),
        pytest.param(
            'Pod "a" is invalid: spec.containers[1].image: Invalid value: "b c": must not have spaces',
            {"containers": [{"name": "trainer", "image": "a"}]},
            "PodAltered",
            "a policy has added it: Pod",
            id="a value that is in no container of the template",
        ),
        pytest.param(
            'Pod "a" is invalid: spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/data": must be unique',
            {"containers": [{"name": "a", "volumeMounts": [{"name": "d", "mountPath": "/data"}]}]},
            "PodAltered",
            "volumeMounts[1]",
            id="a mount that a webhook has added where the template has one",
        ),
        pytest.param(
            'Pod "a" is invalid: spec.containers[0].volumeMounts[0].name: Not found: "lost"',
            {"containers": [{"name": "a", "volumeMounts": [{"name": "lost", "mountPath": "/x"}]}]},
            "InvalidTemplate",
            "lost",
            id="a mount of the template without its volume",
        ),
        pytest.param(
            'Pod "a" is invalid: spec.containers[0].image: Required value',
            {"containers": [{"name": "a"}]},
            "InvalidTemplate",
            "image",
            id="a container of the template without its image",
        ),
        pytest.param(
            'Pod "a" is invalid: spec.volumes[0].emptyDir.sizeLimit: Invalid value: "500m": must be whole',
            {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "0.5"}}]},
            "InvalidTemplate",
            "sizeLimit",
            id="an amount, which the server writes otherwise",
        ),
        pytest.param(
            'Pod "a" is invalid: [spec.initContainers[1].lifecycle: Forbidden: may not be set, spec.volumes[0].name: '
            "Invalid value, spec.initContainers[1].image: Required value, spec.containers[7].env[1].value: Required]",
            {
                "initContainers": [{"name": "elasticjob-runtime"}, {"name": "mesh"}],
                "containers": [{"name": "b", "env": [{"name": "X"}, {"name": "Y"}]}] * 8,
                "volumes": [{"name": "data"}],
            },
            "InvalidTemplate",
            "; initContainers[1] is mesh, volumes[0] is data, containers[7] is b, containers[7].env[1] is Y",
            id="items of lists: in the template, which has none of the operator's, they have other numbers",
        ),
        pytest.param(
            ABOVE,
            {"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]},
            "PodAltered",
            "container 'a' has no resources.limits[cpu]",
            id="a limit that a LimitRange has added",
        ),
        pytest.param(
            ABOVE,
            {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]},
            "InvalidTemplate",
            "less than or equal",
            id="a limit of the template",
        ),
        pytest.param(
            ABOVE, {"containers": []}, "PodAltered", "container None", id="a container that a webhook has added"
        ),
        pytest.param(
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
            {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}}}]},
            "InvalidTemplate",
            "no limit: resources.limits[nvidia.com/gpu] of container 'a'",
            id="devices without a limit: the server does not say which",
        ),
        pytest.param(
            "spec.dnsConfig: Required value", {}, "InvalidTemplate", "dnsConfig", id="a field that is missing"
        ),
        pytest.param(
            "spec.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot "
            "both be enabled",
            {"shareProcessNamespace": True, "hostPID": True},
            "InvalidTemplate",
            "shareProcessNamespace",
            id="a field that the server keeps elsewhere than pods have it",
        ),
        pytest.param(
            "spec.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot "
            "both be enabled",
            {"hostPID": True},
            "PodAltered",
            "shareProcessNamespace",
            id="a field that the server keeps elsewhere, and a webhook has added",
        ),
        pytest.param(
            "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess "
            "containers",
            {"securityContext": {"windowsOptions": {"hostProcess": True}}},
            "InvalidTemplate",
            "hostNetwork",
            id="a field that is wrong because it is not there",
        ),
        pytest.param(
            'spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//5"',
            {"containers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 5}, {"hostPort": 5}]}]},
            "InvalidTemplate",
            "hostPort",
            id="a port of the node twice, which the server tells with its protocol and address",
        ),
        pytest.param(
            'spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//5"',
            {"containers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 5}]}]},
            "PodAltered",
            "ports[1]",
            id="a port of the node that a webhook has added",
        ),
        pytest.param(
            'spec.containers[0].resources.claims[1]: Duplicate value: "g/r"',
            {"containers": [{"name": "a", "resources": {"claims": [{"name": "g", "request": "r"}] * 2}}]},
            "InvalidTemplate",
            "claims[1]",
            id="a request of a claim twice",
        ),
        pytest.param(
            "spec.containers[0].env[1].name: Required value",
            {"containers": [{"name": "a", "env": [{"name": "PET_RDZV_ID"}, {"name": "", "value": "/data"}]}]},
            "InvalidTemplate",
            '; containers[0] is a, containers[0].env[1] is {"name": "", "value": "/data"}',
            id="an item without a name: the operator's are before it, so its number is another than the template's",
        ),
        pytest.param(
            'spec.containers[0].env[1].name: Invalid value: "A\\nB": a valid environment variable name',
            {"containers": [{"name": "a", "env": [{"name": "PET_RDZV_ID"}, {"name": "A\nB"}]}]},
            "InvalidTemplate",
            "; containers[0] is a, containers[0].env[1] is 'A\\nB'",
            id="an item whose name is of two lines",
        ),
        pytest.param(
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'tags' with binding 'team' denied request: no tag",
            {},
            "CreateForbidden",
            "'tags' with binding 'team' denied request: no tag",
            id="a policy, whose refusals are Invalid unless it says otherwise",
        ),
        pytest.param(
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'tags' denied request: no tag",
            {},
            "CreateForbidden",
            "no tag",
            id="a policy without a binding",
        ),
        pytest.param(
            'admission webhook "tags.example.com" denied the request: spec.nodeSelector: Invalid value: "a": no tag',
            {"nodeSelector": {}},
            "CreateForbidden",
            "tags.example.com",
            id="a webhook that chooses this code",
        ),
    ],
)
def test_a_refused_pod_names_the_field_and_its_author(
    message: str, body: dict[str, object], reason: str, told: str
) -> None:
    problem = refusals.find_problem([refusals.name_pod(ApiError(422, "Invalid", message), {"spec": body})])
    assert problem is not None
    assert problem[0] == reason
    assert told in problem[1]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["spec.", "spec.a ", "a", "spec.containers[0].resources.requests: Invalid value: "])
def test_however_long_the_message_is(text: str) -> None:
    """The API server repeats the texts of a pod, which may have any length."""
    said = f'Pod "p" is invalid: spec.{text * (1_000_000 // len(text))}: it is not there'
    error = decode_error(422, json.dumps({"reason": "Invalid", "message": said}).encode())
    assert len(error.message) <= MOST_MESSAGE
    assert error.message.startswith('Pod "p" is invalid') and error.message.endswith("it is not there")
    refusals.name_pod(error, {"spec": {"containers": []}})
    refusals.find_unwritable(error, ["phase"])


@pytest.mark.timeout(20)
def test_however_long_a_key_is_above_many_numbers() -> None:
    spec: Any = {"k" * 130_000: [0] * 600_000, "x": [{"y": {}}] * 1_000, "overhead": {"cpu": "bogus"}}
    error = ApiError(400, "BadRequest", "quantities must match the regular expression")
    assert refusals.name_pod(error, {"spec": spec}).message.endswith("; no quantities: spec.overhead[cpu]: 'bogus'")


def invalid(*causes: tuple[str, str], padding: str = "") -> ApiError:
    """The API server's answer to a pod that is not valid: it repeats what was sent, at any length."""
    said = [{"reason": "FieldValueInvalid", "field": field, "message": message} for field, message in causes]
    listed = ", ".join(f"{field}: {message}" for field, message in causes)
    text = f'Pod "{padding}" is invalid: [{listed}]{padding}'
    body = {"kind": "Status", "reason": "Invalid", "message": text, "details": {"causes": said}, "code": 422}
    return decode_error(422, json.dumps(body).encode())


SHM = ("spec.containers[0].volumeMounts[2].mountPath", 'Invalid value: "/dev/shm": must be unique')


def test_what_the_api_server_refuses_is_read_from_its_list_and_not_from_its_text() -> None:
    assert refusals.is_shm_taken(invalid(SHM))
    assert refusals.is_shm_taken(invalid(SHM, padding="x" * 9000)), "the text is cut in the middle"
    many = [(f"spec.containers[{number}].image", "Required value: " + "x" * 9000) for number in range(50)]
    assert refusals.is_shm_taken(invalid(*many, SHM))
    quoted = ("metadata.labels", 'Invalid value: "mountPath: Invalid value: "/dev/shm": must be unique"')
    assert not refusals.is_shm_taken(invalid(quoted))


def test_a_field_that_a_webhook_has_added_is_found_behind_a_long_text() -> None:
    error = invalid(("spec.priority", "Invalid value: 5: no"), padding="x" * 9000)
    named = refusals.name_pod(error, {"spec": {"containers": []}})
    assert named.reason == "PodAltered"
    assert named.message.startswith("the API server rejects the pod for spec.priority, which is not in spec.template")


RULE = ("<nil>", "Invalid value: replicas must not be greater than elasticPolicy.maxReplicas")
OLD_RULE = ("<nil>", 'Invalid value: "object": failed rule: self.status.progress.step > 0')
BOUND = ("spec.replicas", "Invalid value: 200000: spec.replicas in body should be less than or equal to 100000")
STEP = ("status.progress.step", "Invalid value: 1: no")
WORLD = ("status.rendezvous.generation", "Invalid value: -1: no")
# Where one field is invalid, API servers with rules say this, too.
UNCHECKED = (
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation",
)


@pytest.mark.parametrize(
    ("causes", "left_out", "told"),
    [
        pytest.param([STEP], ("progress",), "the job waits", id="a field of the status"),
        pytest.param([(".status.replicas", "Invalid value: -3: no")], ("replicas",), "the job waits", id="with a dot"),
        pytest.param([STEP, UNCHECKED], ("progress",), "the job waits", id="and rules that were not checked"),
        pytest.param([STEP, ("status.goodput", "no")], ("goodput", "progress"), "the job waits", id="two fields"),
        pytest.param([WORLD], (), "the job waits", id="a field that decides"),
        pytest.param([STEP, WORLD], (), "the job waits", id="a field, and one that decides"),
        pytest.param([("status.phase", "Unsupported value")], (), "the job waits", id="a field that is not written"),
        pytest.param([("status", "Invalid value: no")], (), "the job waits", id="the status"),
        pytest.param([("", "failed expression: false")], (), "the job waits", id="no field"),
        pytest.param([RULE], (), "until its spec is mended", id="a rule between fields of the spec"),
        pytest.param([OLD_RULE], (), "until its spec is mended", id="a rule that names the status"),
        pytest.param([BOUND], (), "until its spec is mended", id="a bound of a field of the spec"),
        pytest.param([STEP, BOUND], (), "until its spec is mended", id="a field of the status, and one of the spec"),
        pytest.param(
            [("spec.template", 'Invalid value: "status.progress.step": no')],
            (),
            "until its spec is mended",
            id="a text of the spec that looks like a field of the status",
        ),
    ],
)
@pytest.mark.parametrize("padding", ["", "x" * 9000], ids=["short", "behind a long text"])
def test_which_fields_of_a_status_are_left_out(
    causes: list[tuple[str, str]], left_out: tuple[str, ...], told: str, padding: str
) -> None:
    error = invalid(*causes, padding=padding)
    assert refusals.find_unwritable(error, ["progress", "goodput", "replicas", "rendezvous"]) == left_out
    assert told in refusals.explain_unwritten(error)


@pytest.mark.parametrize(
    ("message", "left_out"),
    [
        ('ElasticJob.elasticjob.dev "a" is invalid: status.progress.step: Invalid value: 1: no', ("progress",)),
        ('ElasticJob.elasticjob.dev "a" is invalid: [status.progress: no, spec.replicas: no]', ("progress",)),
        ('ElasticJob.elasticjob.dev "a" is invalid: <nil>: Invalid value: status.progress is no', ()),
        ('elasticjobs "a" is forbidden: ValidatingAdmissionPolicy denied request: status.progress', ()),
    ],
)
def test_where_the_api_server_lists_no_causes_its_message_is_read(message: str, left_out: tuple[str, ...]) -> None:
    assert refusals.find_unwritable(ApiError(422, "Invalid", message), ["progress", "goodput"]) == left_out


def test_of_a_long_list_so_much_is_kept_as_can_be_looked_through() -> None:
    error = invalid(*((f"spec.x[{number}]", "y" * 9000) for number in range(2_000)))
    assert sum(map(len, error.causes)) < 300_000
