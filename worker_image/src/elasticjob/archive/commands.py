"""`elasticjob archive`: takes a save out of an archive, puts a folder into one, or prunes one, without a pod."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from elasticjob.archive import garbage, layout, reading
from elasticjob.archive.ahead import Ahead
from elasticjob.archive.garbage import Doomed, Stock
from elasticjob.archive.layout import Object, Save
from elasticjob.archive.reading import DamagedError
from elasticjob.archive.storage import COMMAND, NotThereError, Storage, StoreError
from elasticjob.archive.writing import GoneError, Leader, OverError, Sender
from elasticjob.peers import folder, tree
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.folder import UnfitError
from elasticjob.peers.records import File, Record

_MOST_NAMED: Final = 1 << 25  # files and chunks, by all manifests of an archive: five of the largest saves
_MOST_TOLD: Final = 1000  # characters of a line
_DELETIONS: Final = 16  # between two looks whether somebody has taken over
# What Python calls printable, and nobody sees: fillers, and selectors of variants but those of emoji.
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0d\uffa0\U000e0100-\U000e01ef]"
)
_PACKS: Final = 16  # objects of small files that are kept in memory, of 8 MiB at most


class CommandError(Exception):
    """What the user asked for cannot be done; the text says why, and what to do."""


def pull(storage: Storage, target: Path, step: int | None = None) -> Save:
    """Write the newest save, or that of a step, to a folder that is not there yet; whole or not at all.

    Every byte is checked. Raises CommandError, DamagedError, OSError and StoreError.
    """
    if target.exists() or target.is_symlink():
        raise CommandError(f"{target} exists: name a folder that does not, nothing is written over")
    found = reading.find_saves(storage, step, most=1)
    if not found:
        what = "no whole save" if step is None else f"no save of step {step}"
        raise CommandError(f"{storage.url} holds {what}: `elasticjob archive list` shows what is there")
    ((_, save),) = found
    places = layout.locate(save.objects)

    @functools.lru_cache(_PACKS)
    def read_pack(one: Object) -> Mapping[str, bytes]:
        return reading.read_object(storage, one)

    files = sorted(save.record.files.items())
    chunks = (digest for _, file in files for digest in file.chunks)
    ahead = Ahead(
        lambda digest: reading.read_chunk(storage, digest, places[digest]),
        [digest for digest in chunks if len(places[digest].object.chunks) == 1],
    )

    def fetch(digest: str) -> bytes:
        one = places[digest].object
        return ahead.begin(digest).take(lambda: None) if len(one.chunks) == 1 else read_pack(one)[digest]

    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        _check_room(part, sum(folder.find_room(file) for _, file in files))
        for path, file in files:
            folder.restore(part, path, file, fetch)
        part.rename(target)
    except UnfitError as error:
        _clear(part)
        raise CommandError(f"{target} cannot have {error}: name a folder on another file system") from None
    except BaseException:
        _clear(part)
        raise
    return save


def _check_room(folder: Path, size: int) -> None:
    """An archive of somebody else may name one object as often as it likes, and would fill the disk with it."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise CommandError(f"{folder.parent} has {free} bytes left, and the save {size}: name a folder with more room")


def _clear(part: Path) -> None:
    with contextlib.suppress(OSError):
        tree.remove(os.fspath(part))


def push(storage: Storage, source: Path, step: int | None = None) -> Save:
    """Send a folder as the only save of an archive, for `checkpoints.from` of a job that is to begin with it.

    Never into the archive of a job, which would take it for the save of a world. Raises CommandError, OSError and
    StoreError.
    """
    if not source.is_dir():
        raise CommandError(f"{source} is no folder: name the one with the files of the checkpoint")
    if storage.list(layout.LEADS) or storage.list(layout.SAVES):
        raise CommandError(f"{storage.url} is in use: name a folder in which there is nothing yet")
    files: dict[str, File] = {}
    places: dict[str, tuple[Path, int]] = {}
    for path in sorted(folder.scan(source)):
        file = folder.read_file(source / path, source)
        if file is None:
            raise CommandError(
                f"{source / path} cannot be archived: it changes, or is neither a file nor a link inside"
            )
        files[path] = file
        places |= {digest: (source / path, index) for index, digest in enumerate(file.chunks)}
    if not files:
        raise CommandError(f"{source} has no files: name the folder with the files of the checkpoint")

    def read(digest: str) -> bytes | None:
        data = folder.read_chunk(*places[digest])
        return data if digest_of(data) == digest else None  # it has changed since

    sender = Sender(storage, read, float("inf"), has_hurry=True)

    def send(shares: Mapping[int, Sequence[Object]]) -> None:
        sender.send(shares.get(0, ()), lambda: False)

    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    leader = Leader(storage, "", 0, 1, lambda: now)
    made = leader.save(Record(0, 1, files), step, lambda missing: dict.fromkeys(missing, (0,)), send)
    mine = layout.name_save(made.order, made.dump())
    if storage.list(layout.SAVES).keys() - {mine}:  # of two, one at least sees the other: which one would count?
        storage.delete(f"{layout.SAVES}/{mine}")
        raise CommandError(f"somebody else pushed to {storage.url} at the same time: name another folder")
    return made


