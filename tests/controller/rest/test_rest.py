"""Requests as values, their paths, and their errors: tables, no server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticjob_operator.rest.errors import decode_error, decode_watch_error
from elasticjob_operator.rest.request import Request, namespace_of, path_of, resource_name


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (("v1", "nodes"), "/api/v1/nodes"),
        (("v1", "pods", "team"), "/api/v1/namespaces/team/pods"),
        (("v1", "pods", "team", "p", "log"), "/api/v1/namespaces/team/pods/p/log"),
        (("apps/v1", "deployments", "", "d"), "/apis/apps/v1/deployments/d"),
        (("v1", "pods", "a/b c", "../x?y=1"), "/api/v1/namespaces/a%2Fb%20c/pods/..%2Fx%3Fy%3D1"),
    ],
)
def test_paths(given: tuple[str, ...], path: str) -> None:
    assert path_of(*given) == path


@pytest.mark.parametrize(
    ("path", "namespace", "resource"),
    [
        ("/api/v1/nodes", "", "nodes"),
        ("/api/v1/namespaces/team/pods/p", "team", "pods"),
        ("/apis/elasticjob.dev/v1alpha1/namespaces/team/elasticjobs/j/status", "team", "elasticjobs/status"),
        ("/apis/elasticjob.dev/v1alpha1/elasticjobs", "", "elasticjobs"),
        ("/api/v1/namespaces/team", "team", "namespaces"),
        ("/apis", "", "/apis"),
    ],
)
def test_what_a_path_is_about(path: str, namespace: str, resource: str) -> None:
    assert (namespace_of(path), resource_name(path)) == (namespace, resource)


def test_a_request_is_called_what_it_is_for() -> None:
    assert Request("GET", "/apis").title == "GET /apis"
    assert Request("GET", "/apis", "list groups").title == "list groups"


@pytest.mark.parametrize(
    ("body", "after", "reason", "message", "seconds"),
    [
        pytest.param(b'{"reason": "Expired", "message": "too old"}', None, "Expired", "too old", None, id="Status"),
        pytest.param(b'{"reason": null, "message": "m"}', "7", "", "m", 7.0, id="a number of seconds to wait"),
        pytest.param(b'{"error": "x"}', None, "", '{"error": "x"}', None, id="JSON of somebody else"),
        pytest.param(b'["no"]', None, "", '["no"]', None, id="a list"),
        pytest.param(b" 502 \xff\n", "Wed, 21 Oct", "", "502 \ufffd", None, id="text, and a date to wait for"),
        pytest.param(b"x" * 1000, None, "", "x" * 512, None, id="a long page"),
        pytest.param(b"", None, "", "", None, id="nothing"),
    ],
)
def test_errors_are_decoded(body: bytes, after: str | None, reason: str, message: str, seconds: float | None) -> None:
    error = decode_error(503, body, after)
    assert (error.status, error.reason, error.message, error.retry_after) == (503, reason, message, seconds)


def refuse(volumes: int) -> bytes:
    """What the API server answers to a pod with so many volumes that are none: each twice, in a text and in a list."""
    causes = [
        {"reason": "FieldValueRequired", "message": "Required value", "field": f"spec.volumes[{number}].name"}
        for number in range(volumes)
    ]
    listed = ", ".join(f"{one['field']}: {one['message']}" for one in causes)
    said = {
        "kind": "Status",
        "message": f'Pod "x" is invalid: [{listed}]',
        "reason": "Invalid",
        "details": {"name": "x", "kind": "Pod", "causes": causes},
        "code": 422,
    }
    return json.dumps(said, separators=(",", ":")).encode()


def test_of_a_refusal_with_very_many_reasons_only_the_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read the list of 19,000 occupies the event loop for 50 ms, each time that the pod is tried."""
    read: list[int] = []
    loads = json.loads

    def spy(data: bytes) -> Any:
        read.append(data.count(b"{"))
        return loads(data)

    monkeypatch.setattr(json, "loads", spy)
    few, many = decode_error(422, refuse(100)), decode_error(422, refuse(19_000))
    assert (few.reason, len(few.causes)) == ("Invalid", 100)
    assert (many.status, many.reason, many.causes) == (422, "Invalid", (many.message,))
    assert many.message.startswith('Pod "x" is invalid: [spec.volumes[0].name: Required value, ')
    assert max(read) < 2048


def test_of_something_else_with_very_many_values_only_the_beginning_is_told() -> None:
    assert decode_error(502, b"[" + b"{}," * 100_000 + b"{}]").message == ("[" + "{}," * 171)[:512]


def test_the_error_that_ends_a_watch() -> None:
    error = decode_watch_error({"code": 410, "reason": "Expired", "message": "too old"})
    assert (error.status, error.reason, error.message) == (410, "Expired", "too old")
    assert decode_watch_error({}).status == 500


def test_a_refusal_does_not_command_a_terminal() -> None:
    """The API server quotes values, but the keys of a field's path it repeats as they are."""
    path = 'spec.containers[0].resources.limits[a\x1b]0;owned\x07]: Invalid value: "a"'
    status = {"message": f"Pod is invalid:\n{path}", "reason": "a\x1b", "details": {"causes": [{"field": path}]}}
    for error in (decode_error(422, json.dumps(status).encode()), decode_watch_error({"code": 422, **status})):
        told = [error.message, error.reason, str(error), *error.causes]
        assert [text for text in told if "\x1b" in text or "\x07" in text] == []
        assert error.message.startswith("Pod is invalid:\nspec.containers[0].resources.limits[a"), "its lines stay"
