"""What lies below a folder, however deep. In older Pythons, `os.walk` and `rmtree` call themselves for each level."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator


def _raise(error: OSError) -> None:
    raise error


def walk(root: str, note: Callable[[OSError], None]) -> Iterator[tuple[str, list[str]]]:
    """Each folder with the names of what is in it, but for folders; what is above comes first. No link is followed.

    `note` gets the errors of folders that cannot be read.
    """
    left = [root]
    while left:
        where, names = left.pop(), []
        try:
            with os.scandir(where) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    else:
                        names.append(entry.name)
        except OSError as error:
            note(error)
            continue
        yield where, names


def remove(root: str) -> None:
    """Remove a folder with everything in it. Raises OSError."""
    folders = []
    try:
        for where, names in walk(root, _raise):
            folders.append(where)
            for name in names:
                os.unlink(f"{where}/{name}")  # noqa: PTH108 - of many files
        for where in reversed(folders):
            os.rmdir(where)  # noqa: PTH106
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        shutil.rmtree(root)  # it gets there step by step
