"""A small synchronous client for the cluster's API, for the facade and its command line. Standard library only."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

MERGE: Final = "application/merge-patch+json"


class KubeError(Exception):
    """The API server rejected a request; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Kube:
    """A client with the admin identity; thread-safe."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server: str = cluster["server"]
        split = urlsplit(self.server)
        self._host, self._port = split.hostname or "", split.port or 443
        self._tls = ssl.create_default_context(cadata=_decode(cluster["certificate-authority-data"]))
        with tempfile.TemporaryDirectory() as directory:
            certificate, key = Path(directory, "crt"), Path(directory, "key")
            certificate.write_text(_decode(user["client-certificate-data"]))
            key.touch(mode=0o600)
            key.write_text(_decode(user["client-key-data"]))
            self._tls.load_cert_chain(certificate, key)
        self._local = threading.local()
        self._connections: set[http.client.HTTPSConnection] = set()  # those of all threads

    def raw(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = 30,
    ) -> bytes:
        """Send one request and return the body of the response. Bytes are sent unchanged.

        A GET is sent again, for `timeout` seconds, if the server asks for that, as in the first second of a CRD.
        """
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        headers = {"Content-Type": content_type, "Accept": accept}
        deadline = time.monotonic() + timeout
        while True:
            response, content = self._ask(method, path, data, headers, timeout)
            wait = find_wait(method, response.status, response.headers.get("Retry-After"))
            if wait is None or time.monotonic() + wait > deadline:
                break
            time.sleep(wait)
        if response.status >= 300:
            raise KubeError(response.status, _message(content))
        return content

    def _ask(
        self, method: str, path: str, data: bytes | str | None, headers: dict[str, str], timeout: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """The response and its body; reconnects if the server closed a kept connection."""
        try:
            return _exchange(self._connection(timeout, fresh=False), method, path, data, headers)
        except (http.client.HTTPException, ConnectionError, ssl.SSLEOFError):
            return _exchange(self._connection(timeout, fresh=True), method, path, data, headers)

    def request(self, method: str, path: str, body: object = None, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.raw(method, path, body, **options))
        return answer

    def get(self, path: str) -> dict[str, Any] | None:
        """The object, or None if it does not exist."""
        try:
            return self.request("GET", path)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def _connection(self, timeout: float, *, fresh: bool) -> http.client.HTTPSConnection:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None or fresh:
            if connection is not None:
                self._connections.discard(connection)
                connection.close()
            connection = http.client.HTTPSConnection(self._host, self._port, context=self._tls)
            self._local.connection = connection
        self._connections.add(connection)  # again after `close`: a request opens it anew
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection

    def close(self) -> None:
        """Close the connections; the next request opens a new one."""
        while self._connections:
            self._connections.pop().close()

    def __del__(self) -> None:
        if hasattr(self, "_connections"):
            self.close()


def _exchange(
    connection: http.client.HTTPSConnection, method: str, path: str, data: bytes | str | None, headers: dict[str, str]
) -> tuple[http.client.HTTPResponse, bytes]:
    connection.request(method, path, data, headers)
    response = connection.getresponse()
    return response, response.read()


def find_wait(method: str, status: int, retry_after: str | None) -> int | None:
    """The seconds after which a request is sent again; None: never. An eviction that a budget forbids is not. Pure."""
    if method != "GET" or status != 429 or retry_after is None or not retry_after.isdecimal():
        return None
    return int(retry_after)


def _decode(text: str) -> str:
    return base64.b64decode(text).decode()


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:500]