@dataclass(frozen=True)
class Pruned:
    """What goes from an archive, or would."""

    saves: Sequence[Save]  # newest first
    kept: Sequence[Save]
    objects: int
    bytes: int


def prune(storage: Storage, keep: int, *, dry_run: bool) -> Pruned:
    """Delete all but the newest whole saves, `keep` of them, and what no save needs; never the last one that is whole.

    As agents do, it writes down what it is about to delete, so that an agent that begins now does not build on it; and
    looks again at what the saves name, so that one that has come meanwhile keeps its objects. Raises CommandError and
    StoreError.
    """
    if keep < 1:
        raise CommandError(f"--keep {keep}: must be at least 1: the last good save is never deleted")
    told, notes = reading.find_told(storage)
    stock, doomed = _plan(storage, keep, told, {})
    theirs = [name for name in notes if layout.PRUNES in name]  # of calls that have not come to their end
    if (doomed or theirs) and not dry_run:
        doomed = _delete(storage, keep, doomed, told, theirs, stock.saves)

    def sort(saves: Iterable[Save]) -> list[Save]:
        return sorted(saves, key=lambda save: save.order, reverse=True)

    gone, left = doomed.saves, stock.listed - doomed.saves - told.saves
    return Pruned(
        sort(stock.saves[name] for name in gone if name in stock.saves),
        sort(stock.saves[name] for name in left),
        len(doomed.objects),
        sum(stock.sizes[name] for name in doomed.objects),
    )


def _plan(storage: Storage, keep: int, told: Doomed, known: Mapping[str, Save]) -> tuple[Stock, Doomed]:
    """What is there, and what may go of it."""
    stock = _look(storage, told, known, "nothing is deleted")
    return stock, garbage.find_prunable(stock, keep, _find_leads(storage), told)


def _find_leads(storage: Storage) -> list[int]:
    return [lead for lead in map(layout.lead_of, storage.list(layout.LEADS)) if lead is not None]


def _look(storage: Storage, told: Doomed, known: Mapping[str, Save], so: str) -> Stock:
    stock = reading.look(storage, known, _MOST_NAMED)
    if stock.unread - told.saves:
        names = ", ".join(sorted(stock.unread - told.saves))
        raise CommandError(
            f"{storage.url}: what the manifests {names} name is unknown, so {so}: try again, with a newer"
            f" runtime; if they are damaged, delete these objects in {layout.SAVES}/ yourself"
        )
    return replace(stock, saves={name: save for name, save in stock.saves.items() if name in stock.listed})


def _delete(
    storage: Storage, keep: int, doomed: Doomed, told: Doomed, theirs: Sequence[str], known: Mapping[str, Save]
) -> Doomed:
    """Manifests first: what has one is whole. What is left at an error, the next leader deletes, or the next call.

    `theirs`: notes of calls that have not come to their end; this one takes over what they say. What others write down
    at the same time goes, too, so it is looked again with that. Returns what is gone.
    """
    taken = reading.read_told(storage, theirs)[0]
    note = _write_down(storage, doomed | taken)
    for name in theirs:
        storage.delete(f"{layout.GARBAGE}/{name}")
    told |= reading.find_told(storage, lambda name: f"{layout.GARBAGE}/{name}" != note)[0]
    stock, again = _plan(storage, keep, told, known)
    doomed &= again
    _delete_all(storage, note, [f"{layout.SAVES}/{name}" for name in sorted(doomed.saves)])
    left = _look(storage, told, stock.saves, "no object is deleted")
    named = {one.name for save in left.saves.values() for one in save.objects}
    gone = Doomed(doomed.saves, doomed.objects - named)
    _delete_all(storage, note, [f"{layout.OBJECTS}/{name}" for name in sorted(gone.objects)])
    open_ends = taken & Doomed(left.listed, frozenset(left.sizes.keys() - gone.objects))
    if open_ends:  # the request of a call that was taken over may still be under way
        _write_down(storage, open_ends)
    storage.delete(note)
    return gone


