"""The way to the API server: which proxy is taken."""

from __future__ import annotations

import pytest

from elasticjob_operator.kube import find_proxy

VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128", id="https"),
        pytest.param({"HTTP_PROXY": "http://proxy:3128"}, None, id="for http only"),
        pytest.param({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.1"}, None, id="but not for this address"),
        pytest.param({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.2"}, "http://proxy:3128", id="another"),
    ],
)
def test_the_environment_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str | None
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_proxy("https://10.0.0.1:6443") == expected
