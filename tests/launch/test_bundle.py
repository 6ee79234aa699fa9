"""What travels with a job, what stays behind, and what is refused."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticjob_operator.api import InvalidJobError, names
from elasticjob_operator.client import ClientError, build_manifest
from elasticjob_operator.launch.attach import attach
from elasticjob_operator.launch.bundle import (
    MOST_BYTES,
    MOST_FILES,
    Bundle,
    CodeError,
    File,
    is_excluded,
    read_code,
    with_packages,
    with_requirements,
)
from elasticjob_operator.launch.packages import INSTALL
from elasticjob_operator.launch.source import find_source


def fill(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def paths(bundle: Bundle | None) -> list[str]:
    assert bundle is not None
    return [file.path for file in bundle.files]


def test_a_folder_travels_without_what_is_hidden_or_made(tmp_path: Path) -> None:
    fill(tmp_path, train_py="import a", a__b_py="", requirements_txt="numpy")
    for name in (".git/config", "a/__pycache__/b.pyc", "a/.hidden", "env/pyvenv.cfg", "env/lib.py", "old.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    bundle = read_code(tmp_path)
    assert paths(bundle) == ["a/b.py", "requirements.txt", "train.py"]
    assert bundle.requirements == "requirements.txt"
    assert paths(read_code(tmp_path, ["a", "*.txt"])) == ["train.py"]


@pytest.mark.parametrize(
    ("pattern", "name", "excluded"),
    [
        ("data", "data/x.bin", True),
        ("data/", "data/x.bin", True),
        ("*.bin", "data/x.bin", True),
        ("data/*.bin", "data/x.bin", True),
        ("x.bin", "data/x.bin", True),
        ("dat", "data/x.bin", False),
        ("*.py", "data/x.bin", False),
    ],
)
def test_patterns(pattern: str, name: str, excluded: bool) -> None:
    assert is_excluded(name, [pattern]) is excluded


def test_a_link_inside_of_the_folder_travels_as_a_file(tmp_path: Path) -> None:
    fill(tmp_path, data__a_txt="x")
    (tmp_path / "b.txt").symlink_to(next((tmp_path / "data").iterdir()))
    bundle = read_code(tmp_path)
    assert [file.content for file in bundle.files if file.path == "b.txt"] == [b"x"]


def test_a_folder_of_any_depth_is_refused_by_name(tmp_path: Path) -> None:
    """`os.walk` calls itself for each level in Python 3.11."""
    levels, place = 1500, tmp_path
    try:
        for _ in range(levels):
            place = place / "d"
            place.mkdir()
        with pytest.raises(CodeError, match=r"more than 100 levels deep: choose the folder of the code alone"):
            read_code(tmp_path)
    finally:
        for _ in range(levels):
            place.rmdir()
            place = place.parent


def test_the_digest_is_of_paths_modes_and_contents() -> None:
    def digest(*files: File, requirements: str | None = None) -> str:
        return Bundle(files, requirements).digest

    one = File("a.py", b"x")
    others = [
        digest(File("b.py", b"x")),
        digest(File("a.py", b"y")),
        digest(File("a.py", b"x", executable=True)),
        digest(one, File("b.py", b"")),
        digest(one, requirements="a.py"),
        digest(File("a.py\0000\0001\0x", b"")),
    ]
    assert digest(one) == digest(File("a.py", b"x"))
    assert len({digest(one), *others}) == 7


def make_too_large(folder: Path) -> Path:
    return fill(folder, train_py="", model__bin=b"\0" * (MOST_BYTES + 1))


def make_too_many(folder: Path) -> Path:
    for number in range(MOST_FILES + 1):
        (folder / f"{number}.py").touch()
    return folder


def make_link(folder: Path) -> Path:
    (folder / "there").symlink_to("/etc")
    return folder


def make_link_out(folder: Path) -> Path:
    (folder / "id_ed25519").write_text("PRIVATE KEY")
    (folder / "code").mkdir()
    (folder / "code" / "tokenizer.json").symlink_to("../id_ed25519")
    return folder / "code"


def make_broken_link(folder: Path) -> Path:
    (folder / "there.py").symlink_to(folder / "gone")
    return folder


def make_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder


def make_odd_name(folder: Path) -> Path:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.py")).touch()
    return folder


def make_importing(folder: Path) -> Path:
    return fill(folder, model_py="", train_py="import os, torch\nfrom model import Net") / "train.py"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        pytest.param(lambda p: p / "gone.py", "gone.py: cannot be read: No such file", id="missing"),
        pytest.param(lambda p: p, "has no file to send", id="empty"),
        pytest.param(make_too_large, "(largest: model/bin 960.0 KiB, train.py 0 bytes): leave out", id="large"),
        pytest.param(lambda p: make_too_large(p) / "model/bin", "git in an init container", id="large-file"),
        pytest.param(make_too_many, f"has {MOST_FILES + 1} files, and at most {MOST_FILES} travel", id="many"),
        pytest.param(make_link, "is a link to a folder: put a copy in its place", id="link"),
        pytest.param(make_link_out, "tokenizer.json: is a link to a file outside of the folder", id="link-out"),
        pytest.param(make_broken_link, "there.py: cannot be read: No such file", id="broken-link"),
        pytest.param(make_pipe, "pipe: is not a regular file", id="pipe"),
        pytest.param(make_odd_name, "its name is not UTF-8: rename it", id="name"),
        pytest.param(make_importing, "imports model, which lies beside it and would stay behind", id="importing"),
    ],
)
def test_what_cannot_travel(tmp_path: Path, make: Callable[[Path], Path], told: str) -> None:
    with pytest.raises(CodeError) as caught:
        read_code(make(tmp_path))
    assert told in str(caught.value)


def test_requirements_and_packages(tmp_path: Path) -> None:
    bundle = read_code(fill(tmp_path, train_py="", requirements_txt="numpy"))
    more = with_packages(bundle, ["click>=8"])
    assert more.requirements == "elasticjob-requirements.txt"
    content = {file.path: file.content for file in more.files}
    assert content["elasticjob-requirements.txt"] == b"-r requirements.txt\nclick>=8\n"
    (tmp_path / "others.txt").write_text("torch")
    replaced = with_requirements(bundle, tmp_path / "others.txt")
    assert {file.path: file.content for file in replaced.files}["requirements.txt"] == b"torch"
    for wrong in ("", "-r /etc/passwd", "a\nb"):
        with pytest.raises(CodeError, match="is not a requirement"):
            with_packages(bundle, [wrong])


@pytest.mark.parametrize(
    ("script", "code", "command", "sent"),
    [
        pytest.param("train.py", None, "torchrun /opt/elasticjob/code/train.py", ["train.py"], id="file"),
        pytest.param("gone.py", None, "torchrun gone.py", None, id="in-the-image"),
        pytest.param("python", None, "python", None, id="command"),
        pytest.param("project", None, "torchrun /opt/elasticjob/code/main.py", ["lib.py", "main.py"], id="folder"),
        pytest.param(
            "project/lib.py", "project", "torchrun /opt/elasticjob/code/lib.py", ["lib.py", "main.py"], id="from-here"
        ),
        pytest.param("lib.py", "project", "torchrun /opt/elasticjob/code/lib.py", ["lib.py", "main.py"], id="there"),
        pytest.param("python", "project", "python", ["lib.py", "main.py"], id="command-and-code"),
        pytest.param("train.py", "train.py", "torchrun /opt/elasticjob/code/train.py", ["train.py"], id="file-as-code"),
    ],
)
def test_what_a_script_means(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    code: str | None,
    command: str,
    sent: list[str] | None,
) -> None:
    monkeypatch.chdir(fill(tmp_path, train_py="import os", project__main_py="import lib", project__lib_py=""))
    source = find_source(script, code)
    assert " ".join(source.command) == command
    assert (source.bundle and paths(source.bundle)) == sent


def test_on_this_machine_a_script_runs_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what it imports, and whatever the size of its folder."""
    monkeypatch.chdir(fill(tmp_path, project__train_py="import lib", project__lib_py=""))
    source = find_source("project/train.py", in_place=True)
    assert (source.command, source.bundle) == (("torchrun", str(tmp_path / "project/train.py")), None)
    sent = find_source("project/train.py", "project", in_place=True)
    assert sent.bundle is not None and paths(sent.bundle) == ["lib.py", "train.py"], "it was asked for"


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("both", None, "which script of it? it has train.py and main.py"),
        ("none", None, "it has none of train.py, main.py"),
        ("gone.py", "both", "is not in the code that is sent (both), which has main.py, train.py"),
        ("train.py", "gone", "gone: cannot be read"),
    ],
)
def test_which_script_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: str | None, told: str
) -> None:
    monkeypatch.chdir(fill(tmp_path, both__train_py="", both__main_py="", none__lib_py=""))
    with pytest.raises(CodeError) as caught:
        find_source(script, code)
    assert told in str(caught.value)


