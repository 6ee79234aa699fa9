"""What the client of each store is told: which credentials, and that it is to answer with what is there now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from elasticjob.archive import folders
from elasticjob.archive.storage import RefusedError, Storage

COMMON = {"use_listings_cache": False, "skip_instance_cache": True}
TIMES = ("config_kwargs", "requests_timeout")


def take_clients(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Of each client that is made from now on, the options that it gets."""
    told: list[dict[str, Any]] = []

    class Client(MemoryFileSystem):  # type: ignore[misc]
        protocol = ("s3", "gs", "az")
        cachable = False

        def __init__(self, **options: Any) -> None:
            told.append({key: value for key, value in options.items() if key not in (*COMMON, *TIMES)})
            super().__init__()

    for protocol in Client.protocol:
        monkeypatch.setitem(_registry, protocol, Client)
    return told


def open_store(url: str, credentials: Path | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    told = take_clients(monkeypatch)
    Storage(url, credentials).open()
    return told[-1]


def test_an_azure_store_without_a_secret_is_used_as_the_identity_of_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client is anonymous by default, and is refused wherever checkpoints are nobody else's business."""
    assert open_store("az://container/training", None, monkeypatch) == {"anon": False}


@pytest.mark.parametrize(
    ("url", "secret", "expected"),
    [
        ("s3://bucket/training", {}, {}),
        (
            "s3://bucket/training",
            {"AWS_ACCESS_KEY_ID": "id\n", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "eu"},
            {"key": "id", "secret": "key", "client_kwargs": {"region_name": "eu"}},
        ),
        ("gs://bucket/training", {}, {}),
        ("gs://bucket/training", {"GOOGLE_APPLICATION_CREDENTIALS": "{}"}, {"token": "FOLDER"}),
        (
            "az://container/training",
            {"AZURE_STORAGE_ACCOUNT_NAME": "mine", "AZURE_STORAGE_ACCOUNT_KEY": "key"},
            {"account_name": "mine", "account_key": "key", "anon": False},
        ),
        ("az://container/training", {"AZURE_STORAGE_CONNECTION_STRING": "all"}, {"connection_string": "all"}),
        (
            "az://container/training",
            {"AZURE_STORAGE_ACCOUNT_NAME": "mine"},
            {"account_name": "mine", "anon": False},
        ),
    ],
)
def test_a_client_gets_the_keys_of_the_secret(
    url: str, secret: dict[str, str], expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, text in secret.items():
        (tmp_path / key).write_text(text)
    found = open_store(url, tmp_path if secret else None, monkeypatch)
    path = str(tmp_path / "GOOGLE_APPLICATION_CREDENTIALS")
    assert found == {key: path if value == "FOLDER" else value for key, value in expected.items()}


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("s3://bucket/training", "AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket/training", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://container/training", "AZURE_STORAGE_CONNECTION_STRING"),
    ],
)
def test_a_secret_that_has_changed_has_a_client_of_its_own(
    url: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the client itself has read the file once."""
    told = take_clients(monkeypatch)
    storage = Storage(url, tmp_path)
    (tmp_path / key).write_text("old")
    storage.list("saves")
    storage.list("saves")
    assert len(told) == 1
    (tmp_path / key).write_text("new")
    storage.list("saves")
    assert len(told) == 2


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("s3://b/x", PermissionError("The difference between the request time and the current time is too large.")),
        ("s3://b/x", PermissionError("Signature expired: 20261130T080000Z is now earlier than 20261130T081500Z")),
        ("s3://b/x", PermissionError("Signature not yet current: 20261130T090000Z is still later than ...")),
        ("gs://b/x", ValueError("invalid_grant: Invalid JWT: Token must be a short-lived token (60 minutes)")),
        ("az://c/x", ValueError("AuthenticationFailed: Request date header too old: 'Mon, 30 Nov 2026 08:00:00 GMT'")),
    ],
)
def test_a_store_that_refuses_the_clock_of_the_node_is_told_as_that(
    url: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with the Secret."""
    take_clients(monkeypatch)

    def refuse(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "ls", refuse)
    with pytest.raises(RefusedError, match="clock of this node") as told:
        Storage(url).list("saves")
    assert "credentialsSecret" not in str(told.value)


@pytest.mark.parametrize(("wanted", "expected"), [(None, "GCSFileSystem"), ("true", "ExtendedGcsFileSystem")])
def test_googles_store_is_asked_over_https_unless_its_own_variable_says_else(
    wanted: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class GCSFileSystem(MemoryFileSystem):  # type: ignore[misc]
        protocol = ("gs",)
        cachable = False

        def __init__(self, **options: Any) -> None:
            super().__init__()

    class ExtendedGcsFileSystem(GCSFileSystem):
        """Asks over gRPC before each request."""

    monkeypatch.setitem(_registry, "gs", ExtendedGcsFileSystem)
    monkeypatch.delenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", raising=False)
    if wanted:
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", wanted)
    storage = Storage("gs://bucket/training")
    storage.open()
    assert type(storage._files).__name__ == expected


@pytest.mark.parametrize("error", [KeyError("refresh_token"), ValueError("Expecting value: line 1 column 1 (char 0)")])
def test_a_key_that_cannot_be_understood_is_told_as_that(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not as a store that does not answer: it was not asked."""

    class Client(MemoryFileSystem):  # type: ignore[misc]
        cachable = False

        def __init__(self, **options: Any) -> None:
            raise error

    monkeypatch.setitem(_registry, "gs", Client)
    (tmp_path / "GOOGLE_APPLICATION_CREDENTIALS").write_text("{}")
    with pytest.raises(RefusedError, match="credentialsSecret cannot be understood"):
        Storage("gs://bucket/training", tmp_path).list("saves")
    with pytest.raises(RefusedError, match=r"without keys, gs://bucket/training cannot be used: .*credentialsSecret"):
        Storage("gs://bucket/training").list("saves")


def test_a_folder_is_written_and_listed_whichever_fsspec_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 2025.3 it moves no file to a folder that is not there, and up to 2024.6 it lists none of which one goes.

    `datasets` keeps such versions in an image, and so does an older one.
    """

    def move(files: LocalFileSystem, source: str, target: str, **_: Any) -> None:
        Path(source).rename(target)

    def list_all(files: LocalFileSystem, path: str, **_: Any) -> list[dict[str, Any]]:
        with os.scandir(path) as entries:
            return [files.info(one) for one in entries]

    monkeypatch.setattr(LocalFileSystem, "mv", move)
    monkeypatch.setattr(LocalFileSystem, "ls", list_all)
    storage, size_of = Storage(f"file://{tmp_path}/job"), folders._size_of
    for name in ("a", "b"):
        storage.put(f"saves/{name}", b"12")
    assert storage.list("saves") == {"a": 2, "b": 2}

    def delete_first(entry: os.DirEntry[str]) -> int:
        (tmp_path / "job" / "saves" / "a").unlink(missing_ok=True)
        return size_of(entry)

    monkeypatch.setattr(folders, "_size_of", delete_first)
    assert storage.list("saves").items() >= {"b": 2}.items()
