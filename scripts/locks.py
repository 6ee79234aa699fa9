"""The locks of the images: every package that an image gets, with the hashes of its files.

    python scripts/locks.py --uv PATH   # writes them, as `make locks` does
    python scripts/locks.py --check     # whether they fit pyproject.toml and constraints.txt; needs no network

The tests run what constraints.txt pins, so a lock may not name another version of anything. `uv` resolves; it is a tool
of this script alone.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
HEADER: Final = "# Every package of the image, with the hashes of its files. Regenerate with: make locks\n"
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", re.MULTILINE)
_NAME = re.compile(r"^[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock file and what it is made from."""

    path: str
    project: str  # the pyproject.toml whose dependencies it holds
    table: str  # "dependencies", "build" for what builds the wheel, "" where only `extra` counts
    group: str = ""  # the optional dependencies that are added to them
    extra: tuple[str, ...] = ()
    options: tuple[str, ...] = ("--universal", "--python-version", "3.11")
    constrained: bool = True


LOCKS: Final = (
    Lock("requirements/operator.txt", "pyproject.toml", "dependencies", group="operator"),
    Lock("requirements/build.txt", "pyproject.toml", "build"),
    Lock("worker_image/requirements/build.txt", "worker_image/pyproject.toml", "build"),
    # It is copied into images with other versions of Python: one set of packages that the oldest of them can run.
    Lock(
        "worker_image/requirements/runtime.txt",
        "worker_image/pyproject.toml",
        "dependencies",
        options=("--python-version", "3.10"),
        constrained=False,
    ),
    # torch's own dependencies differ from platform to platform: this is the one of the published image.
    Lock(
        "worker_image/requirements/torch.txt",
        "worker_image/pyproject.toml",
        "",
        extra=("torch==2.13.0", "numpy", "scikit-learn"),
        options=("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"),
    ),
)


def read_wanted(lock: Lock) -> list[str]:
    """The requirements that a lock has to fulfil, as pyproject.toml states them."""
    project = tomllib.loads((ROOT / lock.project).read_text())
    tables = {"build": project["build-system"]["requires"], "dependencies": project["project"]["dependencies"]}
    optional = project["project"].get("optional-dependencies", {})
    return [*tables.get(lock.table, ()), *(optional[lock.group] if lock.group else ()), *lock.extra]


def read_pins(text: str) -> dict[str, str]:
    """Version by normalised name, of a lock or of constraints.txt."""
    return {normalise(name): version for name, version in _PIN.findall(text)}


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def find_problems(lock: Lock, text: str, constraints: dict[str, str]) -> list[str]:
    """What is wrong with a lock: a missing package, a package without a hash, a version that the tests do not run."""
    pins = read_pins(text)
    problems = []
    for requirement in read_wanted(lock):
        name = _NAME.match(requirement)
        if name is None or normalise(name.group()) not in pins:
            problems.append(f"{lock.path}: {requirement} is missing")
    for block in re.split(r"\n(?=[A-Za-z0-9])", text.removeprefix(HEADER)):
        if block.strip() and "--hash=sha256:" not in block:
            problems.append(f"{lock.path}: {block.split()[0]} has no hash")
    if lock.constrained:
        for package, version in pins.items():
            if constraints.get(package, version) != version:
                problems.append(f"{lock.path}: {package} is {version}, constraints.txt has {constraints[package]}")
    return problems


def write(lock: Lock, uv: str) -> None:
    """Resolves one lock anew."""
    argv = [uv, "pip", "compile", "-", "--quiet", "--generate-hashes", "--no-header", "--no-annotate", *lock.options]
    if lock.constrained:
        argv += ["--constraint", str(ROOT / "constraints.txt")]
    wanted = "\n".join(read_wanted(lock))
    made = subprocess.run(argv, input=wanted, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    if made.returncode:
        raise SystemExit(f"locks: {lock.path}: {made.stderr.strip()}")
    path = ROOT / lock.path
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEADER + made.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description="The locks of the images.")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--uv", help="write them with this uv")
    group.add_argument("--check", action="store_true", help="only say what is wrong with them")
    arguments = parser.parse_args()
    if arguments.uv:
        for lock in LOCKS:
            write(lock, arguments.uv)
    constraints = read_pins((ROOT / "constraints.txt").read_text())
    problems = [p for lock in LOCKS for p in find_problems(lock, (ROOT / lock.path).read_text(), constraints)]
    for problem in problems:
        print(f"{problem}: run make locks", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
