"""The criteria for checkpoints that peers hold, as a pure function of what happened.

Each save writes content of its own, so a file tells of which save it is. Saves are numbered in the order of time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

Content = tuple[str, ...]  # the SHA-256 of each chunk of a file
Directory = Mapping[str, Content]  # by path
POINTER = "latest"  # a file that names a folder


@dataclass(frozen=True)
class Save:
    """A checkpoint that the script has written to its end, or was writing."""

    number: int
    files: Directory  # of all pods, without the pointer
    pointer: Content = ()


@dataclass(frozen=True)
class Told:
    """The job was told that `copies` other pods have a checkpoint."""

    save: int
    copies: int


@dataclass(frozen=True)
class Lost:
    """A pod was lost, left, or had a copy damaged."""

    pod: int


@dataclass(frozen=True)
class Restored:
    """A world began with these directories, by rank. `held`: the newest save that its pods held whole before that."""

    directories: Sequence[Directory]
    held: int = 0


Happened = Told | Lost | Restored


def find_whole(directory: Directory, saves: Collection[Save]) -> int:
    """The newest save of which the directory has all files; 0 if there is none."""
    return max((save.number for save in saves if save.files.items() <= directory.items()), default=0)


def judge(saves: Sequence[Save], happened: Sequence[Happened], replicas: int) -> list[str]:
    """The violations, in the order of time; empty if there are none."""
    wrong: list[str] = []
    promises: list[tuple[int, int]] = []  # a save, and so many pods may still be lost
    world = 0
    for one in happened:
        match one:
            case Told(save, copies):  # what was told last counts
                promises = [one for one in promises if one[0] != save]
                promises.append((save, min(copies, replicas)))
            case Lost():
                promises = [(save, left - 1) for save, left in promises if left]
            case Restored(directories, held):
                world += 1
                found = [problem for directory in directories for problem in find_mixtures(directory, saves)]
                if any(directory != directories[0] for directory in directories):
                    found.append(f"the pods differ: {[sorted(directory) for directory in directories]}")
                newest = min(find_whole(directory, saves) for directory in directories)
                promised = max((save for save, _ in promises), default=0)
                if newest < promised:
                    found.append(f"save {promised} was promised, and {newest} restored")
                if newest < held:
                    found.append(f"save {held} was held, and {newest} restored")
                wrong += [f"world {world}: {problem}" for problem in dict.fromkeys(found)]
    return wrong


def find_mixtures(directory: Directory, saves: Sequence[Save]) -> list[str]:
    """What in a directory is no complete checkpoint of one save."""
    wrong, known = [], {POINTER}
    for save in saves:
        there = {path for path, content in save.files.items() if directory.get(path) == content}
        known |= there
        if there and there != save.files.keys():
            wrong.append(f"of save {save.number} there is {sorted(there)}, without {sorted(save.files.keys() - there)}")
        if save.pointer and directory.get(POINTER) == save.pointer:
            wrong += [] if there == save.files.keys() else [f"{POINTER} names save {save.number}, which is not there"]
    pointers = {save.pointer for save in saves}
    if POINTER in directory and directory[POINTER] not in pointers:
        wrong.append(f"{POINTER} is of no save")
    return wrong + [f"{path} is of no save" for path in sorted(directory.keys() - known)]
