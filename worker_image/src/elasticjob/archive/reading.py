"""Finds the saves in an archive, and reads chunks of them. Every byte is checked before anybody gets it."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Final

from elasticjob.archive import layout
from elasticjob.archive.garbage import Doomed, Stock, is_whole, parse_doomed
from elasticjob.archive.layout import CutManifestError, ManifestError, Object, Place, Save, TooLargeError
from elasticjob.archive.storage import NotThereError, Storage, StoreError
from elasticjob.peers.chunks import digest_of

logger = logging.getLogger("elasticjob")

_MOST_TOLD: Final = 1 << 23  # objects that are to be deleted: twice those of the largest save
_TRIES: Final = 3  # of what arrives damaged or in part


class DamagedError(Exception):
    """A chunk is not in the store any more, or not as it was: the save cannot be used."""


def read_save(storage: Storage, name: str) -> Save:
    """A manifest. Raises NotThereError, ManifestError or StoreError."""

    def read() -> Save:
        return layout.parse_save(name, _get(storage, f"{layout.SAVES}/{name}"))

    for _ in range(_TRIES - 1):
        with suppress(CutManifestError):
            return read()
    return read()


def _get(storage: Storage, name: str) -> bytes:
    """Raises TooLargeError, NotThereError or StoreError."""
    data = storage.get(name, 0, layout.MOST_MANIFEST + 1)  # what is there may be of any size
    if len(data) > layout.MOST_MANIFEST:
        raise TooLargeError(f"{name.rpartition('/')[2][:32]} has more than {layout.MOST_MANIFEST} bytes")
    return data


def look(storage: Storage, known: Mapping[str, Save] | None = None, most: float = math.inf) -> Stock:
    """What is in the archive. `known`: manifests that were read before, which never change. Raises StoreError.

    `most`: files and chunks that all manifests together may name.
    """
    saves: dict[str, Save] = {}
    unread = set()
    named = 0
    for name in storage.list(layout.SAVES):
        if layout.order_of(name) is None:
            continue
        if known and name in known:
            saves[name] = known[name]
            continue
        try:
            saves[name] = read_save(storage, name)
        except NotThereError:
            continue
        except ManifestError as error:
            logger.warning("In the archive %s: %s.", storage.url, error)
            unread.add(name)
        else:
            named += saves[name].named
        if named > most:
            raise StoreError(
                f"the manifests in {storage.url} name more than {most} files and chunks, and are not read further: if"
                f" this archive is yours, delete the oldest objects in {layout.SAVES}/ yourself"
            )
    sizes = {name: size for name, size in storage.list(layout.OBJECTS).items() if layout.parse_name(name) is not None}
    return Stock({**(known or {}), **saves}, frozenset(saves), frozenset(unread), sizes)


def find_saves(
    storage: Storage,
    wanted_step: int | None = None,
    most: int | None = None,
    is_wanted: Callable[[Save], bool] = lambda save: True,
) -> list[tuple[str, Save]]:
    """The saves with their names, newest first, at most so many. Raises StoreError.

    `wanted_step`: only those of this step; if there is none, nothing: another step is another state.
    """
    found = ((name, save) for name, save in walk_saves(storage) if wanted_step in {None, save.step} and is_wanted(save))
    return list(itertools.islice(found, most))


def walk_saves(storage: Storage) -> Iterator[tuple[str, Save]]:
    """All saves with their names, newest first, each of them read when it is asked for. Raises StoreError.

    Of a save that was made twice, as some of it was lost at first, the one that is whole comes first.
    """
    sizes: dict[str, int] | None = None
    names = sorted(filter(layout.order_of, storage.list(layout.SAVES)), reverse=True)
    for _, group in itertools.groupby(names, layout.order_of):
        same, torn = list(group), list[str]()
        for name in same:
            found = _read(storage, name)
            if found is not None and len(same) > 1:
                sizes = storage.list(layout.OBJECTS) if sizes is None else sizes
                if not is_whole(found, sizes):
                    torn.append(name)
                    continue
            if found is not None:
                yield name, found
        for name in torn:
            found = _read(storage, name)
            if found is not None:
                yield name, found


def _read(storage: Storage, name: str) -> Save | None:
    """A save; None if it cannot be used, which is told."""
    try:
        return read_save(storage, name)
    except (NotThereError, ManifestError) as error:
        logger.warning("A save in the archive %s cannot be used: %s.", storage.url, error)
        return None


def find_told(storage: Storage, is_wanted: Callable[[str], bool] = lambda name: True) -> tuple[Doomed, list[str]]:
    """What others were about to delete, and the names of the objects that say so. Raises StoreError.

    One that is gone when it is to be read may have been taken over by another one, which is there by then.
    """
    told, found, seen = Doomed(), list[str](), set[str]()
    while names := [name for name in storage.list(layout.GARBAGE) if is_wanted(name) and name not in seen]:
        more, there = read_told(storage, names)
        told, found = told | more, [*found, *there]
        if len(there) == len(names):
            break
        seen.update(names)
    return told, found


def read_told(storage: Storage, listed: Collection[str]) -> tuple[Doomed, list[str]]:
    """What these say that is to be deleted, and the names of those that are still there. Raises StoreError."""
    told, names = Doomed(), []
    for name in sorted(listed):
        try:
            told |= parse_doomed(_get(storage, f"{layout.GARBAGE}/{name}"))
        except NotThereError:
            continue
        except (ValueError, TypeError, RecursionError) as error:
            # Read in part: what it names is unknown, so nothing can be built on.
            raise StoreError(f"{layout.GARBAGE}/{name} in {storage.url} cannot be understood: {error}") from None
        names.append(name)
        if len(told.saves) + len(told.objects) > _MOST_TOLD:
            raise StoreError(f"{layout.GARBAGE}/ in {storage.url} names more than {_MOST_TOLD} objects")
    return told, names


def read_object(storage: Storage, one: Object) -> dict[str, bytes]:
    """All chunks of an object, by digest. Raises DamagedError or StoreError."""
    for _ in range(_TRIES):
        try:
            data = storage.get(f"{layout.OBJECTS}/{one.name}", 0, one.size)  # what is there may be of any size
        except NotThereError:
            break
        found, start = {}, 0
        for digest, size in one.chunks:
            found[digest] = data[start : start + size]
            start += size
        if all(digest_of(chunk) == digest for digest, chunk in found.items()):
            return found
    raise DamagedError(f"{one.name} is missing or damaged in {storage.url}")


def read_chunk(storage: Storage, digest: str, place: Place) -> bytes:
    """One chunk. Raises DamagedError or StoreError."""
    size = dict(place.object.chunks)[digest]
    for _ in range(_TRIES):
        try:
            data = storage.get(f"{layout.OBJECTS}/{place.object.name}", place.start, place.start + size)
        except NotThereError:
            break
        if digest_of(data) == digest:
            return data
    raise DamagedError(f"{place.object.name} is missing or damaged in {storage.url}")
