"""Builds all images with buildah and puts them into one archive, for nodes that have no registry.

    python scripts/e2e_images.py            # prints the path of the archive

Nothing is pulled. The base images are made here, by debootstrap from Debian's archive, and given to the Dockerfiles by
their build arguments: instead of docker.io/library/python it is Debian 12 with its own Python 3.11, and instead of
docker.io/library/busybox Debian's static busybox. Where the pinned images can be pulled, nothing of this is needed.

pip works with this machine's settings, brought in as secrets and read-only mounts; no layer keeps them. Everything is
kept in the cache by a hash of what it is made from. ELASTICJOB_E2E_TORCH says which torch the worker image gets.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import platform
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
VERSION: Final[str] = runpy.run_path(str(ROOT / "scripts/versions.py"))["read_version"]()
PYTHON_BASE: Final = "localhost/elasticjob/python:3.11-bookworm"
BUSYBOX_BASE: Final = "localhost/elasticjob/busybox:bookworm"
TORCH: Final = os.environ.get("ELASTICJOB_E2E_TORCH", "torch==2.13.0+cpu")
PACKAGES: Final = ("buildah", "debootstrap")
DEBIAN: Final = "http://deb.debian.org/debian"
CA_FILE: Final = Path("/etc/ssl/certs/ca-certificates.crt")
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# name → (Dockerfile's folder, target or "", what it is made from)
IMAGES: Final = {
    "operator": (
        ".",
        "",
        ("Dockerfile", "pyproject.toml", "requirements", "README.md", "LICENSE", "operator"),
    ),
    # Another build of the operator, from the one before it here.
    "next": ("tests/integration/next_build", "", ("tests/integration/next_build",)),
    "runtime": ("worker_image", "runtime", ("worker_image",)),
    "worker": ("worker_image", "worker", ("worker_image",)),
    # A foreign image: nothing of ours is in it.
    "torch": ("worker_image", "torch", ("worker_image/Dockerfile", "worker_image/requirements")),
}


class Unavailable(Exception):  # noqa: N818 - says what is missing
    """Images cannot be built here; the message says why."""


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "elasticjob" / "images"


def missing_packages() -> list[str]:
    """The Debian packages to install before images can be built."""
    return [package for package in PACKAGES if shutil.which(package, path=PATH) is None]


def why_unavailable() -> str:
    if os.geteuid() != 0:
        return "images are built with buildah as root"
    missing = missing_packages()
    return f"images need {', '.join(missing)}: apt-get install {' '.join(missing)}" if missing else ""


def build_archive() -> Path:
    """The archive with all images, made if it is not there."""
    if why := why_unavailable():
        raise Unavailable(why)
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root / "lock"):
        archive = root / f"images-{_key()}.tar"
        if archive.exists():
            return archive
        builder = Builder(root)
        builder.make_bases()
        for name, (folder, target, _) in IMAGES.items():
            builder.build(name, folder, target)
        if archive != root / f"images-{_key()}.tar":
            raise Unavailable("the sources changed while the images were built: try again")
        builder.export(archive)
        for old in root.glob("images-*.tar"):
            if old != archive:
                old.unlink()
        return archive


def _key() -> str:
    digest = hashlib.sha256(f"{IMAGES}{TORCH}{VERSION}{PYTHON_BASE}{BUSYBOX_BASE}".encode())
    for sources in sorted({source for *_, all_of in IMAGES.values() for source in all_of}):
        place = ROOT / sources
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and "__pycache__" not in path.parts and not path.name.endswith(".pyc"):
                digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class Builder:
    """buildah, with a storage of its own in the cache: layers stay for the next time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make_bases(self) -> None:
        have = json.loads(self._buildah("images", "--json") or "[]")
        names = {name for image in have or () for name in image.get("names") or ()}
        if PYTHON_BASE not in names:
            self._make_python()
        if BUSYBOX_BASE not in names:
            self._make_busybox()

    def _make_python(self) -> None:
        _say(f"makes {PYTHON_BASE} with debootstrap")
        with _directory(self.root) as base:
            packages = "python3,python3-venv,python3-pip,ca-certificates"
            _run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(base), DEBIAN)
            subprocess.run(["umount", str(base / "proc")], capture_output=True, check=False)
            for waste in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
                shutil.rmtree(base / waste, ignore_errors=True)
            # As in the official image, pip may install into the system, and python is in /usr/local/bin.
            (base / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)
            for link, program in (("python", "python3"), ("python3", "python3"), ("pip", "pip3"), ("pip3", "pip3")):
                (base / "usr/local/bin" / link).symlink_to(f"/usr/bin/{program}")
            self._commit(base, PYTHON_BASE, PATH, "python3")

    def _make_busybox(self) -> None:
        _say(f"makes {BUSYBOX_BASE} from Debian's busybox-static")
        with _directory(self.root) as base:
            downloads = base / "downloads"
            downloads.mkdir()
            _run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", "busybox-static", cwd=downloads)
            _run("dpkg-deb", "-x", str(next(downloads.glob("*.deb"))), str(base / "unpacked"))
            place = base / "image" / "bin"
            place.mkdir(parents=True)
            shutil.copy2(base / "unpacked/bin/busybox", place / "busybox")
            for name in _run(str(place / "busybox"), "--list").split():
                if name != "busybox":
                    (place / name).symlink_to("busybox")
            self._commit(base / "image", BUSYBOX_BASE, "/bin", "sh")

    def _commit(self, base: Path, name: str, path: str, command: str) -> None:
        container = self._buildah("from", "scratch").strip()
        self._buildah("add", "-q", container, str(base), "/")
        self._buildah("config", "--env", f"PATH={path}", "--cmd", command, container)
        self._buildah("commit", "-q", "--rm", container, name)

    def build(self, name: str, folder: str, target: str) -> None:
        began = time.monotonic()
        with _directory(self.root) as secrets:
            pip, mounts = pip_settings()
            (secrets / "pip.conf").write_text(pip)
            argv = ["build", "--pull-never", "--layers", "--secret", f"id=pip,src={secrets / 'pip.conf'}"]
            if CA_FILE.exists():
                argv += ["--secret", f"id=ca,src={CA_FILE}"]
            argv += [part for mount in mounts for part in ("--volume", f"{mount}:{mount}:ro")]
            argv += ["--build-arg", f"REVISION={_revision()}"] if target != "torch" else []
            argv += ["--target", target] if target else []
            argv += ["--build-arg", f"BASE={PYTHON_BASE}"]
            argv += ["--build-arg", f"RUNTIME_BASE={BUSYBOX_BASE}"] if target else []
            argv += ["--build-arg", f"TORCH={TORCH}"] if target in ("torch", "worker") else []
            self._buildah(*argv, "-t", reference(name), folder)
        _say(f"built {reference(name)} in {time.monotonic() - began:.0f} s")

    def export(self, archive: Path) -> None:
        """One archive with all images; layers that they share are in it once."""
        with _directory(self.root) as place:
            parts = []
            for name in IMAGES:
                part = place / f"{name}.tar"
                self._buildah("push", "-q", reference(name), f"docker-archive:{part}:{reference(name)}")
                parts.append(part)
            merge_archives(parts, place / "all.tar")
            (place / "all.tar").rename(archive)

    def _buildah(self, *arguments: str) -> str:
        storage = ("--root", str(self.root / "storage"), "--runroot", str(self.root / "run"))
        return _run("buildah", *storage, *arguments, cwd=ROOT)


