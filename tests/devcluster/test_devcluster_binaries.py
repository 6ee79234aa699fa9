"""The cache of programs is verified."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticjob_devcluster import BinariesUnavailable
from elasticjob_devcluster.controlplane import binaries, release

NAMES = ("etcd", "kube-apiserver")


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    entry = tmp_path / "entry"
    entry.mkdir()
    for name in NAMES:
        (entry / name).write_text(f"#!/bin/sh\necho {name}\n")
        (entry / name).chmod(0o755)
    binaries.write_manifest(entry)
    return entry


def test_an_untouched_entry_is_used(entry: Path) -> None:
    assert binaries.check_entry(entry, NAMES, pytest.fail)


def test_an_entry_that_lacks_a_program_is_kept_but_not_enough(entry: Path) -> None:
    assert not binaries.check_entry(entry, (*NAMES, "kubelet"), pytest.fail)
    assert entry.exists()


def test_a_touched_file_with_the_same_content_is_fine(entry: Path) -> None:
    os.utime(entry / "etcd", (1, 1))
    assert binaries.check_entry(entry, NAMES, pytest.fail)


@pytest.mark.parametrize("damage", ["content", "size", "missing", "mode", "manifest"])
def test_a_damaged_entry_is_discarded_with_a_message(entry: Path, damage: str) -> None:
    victim, said = entry / "etcd", list[str]()
    if damage == "content":
        text = victim.read_text()
        victim.write_text(text.replace("echo", "ECHO"))
        os.utime(victim, (1, 1))
    elif damage == "size":
        victim.write_text("")
    elif damage == "missing":
        victim.unlink()
    elif damage == "mode":
        victim.chmod(0o644)
    else:
        (entry / "manifest.json").write_text("{")
    assert not binaries.check_entry(entry, NAMES, said.append)
    assert len(said) == 1
    assert "made anew" in said[0]
    assert not entry.exists()


def test_assets_come_first(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(entry))
    assert binaries.find_or_build(NAMES) == entry


def test_nothing_found_says_what_was_tried(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(entry))
    monkeypatch.setenv("ELASTICJOB_DEVCLUSTER_BINARIES", "assets,path")
    with pytest.raises(BinariesUnavailable, match="no kube-nothing"):
        binaries.find_or_build(("kube-nothing",))


def test_an_unknown_choice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICJOB_DEVCLUSTER_BINARIES", "assets,docker")
    with pytest.raises(BinariesUnavailable, match="unknown 'docker', use some of assets,path,cache,release,debian"):
        binaries.find_or_build()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A release site with one program."""
    place = tmp_path / "site" / "v1.99.0" / "bin" / "linux" / ("arm64" if os.uname().machine == "aarch64" else "amd64")
    place.mkdir(parents=True)
    (place / "kube-apiserver").write_bytes(b"program")
    (place / "kube-apiserver.sha256").write_text(hashlib.sha256(b"program").hexdigest())

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path / "site"))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("ELASTICJOB_KUBERNETES_RELEASES", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("ELASTICJOB_KUBERNETES_VERSION", "v1.99.0")
    monkeypatch.setenv("ELASTICJOB_DEVCLUSTER_BINARIES", "cache,release")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield place
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_release_is_downloaded_once_and_repaired(site: Path) -> None:
    found = binaries.find_or_build(("kube-apiserver",))
    assert (found / "kube-apiserver").read_bytes() == b"program"
    assert os.access(found / "kube-apiserver", os.X_OK)
    (found / "kube-apiserver").write_bytes(b"broken")
    assert binaries.find_or_build(("kube-apiserver",)) == found
    assert (found / "kube-apiserver").read_bytes() == b"program"
    (site / "kube-apiserver").unlink()
    assert binaries.find_or_build(("kube-apiserver",)) == found  # from the cache


def test_a_wrong_checksum_is_refused(site: Path) -> None:
    (site / "kube-apiserver.sha256").write_text("0" * 64)
    with pytest.raises(BinariesUnavailable, match="the checksum is"):
        binaries.find_or_build(("kube-apiserver",))
    assert not (binaries.cache_root() / f"release-{release.version()}-linux-amd64").exists()
