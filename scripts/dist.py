"""Builds the files of a release into dist/. `make dist` runs it, adds the bills of materials, and then the checksums.

    python scripts/dist.py build       # wheels, sdists, chart, manifests; images if docker, podman or buildah runs
    python scripts/dist.py checksums   # SHA256SUMS of everything in dist/

If TAG is set, as in a release, it must match the version of this tree.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
PROJECTS: Final = (".", "devcluster", "worker_image")
MANIFESTS: Final = ("manifests/install.yaml", "crds/elasticjob.dev_elasticjobs.yaml")
CHECKSUMS: Final = "SHA256SUMS"
# name → arguments of `build`
IMAGES: Final = {
    "operator": ("--tag", "elasticjob/operator:{version}", "."),
    "runtime": ("--tag", "elasticjob/runtime:{version}", "--target", "runtime", "worker_image"),
    "worker": ("--tag", "elasticjob/worker:{version}", "--target", "worker", "worker_image"),
}


def check_tag(tag: str, version: str) -> None:
    """Raises SystemExit if the tag does not match the version."""
    if tag and tag != f"v{version}":
        raise SystemExit(f"dist: the tag is {tag}, the version v{version}: change __version__, or tag the right commit")


def build_distributions(folder: Path) -> None:
    """A wheel and an sdist of each project; hatchling is in the environment, so nothing is downloaded."""
    for project in PROJECTS:
        argv = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)]
        subprocess.run(argv, cwd=ROOT / project, check=True, timeout=300, stdout=subprocess.DEVNULL)


def package_chart(folder: Path) -> None:
    """The chart in the format of `helm install`, packaged by Helm's own engine."""
    import helm_python

    helm_python.chart.package(ROOT / "manifests/chart/elasticjob", destination=folder)


def find_engine() -> str | None:
    """The first of docker, podman and buildah that works here; None if there is none."""
    for engine in ("docker", "podman", "buildah"):
        if shutil.which(engine):
            answer = subprocess.run([engine, "info"], capture_output=True, check=False, timeout=60)
            if answer.returncode == 0:
                return engine
    return None


def build_images(engine: str, version: str, revision: str) -> None:
    for arguments in IMAGES.values():
        words = [word.format(version=version) for word in arguments]
        argv = [engine, "build", "--build-arg", f"VERSION={version}", "--build-arg", f"REVISION={revision}", *words]
        subprocess.run(argv, cwd=ROOT, check=True, timeout=3600)


def build() -> None:
    version: str = runpy.run_path(str(ROOT / "scripts/versions.py"))["read_version"]()
    check_tag(os.environ.get("TAG", ""), version)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    build_distributions(DIST)
    package_chart(DIST)
    for manifest in MANIFESTS:
        shutil.copy(ROOT / manifest, DIST)
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if engine := find_engine():
        build_images(engine, version, git.stdout.strip() or "unknown")
    else:
        print("dist: no images: neither docker, podman nor buildah runs here", file=sys.stderr)


def render_checksums(folder: Path) -> str:
    """One line per file, in the format of `sha256sum --check`."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CHECKSUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def main(arguments: list[str]) -> int:
    if arguments == ["build"]:
        build()
    elif arguments == ["checksums"]:
        (DIST / CHECKSUMS).write_text(text := render_checksums(DIST))
        print(text, end="")
    else:
        print("usage: dist.py build|checksums", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
