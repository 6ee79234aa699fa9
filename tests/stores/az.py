"""An archive in a store that speaks Azure Blob Storage, as adlfs does. `make clouds` runs it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure_server import CONTAINER, RIGHTS, Server, serve  # type: ignore[import-not-found]
from cases import (  # type: ignore[import-not-found] # noqa: F401
    test_a_folder_is_pushed_and_pulled,
    test_a_part_that_is_not_there_has_no_bytes,
    test_a_save_comes_back_whole_and_only_what_changed_is_sent,
    test_old_saves_are_pruned,
    test_what_is_not_there_is_no_error_of_the_store,
    test_what_was_written_is_shown_at_once,
)

from elasticjob.archive.storage import RefusedError, Storage, StoreError

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


def make_url() -> str:
    return f"az://{CONTAINER}/training/team-a/digits/{uuid.uuid4()}"


@pytest.fixture(params=["key", "rights"])
def place(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> tuple[str, Path]:
    """With the key of the account, and with the rights that the documentation names."""
    connection = server.connection if request.param == "key" else server.share(*RIGHTS)
    return make_url(), server.write_secret(tmp_path / "secret", connection)


def test_rights_that_have_expired_are_told_and_changed_ones_count_at_once(server: Server, tmp_path: Path) -> None:
    secret = server.write_secret(tmp_path, server.share(*RIGHTS))
    storage = Storage(make_url(), secret)
    storage.put("saves/x", b"1")
    server.write_secret(secret, server.share(*RIGHTS, hours=-1))
    with pytest.raises(RefusedError, match="credentialsSecret"):
        storage.put("saves/x", b"2")
    with pytest.raises(RefusedError, match="credentialsSecret"):
        storage.list("saves")
    server.write_secret(secret, server.connection)
    assert storage.get("saves/x") == b"1"


@pytest.mark.parametrize("text", ["", "nonsense", "AccountName=x;AccountKey=y"])
def test_a_connection_string_that_is_none_is_told(text: str, server: Server, tmp_path: Path) -> None:
    secret = server.write_secret(tmp_path, text)
    with pytest.raises(StoreError):
        Storage(make_url(), secret).list("saves")


@pytest.mark.parametrize("right", RIGHTS)
def test_each_documented_right_is_needed(server: Server, tmp_path: Path, right: str) -> None:
    secret = server.write_secret(tmp_path, server.share(*(one for one in RIGHTS if one != right)))
    storage = Storage(make_url(), secret)
    with pytest.raises(RefusedError, match="credentialsSecret"):
        storage.put("saves/x", b"1")
        storage.list("saves")
        storage.get("saves/x")
        storage.delete("saves/x")