def reference(name: str) -> str:
    """The name of an image in the nodes; `next` is another version of the operator's."""
    if name == "next":
        return "docker.io/elasticjob/operator:next"
    return f"docker.io/elasticjob/{'e2e-torch' if name == 'torch' else name}:{VERSION}"


def merge_archives(parts: Sequence[Path], target: Path) -> None:
    """Several docker archives as one."""
    manifest: list[Any] = []
    seen: set[str] = set()
    with tarfile.open(target, "w") as out:
        for part in parts:
            with tarfile.open(part) as tar:
                for entry in tar:
                    content = tar.extractfile(entry)
                    if entry.name == "manifest.json":
                        assert content is not None
                        manifest += json.load(content)
                    elif entry.name not in seen and entry.name != "repositories":
                        seen.add(entry.name)
                        out.addfile(entry, content)
            part.unlink()
        _add(out, "manifest.json", json.dumps(manifest).encode())


def _add(out: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    out.addfile(entry, io.BytesIO(content))


def pip_settings() -> tuple[str, list[str]]:
    """This machine's settings of pip as a file, and the folders that they name."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    text = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout
    wanted = ("index-url", "extra-index-url", "find-links", "trusted-host")
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in wanted:
            values[name] = " ".join(value.strip("'\"").replace("\\n", " ").split())
    paths = [urlsplit(word).path for value in values.values() for word in value.split() if "://" not in word[:8]]
    paths += [urlsplit(word).path for value in values.values() for word in value.split() if word.startswith("file:")]
    mounts: set[str] = set()
    for path in paths:
        place = Path(path)
        if place.is_absolute() and place.exists():
            # The pages of a file index refer to files beside them.
            mounts.add(str(place.parent if place.name == "simple" else place))
    lines = ["[global]", *(f"{key} = {value}" for key, value in values.items())]
    return "\n".join(lines) + "\n", sorted(mounts)


def _revision() -> str:
    argv = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10).stdout.strip() or "unknown"


def _run(*argv: str, cwd: Path | None = None) -> str:
    env = {**os.environ, "PATH": PATH, "BUILDAH_ISOLATION": "chroot", "LC_ALL": "C"}
    result = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=1500)
    if result.returncode != 0:
        tail = "\n".join((result.stdout + result.stderr).splitlines()[-15:])
        raise Unavailable(f"{' '.join(argv)[:200]}: exit code {result.returncode}\n{tail}")
    return result.stdout


@contextlib.contextmanager
def _directory(root: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=root, prefix=".work-") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[IO[str]]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _say(text: str) -> None:
    print(f"e2e: {text}", file=sys.stderr, flush=True)


def main() -> int:
    if platform.system() != "Linux":
        print("e2e: images are built on Linux", file=sys.stderr)
        return 1
    try:
        print(build_archive())
    except Unavailable as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
