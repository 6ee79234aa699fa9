"""A server that speaks Google Cloud Storage (gcp-storage-emulator), and asks everybody for a token and a right.

The emulator asks nobody. So before it, here is what gives a token to whoever signs with a key of a service account that
counts, as Google's endpoint does, and what knows the rights of each account. Errors are worded as Google words them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

BUCKET = "my-bucket"
KEY = "GOOGLE_APPLICATION_CREDENTIALS"
# What `roles/storage.objectUser` has of these. Who may create may not overwrite without the right to delete.
RIGHTS = ("storage.objects.list", "storage.objects.get", "storage.objects.create", "storage.objects.delete")


@dataclass
class Accounts:
    """Who may do what, by the identifier of a key and by token."""

    keys: dict[str, str] = field(default_factory=dict)  # identifier of a key: account
    tokens: dict[str, str] = field(default_factory=dict)  # token: identifier of the key that it was given for
    rights: dict[str, frozenset[str]] = field(default_factory=dict)  # of an account


class _Handler(RequestHandler):  # type: ignore[misc]
    """One request, after a look at who makes it."""

    def __init__(self, accounts: Accounts, lock: threading.Lock, storage: Storage, *args: Any) -> None:
        self._accounts, self._lock = accounts, lock
        super().__init__(storage, *args)

    def do_GET(self) -> None:  # noqa: N802 - its name
        path = urlparse(self.path).path
        self._serve("storage.objects.list" if path.endswith("/o") else "storage.objects.get", super().do_GET)

    def do_POST(self) -> None:  # noqa: N802 - its name
        if self.path == "/token":
            self._give_token()
        else:
            self._serve("storage.objects.create", super().do_POST)

    def do_PUT(self) -> None:  # noqa: N802 - its name
        self._serve("storage.objects.create", super().do_PUT)

    def do_DELETE(self) -> None:  # noqa: N802 - its name
        self._serve("storage.objects.delete", super().do_DELETE)

    def _serve(self, right: str, serve: Callable[[], None]) -> None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        key = self._accounts.tokens.get(token) if scheme == "Bearer" else None
        if key not in self._accounts.keys:
            self._refuse(401, {"error": {"code": 401, "message": "Invalid Credentials", "status": "UNAUTHENTICATED"}})
            return
        account = self._accounts.keys[key]
        if right not in self._accounts.rights[account]:
            text = (
                f"{account} does not have {right} access to the Google Cloud Storage object. Permission '{right}'"
                " denied on resource (or it may not exist)."
            )
            self._refuse(403, {"error": {"code": 403, "message": text}})
            return
        with self._lock:  # the emulator expects one request at a time
            serve()

    def _give_token(self) -> None:
        given = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        head = given["assertion"][0].partition(".")[0]
        key = json.loads(base64.urlsafe_b64decode(head + "=="))["kid"]
        if key not in self._accounts.keys:
            self._refuse(400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
            return
        token = uuid.uuid4().hex
        self._accounts.tokens[token] = key
        self._answer(200, {"access_token": token, "expires_in": 3600, "token_type": "Bearer"})

    def _refuse(self, status: int, said: Any) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != "/token":
            self.rfile.read(length)
        self._answer(status, said)

    def _answer(self, status: int, said: Any) -> None:
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@dataclass(frozen=True)
class Server:
    """A server with one bucket."""

    url: str
    accounts: Accounts

    def change_key(self, account: str, rights: Collection[str] = RIGHTS) -> str:
        """A new key of this service account, as JSON; those before, and their tokens, are refused from now on."""
        known = self.accounts
        for key in [key for key, one in known.keys.items() if one == account]:
            del known.keys[key]
        identifier = uuid.uuid4().hex
        known.keys[identifier], known.rights[account] = account, frozenset(rights)
        return json.dumps(
            {
                "type": "service_account",
                "project_id": "project",
                "private_key_id": identifier,
                "private_key": _PRIVATE,
                "client_email": f"{account}@project.iam.gserviceaccount.com",
                "token_uri": f"{self.url}/token",
            }
        )

    def write_secret(self, folder: Path, account: str, rights: Collection[str] = RIGHTS) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / KEY).write_text(self.change_key(account, rights))
        return folder


_PRIVATE = (
    rsa.generate_private_key(public_exponent=65537, key_size=2048)
    .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    .decode()
)


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    accounts, lock, storage = Accounts(), threading.Lock(), Storage(use_memory_fs=True)
    create_bucket(BUCKET, storage)
    with ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: _Handler(accounts, lock, storage, *args)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Server(f"http://127.0.0.1:{server.server_address[1]}", accounts)
        finally:
            server.shutdown()
