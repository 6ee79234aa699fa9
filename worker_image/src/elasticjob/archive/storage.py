"""The archive of one job in a store, through fsspec. Thin: names in, bytes out, and three kinds of errors."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from elasticjob.archive.folders import Folder, LinkError

EXTRAS: Final = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "az": ("adlfs", "azure")}  # package, our extra
_SECONDS: Final = 60  # without a byte
_REFUSALS: Final = (
    *("credential", "forbidden", "access denied", "accessdenied", "unauthorized", "not authorized", "signature"),
    *("invalidaccesskeyid", "access key", "expiredtoken", "authentication", "authorization", "anonymous caller"),
    *("provided token", "invalidtoken", "tokenrefresh"),
)
_CLOCKS: Final = (  # what stores say of a request that is signed at a strange time
    *("request time", "timetooskewed", "signature expired", "not yet current", "date header too old"),
    "short-lived token",
)
_BEYOND: Final = (  # what stores say where an object ends before a part of it begins
    *("range is not satisfiable", "range not satisfiable", "invalidrange", "range specified is invalid"),
)

# The names of the keys of a Secret, as the tools of the clouds call them, and the options of fsspec.
_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_ENDPOINT_URL": "endpoint_url",
        "AWS_REGION": "region_name",
    },
    "gs": {"GOOGLE_APPLICATION_CREDENTIALS": "token"},
    "az": {
        "AZURE_STORAGE_CONNECTION_STRING": "connection_string",
        "AZURE_STORAGE_ACCOUNT_NAME": "account_name",
        "AZURE_STORAGE_ACCOUNT_KEY": "account_key",
        "AZURE_STORAGE_SAS_TOKEN": "sas_token",
    },
}


class StoreError(Exception):
    """The store did not do what it was asked. `reason` is one for the condition `CheckpointArchived`."""

    reason = "StoreUnreachable"


class RefusedError(StoreError):
    """The store refuses: the credentials are missing, wrong or have expired, or give too few rights."""

    reason = "StoreRefused"


class ExtraMissingError(StoreError):
    """The package that speaks to this store is not installed."""

    reason = "ExtraMissing"


class NotThereError(Exception):
    """There is nothing of this name."""


@dataclass(frozen=True)
class Access:
    """What a store is used for, in the words of an error: whose request it is, and what to do where it is refused."""

    prefix: str
    keys: str  # where they are
    remedy: str
    follows_links: bool = True  # of a folder; not where who asks may do more there than who has written it


_FIELD: Final = "checkpoints.archive.credentialsSecret"
OWN: Final = Access(
    "",
    f"the Secret of {_FIELD}",
    f"Check {_FIELD}, or the rights of the pod's identity: it lists, reads, writes and deletes below this path",
)
ORIGIN: Final = Access(
    "checkpoints.from: ",
    f"only this job's own {_FIELD} counts, not that of the job that wrote the folder: this Secret",
    f"Whatever the job that wrote it may use, only this job's own {_FIELD}, or its pods' identity, counts: let it list"
    " and read below this path",
)
COMMAND: Final = Access(
    "",
    "the folder of --credentials",
    "Check --credentials, or the rights of your own identity in this store: without the option, it counts",
    follows_links=False,
)


def protocol_of(url: str) -> str:
    return url.partition("://")[0]


def read_keys(protocol: str, folder: Path | None, access: Access = OWN) -> dict[str, str]:
    """What is in a mounted Secret: each file is a key. Empty without one: the pod's own identity counts.

    Raises RefusedError for a Secret without a key that belongs to this store.
    """
    if folder is None:
        return {}
    known, found = _KEYS.get(protocol, {}), {}
    for key in known:
        with contextlib.suppress(OSError):
            found[key] = (folder / key).read_text().strip()
    if not found:
        wanted = ", ".join(known) or "none: a file:// store needs no Secret"
        raise RefusedError(f"{access.prefix}{access.keys} is missing, or has no key of this store ({wanted})")
    return found


def find_options(protocol: str, folder: Path | None, keys: Mapping[str, str]) -> dict[str, Any]:
    """The options of fsspec for these keys, which were read in this folder."""
    found: dict[str, Any] = {option: keys[key] for key, option in _KEYS.get(protocol, {}).items() if key in keys}
    if protocol == "gs" and folder is not None:
        found = {_KEYS["gs"][key]: str(folder / key) for key in keys}  # it reads the file itself
    region = found.pop("region_name", None)
    return found if region is None else {**found, "client_kwargs": {"region_name": region}}


class Storage:
    """The folder of one job. What is read may be read by several threads."""

    def __init__(self, url: str, credentials: Path | None = None, access: Access = OWN) -> None:
        """`access`: what is said of the credentials where the store refuses."""
        self.url = url.rstrip("/")
        self._access = access
        self._protocol = protocol_of(url)
        self._credentials = credentials
        self._used: dict[str, str] | None = None  # the keys of the connection
        self._files: Any = None
        self._root = ""
        self._lock = threading.Lock()

    def open(self) -> None:
        """Connect, with the credentials as they are now: they may have been changed. Raises StoreError."""
        keys = read_keys(self._protocol, self._credentials, self._access)
        with self._lock:
            if self._files is None or keys != self._used:
                self._connect(keys)

    def _connect(self, keys: dict[str, str]) -> None:
        options = find_options(self._protocol, self._credentials, keys)
        try:
            self._files, root = _open_url(self.url, {**options, **_settings(self._protocol, options)})
        except ImportError as error:
            package, extra = EXTRAS.get(self._protocol, ("fsspec", "archive"))
            raise ExtraMissingError(
                f"checkpoints.archive needs {package} in the image of the trainer: pip install 'elasticjob[{extra}]'"
                f" ({error})"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # nobody has been asked for anything yet
            said = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            if self._credentials is None:
                what = f"without keys, {self.url} cannot be used: {said}. {self._access.remedy}"
            else:
                what = f"{self._access.keys} cannot be understood: {said}"
            raise RefusedError(f"{self._access.prefix}{what}") from None
        except Exception as error:
            raise self._translate(error) from error
        self._used = keys
        self._root = str(root).rstrip("/")
        if self._protocol == "file":
            self._files = Folder(self._root, follows_links=self._access.follows_links)

    def put(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all. Raises StoreError."""
        files, path = self._need(), f"{self._root}/{name}"
        try:
            files.pipe_file(path, data)
        except Exception as error:
            raise self._translate(error) from error

    def get(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of an object, or those of a part that are there. Raises NotThereError or StoreError."""
        files = self._need()
        try:
            return bytes(files.cat_file(f"{self._root}/{name}", start=start, end=end))
        except FileNotFoundError:
            raise NotThereError(name) from None
        except Exception as error:
            if start is not None and any(words in str(error).lower() for words in _BEYOND):
                return b""
            raise self._translate(error) from error

    def list(self, folder: str) -> dict[str, int]:
        """The names in this folder, with their sizes. Raises StoreError."""
        files = self._need()
        try:
            files.invalidate_cache()
            found = files.ls(f"{self._root}/{folder}", detail=True)
        except FileNotFoundError:
            return {}
        except Exception as error:
            raise self._translate(error) from error
        return {
            str(one["name"]).rstrip("/").rpartition("/")[2]: int(one["size"] or 0)
            for one in found
            if one["type"] == "file"
        }

    def delete(self, name: str) -> None:
        """Delete an object; one that is gone already is fine. Raises StoreError."""
        files = self._need()
        try:
            files.rm_file(f"{self._root}/{name}")
        except FileNotFoundError:
            pass
        except Exception as error:
            raise self._translate(error) from error

    def _need(self) -> Any:
        self.open()
        return self._files

    def _translate(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        text, prefix = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300], self._access.prefix
        if isinstance(error, LinkError):
            return StoreError(f"{prefix}{error}")
        if any(word in text.lower() for word in _CLOCKS):
            remedy = "The clock of this node is wrong, or the key has a time of its own: compare it with the store's"
            return RefusedError(f"{prefix}the store refuses {self.url}: {text}. {remedy}")
        if isinstance(error, PermissionError) or any(word in text.lower() for word in _REFUSALS):
            return RefusedError(f"{prefix}the store refuses {self.url}: {text}. {self._access.remedy}")
        return StoreError(f"{prefix}the store does not answer for {self.url}: {text}")


def _open_url(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    from fsspec import core

    made, root = core.url_to_fs(url, **options)
    plain = _find_plain(type(made))
    return (made if plain is None else plain(**options)), root


def _find_plain(client: type) -> type | None:
    """Of gcsfs, the client that speaks JSON over HTTPS, unless somebody wants the other one by its own variable.

    That one asks over gRPC, before each request, of what kind the bucket is: where nobody answers, it waits for a
    minute each time, which is more than a grace period. What an archive needs is the same in both.
    """
    if client.__name__ != "ExtendedGcsFileSystem" or os.environ.get("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"):
        return None
    return next(one for one in client.__mro__ if one.__name__ == "GCSFileSystem")


def _settings(protocol: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a store answer with what is there now, and within a time."""
    if protocol == "file":
        return {}  # of `fsspec`'s folder, only the place is used: see `folders`
    common: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if protocol == "s3":
        return {**common, "config_kwargs": {"connect_timeout": 10, "read_timeout": _SECONDS}}
    if protocol == "gs":
        with contextlib.suppress(ImportError):  # then gcsfs is not there either
            from aiohttp import ClientTimeout

            # Its default is none: it would wait for ever for what a connection that is lost does not bring.
            common["requests_timeout"] = ClientTimeout(total=None, sock_connect=10, sock_read=_SECONDS)
    if protocol == "az" and "connection_string" not in options:
        return {**common, "anon": False}  # its default is to be nobody, and not the identity of the pod
    return common
