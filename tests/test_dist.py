"""What `make dist` puts together; the wheels themselves are looked at in test_distributions."""

from __future__ import annotations

import hashlib
import re
import runpy
import subprocess
from pathlib import Path

import helm_python
import pytest

ROOT = Path(__file__).parents[1]
DIST = runpy.run_path(str(ROOT / "scripts" / "dist.py"))
VERSION = runpy.run_path(str(ROOT / "scripts" / "versions.py"))["read_version"]()


@pytest.mark.parametrize("tag", ["", "v1.2.3"])
def test_a_release_has_the_version_of_its_tag(tag: str) -> None:
    DIST["check_tag"](tag, "1.2.3")


@pytest.mark.parametrize("tag", ["v1.2.4", "1.2.3"])
def test_another_tag_is_refused(tag: str) -> None:
    with pytest.raises(SystemExit, match=f"the tag is {tag}, the version v1.2.3"):
        DIST["check_tag"](tag, "1.2.3")


def test_the_packaged_chart_is_the_chart(tmp_path: Path) -> None:
    DIST["package_chart"](tmp_path)
    (archive,) = tmp_path.iterdir()
    assert archive.name == f"elasticjob-{VERSION}.tgz"
    with helm_python.Chart.load_archive(archive.read_bytes()) as chart:
        assert (chart.name, chart.version) == ("elasticjob", VERSION)
        templates = {Path(template["name"]).name for template in chart.templates}
    assert templates == {
        path.name for path in (ROOT / "manifests/chart/elasticjob/templates").rglob("*") if path.is_file()
    }


def test_the_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    text = DIST["render_checksums"](tmp_path)
    (tmp_path / DIST["CHECKSUMS"]).write_text(text)
    assert text.splitlines()[0] == f"{hashlib.sha256(b'one').hexdigest()}  a.txt"
    assert DIST["render_checksums"](tmp_path) == text, "the file does not list itself"
    command = ["sha256sum", "--check", "--strict", DIST["CHECKSUMS"]]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=30)


def test_every_published_image_is_built() -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "worker_image/Dockerfile").read_text(), re.MULTILINE))
    for name, arguments in DIST["IMAGES"].items():
        assert f"elasticjob/{name}:{{version}}" in arguments
        assert name == "operator" or name in targets
