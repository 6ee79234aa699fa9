"""Builds the control plane from Debian 12's source package. It takes some minutes, needs apt-get and dpkg-deb but no
root, and installs nothing.

apt runs in a separate directory with the machine's own sources, so it verifies signatures as usual and leaves the
system unchanged. Compiler and etcd are unpacked, not installed. This source has two problems:
- The vendored reflect2 crashes under Go ≥ 1.18 on the first custom resource; Debian's package of it replaces it.
- The OpenAPI definitions are generated code that the package does not contain; their generator is part of the source.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

VERSION: Final = "1.20.2"
COMMIT: Final = "faecb196815e248d3ecfb03c680a4507229c2a56"
BUILD_DATE: Final = "2021-01-13T00:00:00Z"
COMPILER: Final = ("golang-1.19-go", "golang-1.19-src")
REFLECT2: Final = "golang-github-modern-go-reflect2-dev"
ETCD: Final = "etcd-server"
SUITE_HINT: Final = "the build needs the archive of Debian 12 (bookworm) among the machine's apt sources"
OPENAPI_TREES: Final = ("cmd", "pkg", "plugin", "vendor/k8s.io")
OPENAPI_SKIP: Final = ("code-generator", "sample-apiserver", "kube-openapi", "gengo")
OPENAPI_TAG: Final = re.compile(rb"^\s*//\s*\+k8s:openapi-gen=", re.MULTILINE)


class BuildFailed(Exception):  # noqa: N818 - says what happened
    """The programs could not be built here; the message names the step and the cause."""


def build(target: Path, programs: Sequence[str]) -> None:
    """Build the programs into `target`. Raises BuildFailed."""
    with _workspace() as work:
        apt = _Apt(work / "apt")
        _say(f"builds Kubernetes {VERSION} from Debian's source package; this takes about five minutes, once")
        apt.update()
        apt.unpack((*COMPILER, REFLECT2, ETCD), work / "root")
        source = apt.unpack_source("kubernetes", work / "gopath" / "src" / "k8s.io")
        reflect2 = source / "vendor/github.com/modern-go/reflect2"
        shutil.rmtree(reflect2)
        shutil.copytree(work / "root/usr/share/gocode/src/github.com/modern-go/reflect2", reflect2)
        go = _Go(work, source)
        go.generate_openapi()
        names = [name for name in programs if name != "etcd"]
        for name in names:
            go.build(f"./cmd/{name}", target / name)
        if "etcd" in programs:
            shutil.copy2(work / "root/usr/bin/etcd", target / "etcd")


def fetch_etcd(target: Path) -> None:
    """Fetch only etcd, as built by Debian."""
    with _workspace() as work:
        apt = _Apt(work / "apt")
        apt.update()
        apt.unpack((ETCD,), work / "root")
        shutil.copy2(work / "root/usr/bin/etcd", target)


@contextmanager
def _workspace() -> Iterator[Path]:
    """Temporary space of some gigabytes, next to the cache, since the temporary directory may be too small."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticjob"
    base.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(dir=base, prefix=".build-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class _Apt:
    """apt-get with separate lists, cache and sources."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise BuildFailed(f"no {tool} here: {SUITE_HINT}")
        for part in ("parts", "lists/partial", "cache/archives/partial", "downloads"):
            (directory / part).mkdir(parents=True)
        self._write_sources(Path("/etc/apt"))
        config = (
            'Dir::Etc::SourceList "/dev/null";\n'
            f'Dir::Etc::SourceParts "{directory / "parts"}";\n'
            f'Dir::State::Lists "{directory / "lists"}";\n'
            f'Dir::Cache "{directory / "cache"}";\n'
            'APT::Sandbox::User "";\n'
            'Acquire::Languages "none";\n'
        )
        (directory / "apt.conf").write_text(config)

    def _write_sources(self, etc: Path) -> None:
        found = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
        number = 0
        for path in found:
            if path.suffix in (".list", ".sources") and path.is_file():
                text = add_source_entries(path.read_text(), deb822=path.suffix == ".sources")
                if text.strip():
                    number += 1
                    (self.directory / "parts" / f"{number}{path.suffix}").write_text(text)
        if number == 0:
            raise BuildFailed(f"no Debian archive in /etc/apt: {SUITE_HINT}")

    def _run(self, *argv: str, cwd: Path | None = None) -> None:
        env = {**os.environ, "APT_CONFIG": str(self.directory / "apt.conf"), "LC_ALL": "C"}
        _call(argv, cwd=cwd or self.directory, env=env)

    def update(self) -> None:
        _say("reads the archive's index")
        self._run("apt-get", "-q", "update")

    def unpack(self, packages: Sequence[str], root: Path) -> None:
        _say(f"downloads {', '.join(packages)}")
        self._run("apt-get", "-q", "download", *packages, cwd=self.directory / "downloads")
        root.mkdir(exist_ok=True)
        for package in sorted((self.directory / "downloads").glob("*.deb")):
            self._run("dpkg-deb", "-x", str(package), str(root))
            package.unlink()

    def unpack_source(self, package: str, parent: Path) -> Path:
        """Download a source package and unpack the original source; Debian's patches to it concern only kubectl."""
        place = self.directory / "source"
        place.mkdir()
        _say(f"downloads the source of {package}")
        self._run("apt-get", "-q", "source", "--download-only", package, cwd=place)
        archive = next(iter(place.glob("*.orig.tar.*")), None)
        if archive is None or VERSION not in archive.name:
            found = archive.name if archive else "nothing"
            raise BuildFailed(f"expected the source of {package} {VERSION}, found {found}: {SUITE_HINT}")
        parent.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            tar.extractall(parent, filter="tar")
        unpacked = next(parent.iterdir())
        return unpacked.rename(parent / package)


def add_source_entries(text: str, *, deb822: bool) -> str:
    """The Debian entries of an apt source file, extended by their source packages; other archives are omitted."""
    if deb822:
        stanzas = [s for s in re.split(r"\n\s*\n", text) if re.search(r"^URIs:.*debian", s, re.MULTILINE)]
        return "\n\n".join(re.sub(r"^Types:.*$", "Types: deb deb-src", s, flags=re.MULTILINE) for s in stanzas) + "\n"
    lines = []
    for line in text.splitlines():
        if re.match(r"\s*deb\s", line) and "debian" in line:
            lines += [line, re.sub(r"^\s*deb\s", "deb-src ", line)]
    return "\n".join(lines) + "\n"


class _Go:
    """The compiler from Debian's package, with a separate cache and GOPATH."""

    def __init__(self, work: Path, source: Path) -> None:
        self.work = work
        self.source = source
        root = work / "root/usr/lib/go-1.19"
        self.env: Mapping[str, str] = {
            "PATH": f"{root / 'bin'}:{os.environ.get('PATH', '')}",
            "HOME": str(work),
            "GOROOT": str(root),
            "GOPATH": str(work / "gopath"),
            "GOCACHE": str(work / "gocache"),
            "GOTMPDIR": str(work),
            "GO111MODULE": "off",
            "CGO_ENABLED": "0",
            "GOFLAGS": "",
        }

    def build(self, package: str, output: Path) -> None:
        _say(f"compiles {output.name}")
        began = time.monotonic()
        _call(
            ("go", "build", "-o", str(output), "-ldflags", build_ldflags(), package),
            cwd=self.source,
            env=self.env,
        )
        _say(f"compiled {output.name} in {time.monotonic() - began:.0f} s")

    def generate_openapi(self) -> None:
        generator = self.work / "openapi-gen"
        self.build("./vendor/k8s.io/kube-openapi/cmd/openapi-gen", generator)
        packages = ",".join(f"k8s.io/kubernetes/{p}" for p in find_openapi_packages(self.source))
        argv = (
            str(generator),
            *("-i", packages),
            *("-p", "k8s.io/kubernetes/pkg/generated/openapi"),
            *("-O", "zz_generated.openapi"),
            *("-h", "hack/boilerplate/boilerplate.generatego.txt"),
            *("-r", str(self.work / "openapi-report")),
        )
        _call(argv, cwd=self.source, env=self.env)


def build_ldflags() -> str:
    values = {
        "gitVersion": f"v{VERSION}",
        "gitMajor": VERSION.split(".")[0],
        "gitMinor": VERSION.split(".")[1],
        "gitCommit": COMMIT,
        "gitTreeState": "clean",
        "buildDate": BUILD_DATE,
    }
    packages = ("component-base/version", "client-go/pkg/version")
    settings = [f"-X k8s.io/kubernetes/vendor/k8s.io/{p}.{k}={v}" for p in packages for k, v in values.items()]
    return " ".join(["-s", "-w", *settings])


def find_openapi_packages(source: Path) -> list[str]:
    """Packages whose source requests OpenAPI definitions, as paths relative to the source."""
    found: set[str] = set()
    for tree in OPENAPI_TREES:
        for directory, _, files in os.walk(source / tree, followlinks=True):
            relative = os.path.relpath(directory, source)
            if any(f"/{skip}" in f"/{relative}" for skip in OPENAPI_SKIP) and relative.startswith("vendor"):
                continue
            for file in files:
                if file.endswith(".go") and OPENAPI_TAG.search(Path(directory, file).read_bytes()):
                    found.add(relative)
                    break
    return sorted(found)


def _call(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
    try:
        result = subprocess.run(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise BuildFailed(f"{argv[0]}: {error}") from error
    if result.returncode != 0:
        tail = "\n".join((result.stdout + result.stderr).splitlines()[-8:])
        raise BuildFailed(f"{' '.join(argv)[:120]}: exit code {result.returncode}\n{tail}\n({SUITE_HINT})")


def _say(text: str) -> None:
    print(f"devcluster: {text}", file=sys.stderr, flush=True)
