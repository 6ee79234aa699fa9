"""An archive in a store that speaks Google Cloud Storage, as gcsfs does. `make clouds` runs it."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import (  # type: ignore[import-not-found] # noqa: F401
    test_a_folder_is_pushed_and_pulled,
    test_a_part_that_is_not_there_has_no_bytes,
    test_a_save_comes_back_whole_and_only_what_changed_is_sent,
    test_old_saves_are_pruned,
    test_what_is_not_there_is_no_error_of_the_store,
    test_what_was_written_is_shown_at_once,
)
from gcs_server import BUCKET, KEY, RIGHTS, Server, serve  # type: ignore[import-not-found]

from elasticjob.archive import storage as storage_module
from elasticjob.archive.storage import RefusedError, Storage, StoreError

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


@pytest.fixture(autouse=True)
def endpoint(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gcsfs finds its server: no key of a Secret says so."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)


def make_url() -> str:
    return f"gs://{BUCKET}/training/team-a/digits/{uuid.uuid4()}"


@pytest.fixture
def place(server: Server, tmp_path: Path) -> tuple[str, Path]:
    return make_url(), server.write_secret(tmp_path / "secret", f"account-{uuid.uuid4()}")


def test_a_changed_key_counts_at_once(server: Server, tmp_path: Path) -> None:
    secret = server.write_secret(tmp_path, "rotated")
    storage = Storage(make_url(), secret)
    storage.put("saves/x", b"1")
    server.write_secret(secret, "rotated")
    assert storage.get("saves/x") == b"1"
    server.change_key("rotated")  # nobody has told this pod
    with pytest.raises(RefusedError, match="credentialsSecret"):
        storage.put("saves/x", b"2")
    with pytest.raises(RefusedError, match="credentialsSecret"):
        Storage(storage.url, secret).put("saves/x", b"2")


def test_a_store_that_falls_silent_is_told(place: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is there, and nobody says that it is not any more. gcsfs tries six times."""
    monkeypatch.setattr(storage_module, "_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StoreError, match="does not answer"):
            Storage(*place).list("saves")


@pytest.mark.parametrize("text", ["", "{}", "no JSON"])
def test_a_key_that_is_none_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / KEY).write_text(text)
    with pytest.raises(RefusedError, match="credentialsSecret"):
        Storage(make_url(), tmp_path).list("saves")


@pytest.mark.parametrize("right", RIGHTS)
def test_each_documented_right_is_needed(server: Server, tmp_path: Path, right: str) -> None:
    secret = server.write_secret(tmp_path, right, [one for one in RIGHTS if one != right])
    storage = Storage(make_url(), secret)
    with pytest.raises(RefusedError, match="credentialsSecret"):
        storage.put("saves/x", b"1")
        storage.list("saves")
        storage.get("saves/x")
        storage.delete("saves/x")
