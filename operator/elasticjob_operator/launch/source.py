"""Finds out what a user means by a script: a file or folder of this machine, which is sent, or one in the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from elasticjob_operator.api import names
from elasticjob_operator.launch.bundle import Bundle, CodeError, read_code, read_folder, read_script

ENTRIES: Final = ("train.py", "main.py", "__main__.py")


@dataclass(frozen=True)
class Source:
    """What pods run, without its arguments; the code that is sent, if any; and what to name the job after."""

    command: tuple[str, ...]
    bundle: Bundle | None
    name: str


def find_source(
    script: str,
    code: str | None = None,
    exclude: Sequence[str] = (),
    *,
    in_image: bool = False,
    in_place: bool = False,
) -> Source:
    """A Python file or a folder that exists here is sent, and so is `code`. Raises CodeError.

    With `in_place`, for pods that are processes of this machine, a file is run where it lies instead, beside what it
    imports.
    """
    path = Path(script)
    if code is not None:
        return _find_in(Path(code), script, read_code(Path(code), exclude))
    if not in_image and path.is_dir():
        return _find_entry(path, read_folder(path, exclude))
    if not in_image and path.suffix == ".py" and path.exists():
        if in_place:
            return Source(("torchrun", str(path.absolute())), None, script)
        return Source(_run_python(path.name), read_script(path), script)
    return Source(("torchrun", script) if script.endswith(".py") else (script,), None, script)


def _find_in(code: Path, script: str, bundle: Bundle) -> Source:
    """A script in the code that is sent, named from here or from there; or any other command, run in its folder."""
    if not script.endswith(".py"):
        return Source((script,), bundle, script)
    root = (code if code.is_dir() else code.parent).resolve()
    here = Path(script).resolve()
    inside = here.relative_to(root).as_posix() if here.is_relative_to(root) else script
    for path in (inside, Path(script).as_posix()):
        if bundle.has(path):
            return Source(_run_python(path), bundle, script)
    known = [file.path for file in bundle.files if file.path.endswith(".py")]
    raise CodeError(
        f"{script}: is not in the code that is sent ({code}), which has {', '.join(known[:5]) or 'no script'}"
    )


def _find_entry(folder: Path, bundle: Bundle) -> Source:
    found = [entry for entry in ENTRIES if bundle.has(entry)]
    if len(found) != 1:
        has = f"it has {' and '.join(found)}" if found else f"it has none of {', '.join(ENTRIES)}"
        raise CodeError(f"{folder}: which script of it? {has}: name the script and the folder (SCRIPT --code {folder})")
    return Source(_run_python(found[0]), bundle, folder.resolve().name)


def _run_python(path: str) -> tuple[str, ...]:
    return ("torchrun", f"{names.CODE_PATH}/{path}")
