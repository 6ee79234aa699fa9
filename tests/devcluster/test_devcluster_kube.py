"""The small client of a devcluster: it closes every connection that it has opened."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster.api.kube import Kube


class Context:
    """Instead of one of TLS."""

    def load_cert_chain(self, *_: object) -> None: ...


class Answer:
    status = 200
    headers: Mapping[str, str] = {}

    def read(self) -> bytes:
        return b"{}"


class Connection:
    """Like the one of `http.client`: a request opens it again after it was closed."""

    made: list[Connection] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, *_: object, **__: object) -> None:
        self.sock: Any = None
        self.timeout = 0.0
        self.made.append(self)

    def request(self, *_: object) -> None:
        self.sock = self.sock or self

    def settimeout(self, _: float) -> None: ...

    def getresponse(self) -> Answer:
        return Answer()

    def close(self) -> None:
        self.sock = None


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kube:
    Connection.made.clear()
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: Context())
    monkeypatch.setattr(http.client, "HTTPSConnection", Connection)
    text = base64.b64encode(b"x").decode()
    user = {"client-certificate-data": text, "client-key-data": text}
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority-data": text}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({"clusters": [{"cluster": cluster}], "users": [{"user": user}]}))
    return Kube(path)


def count_open() -> int:
    return sum(one.sock is not None for one in Connection.made)


def test_what_is_opened_after_the_end_is_closed_by_the_next_one(kube: Kube) -> None:
    """A thread that looks at the cluster in a loop comes after the test has stopped it."""
    kube.request("GET", "/version")
    kube.close()
    assert count_open() == 0
    kube.request("GET", "/version")
    assert count_open() == 1
    kube.close()
    assert count_open() == 0


def test_those_of_other_threads_are_closed(kube: Kube) -> None:
    threads = [threading.Thread(target=kube.request, args=("GET", "/version")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert count_open() == 3
    kube.close()
    assert count_open() == 0
