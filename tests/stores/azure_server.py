"""Azurite, a server that speaks Azure Blob Storage, with one container."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas

CONTAINER = "container"
KEY = "AZURE_STORAGE_CONNECTION_STRING"
RIGHTS = ("list", "read", "write", "delete")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (
    Path(os.environ.get("ELASTICJOB_CLOUDS", ROOT / ".work/clouds")) / "node_modules/azurite/dist/src/blob/main.js"
)
# Of every Azurite, and no secret.
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Server:
    url: str  # of the account

    @property
    def connection(self) -> str:
        """With all rights."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_ACCOUNT_KEY};BlobEndpoint={self.url};"
        )

    def share(self, *rights: str, hours: float = 1.0) -> str:
        """With these rights on the container, for so long."""
        token = generate_container_sas(
            _ACCOUNT,
            CONTAINER,
            _ACCOUNT_KEY,
            permission=ContainerSasPermissions(**dict.fromkeys(rights, True)),
            start=datetime.now(UTC) - timedelta(days=2),
            expiry=datetime.now(UTC) + timedelta(hours=hours),
        )
        return f"BlobEndpoint={self.url};SharedAccessSignature={token}"

    def write_secret(self, folder: Path, connection: str) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / KEY).write_text(connection)
        return folder


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        command = ["node", str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence"]
        command += ["--skipApiVersionCheck"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    found = re.search(r"listens on (http://\S+:\d+)", line)
                    if found:
                        break
                else:
                    raise RuntimeError("Azurite has ended")
                server = Server(f"{found[1]}/{_ACCOUNT}")
                BlobServiceClient.from_connection_string(server.connection).create_container(CONTAINER)
                yield server
            finally:
                process.terminate()