def _write_down(storage: Storage, doomed: Doomed) -> str:
    note = f"{layout.GARBAGE}/{max(_find_leads(storage), default=0):010d}{layout.PRUNES}{uuid.uuid4().hex}"
    storage.put(note, doomed.dump())
    return note


def _delete_all(storage: Storage, note: str, names: Sequence[str]) -> None:
    """Delete these, as long as it is written down that they go. Raises CommandError once it is not."""
    for index, name in enumerate(names):
        if index % _DELETIONS == 0:
            try:
                storage.get(note)
            except NotThereError:
                raise CommandError(
                    f"{storage.url}: somebody else prunes it, or a job writes to it, and has taken over what is left"
                ) from None
        storage.delete(name)


def _printable(text: str) -> str:
    """What an archive of somebody else says, in one line that no terminal obeys, and of which everything is seen."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:_MOST_TOLD])
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", shown)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _printable(super().format(record))


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """What is logged is for the user."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(message)s"))
    logger = logging.getLogger("elasticjob")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(
        "elasticjob archive", description="Take saves out of an archive, or put one there."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    lists = commands.add_parser("list", help="show the saves, newest first")
    pulls = commands.add_parser("pull", help="write a save to a new folder")
    pushes = commands.add_parser("push", help="send a folder, for checkpoints.from.archive of a job")
    prunes = commands.add_parser("prune", help="delete all but the newest saves; only shows them without --yes")
    for command in (lists, pulls, pushes, prunes):
        command.add_argument("url", help="the folder in the store, as `kubectl elasticjob checkpoints JOB` names it")
        command.add_argument("--credentials", type=Path, help="a folder with the keys, like a mounted Secret")
    pulls.add_argument("folder", type=Path, help="must not exist")
    pushes.add_argument("folder", type=Path)
    for command in (pulls, pushes):
        command.add_argument("--step", type=int, help="the step of the save")
    prunes.add_argument("--keep", type=int, required=True, help="so many whole saves stay, at least 1")
    prunes.add_argument("--yes", action="store_true", help="delete; without it, only show what would go")
    given = parser.parse_args(arguments)
    try:
        storage = Storage(given.url, given.credentials, COMMAND)
        with _telling():
            if given.command == "list":
                lines = [_describe(save) for _, save in reading.walk_saves(storage)]
                is_empty = not lines and not any(map(layout.order_of, storage.list(layout.SAVES)))
            elif given.command == "prune":
                pruned = prune(storage, given.keep, dry_run=not given.yes)
                lines = _tell(pruned, is_done=given.yes)
                is_empty = not pruned.kept and not pruned.saves
            else:
                is_empty = False
                lines = [_describe((pull if given.command == "pull" else push)(storage, given.folder, given.step))]
    except (CommandError, DamagedError, GoneError, OverError, StoreError, OSError) as error:
        sys.stderr.write(_printable(f"elasticjob archive: {error}") + "\n")
        return 1
    if is_empty:
        said = f"{storage.url} holds no save: the folder of a job is NAMESPACE/NAME/UID below checkpoints.archive.to"
        sys.stderr.write(_printable(f"elasticjob archive: {said}") + "\n")
    sys.stdout.write("".join(f"{_printable(line)}\n" for line in lines))
    return 0


def _describe(save: Save) -> str:
    step = "unknown step" if save.step is None else f"step {save.step}"
    return f"{step}, {len(save.record.files)} files, {save.total} bytes, {save.time}"


def _tell(pruned: Pruned, *, is_done: bool) -> list[str]:
    """The newest first, as `list` shows them."""
    word = "deleted" if is_done else "would delete"
    lines = [
        *(f"keeps {_describe(save)}" for save in pruned.kept),
        *(f"{word} {_describe(save)}" for save in pruned.saves),
        f"{word} {len(pruned.saves)} saves, {pruned.objects} objects, {pruned.bytes} bytes",
    ]
    return lines if is_done or not (pruned.saves or pruned.objects) else [*lines, "add --yes to delete them"]