BUNDLE = Bundle(
    (
        File("a/run.sh", b"#!/bin/sh\n", executable=True),
        File("requirements.txt", b"numpy"),
        File("weights.bin", b"\xff\0"),
    ),
    "requirements.txt",
)


def given(**changes: Any) -> dict[str, Any]:
    return build_manifest("digits", "i", ["torchrun", "x"], env={"PYTHONPATH": "/mine"}, gpus=1, **changes)


def test_a_job_with_code() -> None:
    before = given()
    shipment = attach(before, BUNDLE)
    assert before == given(), "the argument is not changed"
    digest = f"sha256:{BUNDLE.digest}"
    assert shipment.manifest["metadata"]["annotations"] == {names.ANNOTATION_CODE: digest}
    template = shipment.manifest["spec"]["template"]
    assert template["metadata"]["annotations"] == {names.ANNOTATION_CODE: digest}
    spec, (trainer,) = template["spec"], template["spec"]["containers"]
    name = f"digits-code-{BUNDLE.digest[:10]}"
    assert spec["volumes"][0]["configMap"] == {
        "name": name,
        "items": [
            {"key": "0-a_run.sh", "path": "a/run.sh", "mode": 0o555},
            {"key": "1-requirements.txt", "path": "requirements.txt"},
            {"key": "2-weights.bin", "path": "weights.bin"},
        ],
    }
    assert trainer["workingDir"] == names.CODE_PATH
    assert {m["mountPath"]: m["readOnly"] for m in trainer["volumeMounts"]} == {
        names.CODE_PATH: True,
        names.PACKAGES_PATH: True,
        f"{names.UPDATES_PATH}/a": True,
        f"{names.UPDATES_PATH}/b": True,
    }
    assert trainer["env"] == [{"name": "PYTHONPATH", "value": "/opt/elasticjob/packages/site-packages:/mine"}]
    (installer,) = spec["initContainers"]
    assert installer["image"] == "i"
    assert installer["env"] == [{"name": "PYTHONPATH", "value": "/mine"}]
    assert installer["resources"] == trainer["resources"]
    config_map = shipment.config_map
    assert config_map is not None
    assert (config_map["metadata"]["name"], config_map["immutable"]) == (name, True)
    assert config_map["data"] == {"0-a_run.sh": "#!/bin/sh\n", "1-requirements.txt": "numpy"}
    assert base64.b64decode(config_map["binaryData"]["2-weights.bin"]) == b"\xff\0"


