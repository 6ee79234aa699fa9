"""A store behind the pods of one process: slow, refusing, forgetful, and with pods that die between two requests.

What is put is there at once under its name, as every store promises that is in use. Everything else may go wrong.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob.archive import layout
from elasticjob.archive.garbage import is_whole
from elasticjob.archive.layout import ManifestError, Save
from elasticjob.archive.storage import Storage

ROOT = "bucket/job"
FAULTS = ("slow", "refuse", "fail", "halves", "forget")
_YOUNG = 0.5  # seconds: what was made since then may be missing in a listing
_SHARE = 0.3  # of the requests that a fault meets


@functools.lru_cache(1024)
def _parse(name: str, data: bytes) -> Save | None:
    try:
        return layout.parse_save(name, data)
    except ManifestError:
        return None


def find_whole(contents: Mapping[str, bytes]) -> list[Save]:
    """The saves that are whole, newest first. Pure."""
    sizes = {path.rpartition("/")[2]: len(data) for path, data in contents.items() if "/objects/" in path}
    found = [_parse(path.rpartition("/")[2], data) for path, data in contents.items() if "/saves/" in path]
    whole = [save for save in found if save is not None and is_whole(save, sizes)]
    return sorted(whole, key=lambda save: save.order, reverse=True)


class Store:
    """What is in it, for all who ask. Thread-safe."""

    def __init__(self, chance: random.Random) -> None:
        self.contents: dict[str, bytes] = {}
        self.wrong: list[str] = []
        self.until = dict.fromkeys(FAULTS, 0.0)  # of a monotonic clock
        self.last_words: dict[int, int] = {}  # pods that will die: so many requests they still make
        self.lock = threading.RLock()
        self._chance = chance
        self._made: dict[str, float] = {}

    def has(self, fault: str) -> bool:
        return self.until[fault] > time.monotonic()

    def heal(self) -> None:
        with self.lock:
            self.until = dict.fromkeys(FAULTS, 0.0)

    def find_newest(self) -> Save | None:
        with self.lock:
            return next(iter(find_whole(self.contents)), None)

    def lose_newest(self) -> None:
        """The store loses what it has taken last, of one kind."""
        with self.lock:
            folder = self._chance.choice(["/objects/", "/saves/"])
            found = [path for path in self.contents if folder in path]
            if found:
                del self.contents[max(found, key=self._made.__getitem__)]

    def ask(self, pod: int | None) -> bool:
        """A request begins. True if it fails after it was done. Raises OSError."""
        if self.has("slow"):
            time.sleep(0.05)
        with self.lock:
            if pod in self.last_words:
                self.last_words[pod] -= 1
                if self.last_words[pod] < 0:
                    raise ConnectionResetError("the process is no more")
            if self.has("refuse"):
                raise PermissionError("access denied")
            fate = self._chance.random() if self.has("fail") else 1.0
            if fate < _SHARE / 2:
                raise ConnectionError("reset")
            return fate < _SHARE

    def put(self, path: str, data: bytes) -> None:
        with self.lock:
            if self.contents.get(path, data) != data:
                self.wrong.append(f"{path} was written twice, with another content")
            self.contents[path] = data
            self._made[path] = time.monotonic()

    def get(self, path: str, start: int | None, end: int | None) -> bytes:
        with self.lock:
            if path not in self.contents:
                raise FileNotFoundError(path)
            data = self.contents[path][start:end]
            return data[: len(data) // 2] if self.has("halves") and self._chance.random() < _SHARE else data

    def list(self, folder: str) -> dict[str, int]:
        with self.lock:
            young = time.monotonic() - _YOUNG
            return {
                path: len(data)
                for path, data in self.contents.items()
                if path.startswith(f"{folder}/")
                and not (self.has("forget") and self._made[path] > young and self._chance.random() < _SHARE)
            }

    def delete(self, path: str) -> None:
        """Whoever deletes must leave the newest whole save whole."""
        with self.lock:
            before = self.find_newest()
            if self.contents.pop(path, None) is None:
                raise FileNotFoundError(path)
            after = self.find_newest()
            if before is not None and (after is None or after.order < before.order):
                self.wrong.append(f"the last good save {before.order} went with {path}")


@dataclass
class Files:
    """The connection of one pod: what `fsspec` would return."""

    store: Store
    pod: int | None

    def invalidate_cache(self) -> None:
        pass

    def pipe_file(self, path: str, data: bytes) -> None:
        fails = self.store.ask(self.pod)
        self.store.put(path, data)
        if fails:
            raise TimeoutError("no answer")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.store.ask(self.pod):
            raise TimeoutError("no answer")
        return self.store.get(path, start, end)

    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
        if self.store.ask(self.pod):
            raise TimeoutError("no answer")
        found = self.store.list(path)
        if not found:
            raise FileNotFoundError(path)
        return [{"name": name, "size": size, "type": "file"} for name, size in found.items()]

    def rm_file(self, path: str) -> None:
        fails = self.store.ask(self.pod)
        self.store.delete(path)
        if fails:
            raise TimeoutError("no answer")


class Url(str):
    """The address of the archive, as one pod knows it."""

    pod: int

    def rstrip(self, _: str | None = None) -> Url:
        return self


_stores: dict[str, Store] = {}


def give_url(pod: int, store: Store) -> Url:
    url = Url(f"s3://bucket-{id(store)}/job")
    url.pod = pod
    _stores[url] = store
    return url


def forget(store: Store) -> None:
    _stores.pop(f"s3://bucket-{id(store)}/job", None)


def connect(storage: Storage) -> None:
    """In place of `Storage.open`."""
    if storage._files is None:
        storage._files, storage._root = Files(_stores[storage.url], getattr(storage.url, "pod", None)), ROOT