def test_a_job_without_requirements_has_no_further_step() -> None:
    spec = attach(given(), Bundle((File("t.py", b""),))).manifest["spec"]["template"]["spec"]
    assert "initContainers" not in spec
    assert spec["containers"][0]["env"] == [{"name": "PYTHONPATH", "value": "/mine"}]


def test_a_package_that_does_not_exist_is_named(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("--no-index\nno-such-package>=3\n")
    command = [sys.executable, "-c", INSTALL, str(tmp_path / "target"), str(tmp_path / "requirements.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("requirements.txt: pip: ERROR: ")
    assert "no-such-package>=3" in done.stderr.splitlines()[-1]


def test_a_working_directory_that_is_set_stays() -> None:
    manifest = given()
    manifest["spec"]["template"]["spec"]["containers"][0]["workingDir"] = "/mine"
    shipment = attach(manifest, BUNDLE)
    assert shipment.manifest["spec"]["template"]["spec"]["containers"][0]["workingDir"] == "/mine"


def test_a_manifest_that_cannot_take_code() -> None:
    nameless = given() | {"metadata": {"generateName": "x-"}}
    with pytest.raises(ClientError, match=r"metadata\.name: is required for a job with code"):
        attach(nameless, BUNDLE)
    for wrong in ("Digits", "a_b", "a..b", "x" * 254):
        with pytest.raises(ClientError, match=r"metadata\.name: .*: must be lower-case letters"):
            attach(given() | {"metadata": {"name": wrong}}, BUNDLE)
    taken = given()
    taken["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": names.CODE_PATH}]
    with pytest.raises(ClientError, match="is where the code goes"):
        attach(taken, BUNDLE)
    with pytest.raises(InvalidJobError):
        attach({**given(), "spec": {"replicas": "many"}}, BUNDLE)
    elsewhere = given()
    elsewhere["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    with pytest.raises(ClientError, match=r"spec\.managedBy: MultiKueue .* not the ConfigMap .* the image"):
        attach(elsewhere, BUNDLE)
    formerly = given()
    formerly["spec"]["runPolicy"] = {"managedBy": "kueue.x-k8s.io/multikueue"}
    with pytest.raises(ClientError, match=r"spec\.runPolicy\.managedBy: MultiKueue .* not the ConfigMap"):
        attach(formerly, BUNDLE)
