"""exec, debug and cp in real pods. No operator runs: the test writes the status that names their ranks."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import pytest

from controller import client_fixture as given
from elasticjob_devcluster import Cluster
from elasticjob_operator.cli.launch.inside import unpack
from elasticjob_operator.cli.root import run
from operator_fixture import wait_for

Run = Callable[..., tuple[int, str, str]]
WORKER = """
import faulthandler, os, signal, sys, time
if sys.argv[1:]:
    file = open(f"{sys.argv[1]}/stacks-{os.getpid()}.txt", "w")
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)

def waits_in_vain():
    print("ready", flush=True)
    time.sleep(1000)

waits_in_vain()
"""


@pytest.fixture
def live(cluster: Cluster, namespace: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command line in the namespace; returns exit code, stdout and stderr."""

    def call(command: str, *arguments: str) -> tuple[int, str, str]:
        code = run([command, "-n", namespace, "--kubeconfig", str(cluster.kubeconfig), *arguments])
        said = capfdbinary.readouterr()
        assert b"Traceback" not in said.err
        return code, said.out.decode(), said.err.decode()

    return call


def create_job(cluster: Cluster, namespace: str) -> None:
    """The job `digits`, whose status names two ranks."""
    given.install_crd(cluster)
    cluster.kube.request("POST", f"/apis/elasticjob.dev/v1alpha1/namespaces/{namespace}/elasticjobs", given.manifest())
    given.write_status(cluster, namespace, "digits", given.running_status())


def start_worker(cluster: Cluster, namespace: str, index: int, *arguments: str, path: str = "") -> None:
    """A pod with one worker, whose environment is as an agent sets it."""
    body = given.pod_object("digits", index, "")
    (container,) = body["spec"]["containers"]
    container["command"] = [sys.executable, "-c", WORKER, *arguments]
    uid = {"name": "ELASTICJOB_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    container["env"] = [{"name": "RANK", "value": str(index)}, uid]
    if path:
        container["env"].append({"name": "PATH", "value": path})
    cluster.kube.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    name = body["metadata"]["name"]
    wait_for(lambda: is_running(cluster, namespace, name) and "ready" in cluster.logs(namespace, name), f"{name} runs")


def is_running(cluster: Cluster, namespace: str, name: str) -> bool:
    pod = cluster.kube.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
    return bool((pod.get("status") or {}).get("phase") == "Running")


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_exec_debug_and_cp_in_real_pods(live: Run, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    create_job(cluster, namespace)
    folder = tmp_path / "stacks"
    folder.mkdir()
    start_worker(cluster, namespace, 0)
    start_worker(cluster, namespace, 1, str(folder))

    code, out, err = live("exec", "digits", "--rank", "1", "--", "sh", "-c", 'echo "$RANK"; echo wrong >&2; exit 3')
    assert (code, out, err) == (3, "1\n", "wrong\n")
    assert live("exec", "digits", "--", "sh", "-c", "echo $RANK")[:2] == (0, "0\n")
    code, _, err = live("exec", "digits", "--rank", "7", "--", "true")
    assert (code, "rank 7 of digits: the job has ranks 0 to 1" in err) == (2, True)
    code, _, err = live("exec", "digits", "--", "no-such-program")
    assert (code, "no-such-program" in err) == (2, True)
    assert live("exec", "gone", "--", "true")[0] == 2

    code, out, err = live("debug", "digits", "--rank", "1")
    assert code == 0, err
    assert "waits_in_vain" in out
    code, _, err = live("debug", "digits", "--rank", "0")  # it has no handler: the signal would have killed it
    assert (code, "rank 0 of digits: its stacks cannot be read: install py-spy" in err) == (1, True)
    assert is_running(cluster, namespace, "digits-worker-0")

    there = tmp_path / "there" / "checkpoints"
    there.mkdir(parents=True)
    content = bytes(range(256)) * 4096  # not UTF-8, and more than one message
    (there / "last.pt").write_bytes(content)
    (tmp_path / "here").mkdir()
    here = str(tmp_path / "here")
    assert live("cp", f"digits:{there / 'last.pt'}", here)[:2] == (0, f"{here}/last.pt\n")
    assert (tmp_path / "here" / "last.pt").read_bytes() == content
    assert live("cp", f"digits:{there}/", f"{here}/all", "--rank", "1")[:2] == (0, f"{here}/all\n")
    assert (tmp_path / "here" / "all" / "last.pt").read_bytes() == content
    code, _, err = live("cp", f"digits:{there}/gone", here)
    assert (code, "gone: no such file or folder" in err) == (1, True)
    assert live("cp", f"digits:{there}", f"{here}/all/more/deep")[0] == 2


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_terminal_obeys_no_pod(live: Run, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """Who looks into a pod reads what its author made it say: a clipboard, a title and earlier lines are not theirs."""
    create_job(cluster, namespace)
    for name in ("py-spy", "tar"):
        program = tmp_path / name
        said = "\\033]52;c;ZXZpbA==\\007\\033]0;owned\\007\\r caf\\303\\251\\n"
        program.write_text(f"#!/bin/sh\nprintf '{said}'\nprintf '{said}' >&2\nexit {int(name == 'tar')}\n")
        program.chmod(0o755)
    start_worker(cluster, namespace, 0, path=f"{tmp_path}:{os.environ['PATH']}")
    code, out, err = live("debug", "digits")
    assert code == 0, err
    assert "owned" in out and "owned" in err
    assert not any(sign in out + err for sign in "\033\007\r")
    assert "café" in out, "a character may arrive in two pieces"
    code, _, err = live("cp", f"digits:{tmp_path}/tar", str(tmp_path / "copy"))
    assert code == 1
    assert "owned" in err and not any(sign in err for sign in "\033\007\r")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("cp digits .", "digits: must be NAME:PATH"),
        ("cp :/x .", "must be NAME:PATH"),
        ("cp digits:/x gone/name", "gone/name: its folder does not exist"),
        ("exec digits", "Missing argument 'COMMAND...'"),
        ("debug digits --rank x", "'x' is not a valid integer"),
        ("exec digits -- true", "none found: give --kubeconfig"),
    ],
)
def test_mistakes(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert run(line.split()) == 2
    assert told in capsys.readouterr().err


def archive(*members: tuple[str, bytes | None]) -> io.BytesIO:
    """A tar file; a member without content is a link to /etc/passwd."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    made.seek(0)
    return made


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(archive(("../up", b"x"), ("a", b"")), id="above"),
        pytest.param(archive(("a", None)), id="link"),
        pytest.param(archive(("b", b"x")), id="another-name"),
        pytest.param(io.BytesIO(b"no archive" * 100), id="no-archive"),
    ],
)
def test_an_archive_of_somebody_else_lands_nowhere_else(sent: io.BytesIO, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(click.ClickException):
        unpack(sent, "a", tmp_path / "in")
    assert [path.name for path in tmp_path.rglob("*")] == ["in"]


def entry(name: str, kind: bytes, link: str = "", content: bytes = b"") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(content), 0o755
    return info, content


def write_maze(outside: str) -> io.BytesIO:
    """Links inside of a folder, through which Python loses its way: it then takes one that leads out for one inside."""
    entries, path, letters, long = [entry("a", tarfile.DIRTYPE)], "a", "abcdefghijklmnop", "d" * 247
    for letter in letters:
        entries += [entry(f"{path}/{long}", tarfile.DIRTYPE), entry(f"{path}/{letter}", tarfile.SYMTYPE, long)]
        path += f"/{long}"
    way = "/".join(letters) + "/" + "l" * 254
    entries.append(entry(f"a/{way}", tarfile.SYMTYPE, "../" * len(letters)))
    entries.append(entry("a/out", tarfile.SYMTYPE, f"{way}/{outside}"))
    entries.append(entry("a/out/planted", tarfile.REGTYPE, content=b"by the pod"))
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    made.seek(0)
    return made


def test_links_of_a_pod_lead_nowhere(tmp_path: Path) -> None:
    """Some versions of Python follow them. What is copied has none: tar writes what they lead to."""
    (tmp_path / "home").mkdir()
    (tmp_path / "in").mkdir()
    with pytest.raises(click.ClickException, match="is a link"):
        unpack(write_maze("../../../home"), "a", tmp_path / "in")
    assert not list((tmp_path / "home").iterdir()), "nothing is written elsewhere"
    assert not list((tmp_path / "in").iterdir())


def test_names_of_one_file_are_copied(tmp_path: Path) -> None:
    """tar writes the second one as a hard link."""
    sent = archive(("a/one", b"x"))
    with tarfile.open(fileobj=sent, mode="a") as tar:
        tar.addfile(entry("a/two", tarfile.LNKTYPE, "a/one")[0])
    sent.seek(0)
    unpack(sent, "a", tmp_path / "a")
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == {"one": b"x", "two": b"x"}


@pytest.mark.parametrize("other", ["nowhere", "a/b/."])
def test_a_name_of_a_file_that_has_not_come_is_refused_and_nothing_after_it_is_read(tmp_path: Path, other: str) -> None:
    """Python looks for that file in the rest of the archive, keeps all that it finds there, and has no error for it."""
    about = tarfile.TarInfo("a/c")
    about.type, about.linkname = tarfile.LNKTYPE, other
    names = tarfile.TarInfo("a/b").tobuf() + about.tobuf()
    sent = io.BytesIO(names + with_header(tarfile.XHDTYPE, 64 * 2**20).getvalue())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        with pytest.raises(click.ClickException, match=f"no archive of it: 'a/c' is another name of '{other}'"):
            unpack(sent, "a", tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] - before < 2**22
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "a").exists()


def with_header(kind: bytes, size: int) -> io.BytesIO:
    """An archive that begins with a header of so many bytes about its file: a name, or what pax has to say."""
    about = tarfile.TarInfo("about")
    about.size, about.type = size, kind
    text = b"%d comment=" % size
    body = text.ljust(size - 1, b"x") + b"\n" if kind == tarfile.XHDTYPE else b"a".ljust(size, b"\0")
    return io.BytesIO(about.tobuf() + body.ljust(-(-size // 512) * 512, b"\0") + archive(("a", b"new")).getvalue())


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_of_any_size_takes_no_memory(kind: bytes, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        sent = with_header(kind, 64 * 2**20)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        with pytest.raises(click.ClickException, match="no archive of it: a header of 67108864 bytes"):
            unpack(sent, "a", tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] - before < 2**22
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "a").exists()


def test_of_a_million_files_nothing_is_kept_in_memory(tmp_path: Path) -> None:
    sent = archive(*((f"a/{number % 10}", b"") for number in range(3000)))
    tracemalloc.start()
    try:
        unpack(sent, "a", tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert len(list((tmp_path / "a").iterdir())) == 10


def pax(said: dict[str, str], content: bytes) -> io.BytesIO:
    """An archive of one file `a`, of which pax says this."""
    info = tarfile.TarInfo("a")
    info.size, info.pax_headers = len(content), said
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(content))
    made.seek(0)
    return made


SPARSE: Final = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a", "GNU.sparse.realsize": "5"}


@pytest.mark.parametrize(
    ("said", "content"),
    [
        pytest.param({"mtime": "inf"}, b"x", id="a time without an end"),
        pytest.param({"mtime": "nan"}, b"x", id="a time that is no number"),
        pytest.param({"mtime": "1e300"}, b"x", id="a time that no clock has"),
        pytest.param(SPARSE, b"9999999\n".ljust(512, b"\0"), id="a map without its places"),
        pytest.param(SPARSE, b"x\n".ljust(512, b"\0"), id="a map without a number"),
        pytest.param(SPARSE, b"9" * 512, id="a map without a line"),
        pytest.param({"GNU.sparse.map": "0,x", "GNU.sparse.size": "5"}, b"x", id="a place without a number"),
    ],
)
def test_numbers_in_an_archive_that_python_cannot_use_are_told_in_a_line(
    said: dict[str, str], content: bytes, tmp_path: Path
) -> None:
    with pytest.raises(click.ClickException, match=r"^a: what the pod sent is no archive of it: "):
        unpack(pax(said, content), "a", tmp_path)
    assert not list(tmp_path.iterdir())


def deep(levels: int, *, each: bool) -> io.BytesIO:
    """A folder with a file so many levels below it; with an entry for each folder in between, or without."""
    path = "a" + "/d" * levels
    folders = ["a" + "/d" * level for level in range(levels + 1)] if each else []
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for info, content in [*(entry(name, tarfile.DIRTYPE) for name in folders), entry(f"{path}/f", tarfile.REGTYPE)]:
            tar.addfile(info, io.BytesIO(content))
    made.seek(0)
    return made


@pytest.mark.parametrize("each", [True, False])
def test_a_folder_of_any_depth_leaves_nothing_behind(each: bool, tmp_path: Path) -> None:
    """What Python makes folders with, and what it removes them with, calls itself for each level."""
    (tmp_path / "in").mkdir()
    with pytest.raises(click.ClickException, match=r"a/d/d.* levels deep, and the limit is 200: copy a folder below"):
        unpack(deep(1900, each=each), "a", tmp_path / "in")
    assert not list((tmp_path / "in").iterdir())


def test_a_folder_may_be_deep(tmp_path: Path) -> None:
    unpack(deep(190, each=False), "a", tmp_path)
    assert (tmp_path / ("a" + "/d" * 190) / "f").exists()


def test_a_copy_replaces_a_file_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    assert unpack(archive(("a", b"new")), "a", tmp_path) == tmp_path / "a"
    assert (tmp_path / "a").read_bytes() == b"new"
    (tmp_path / "folder" / "a").mkdir(parents=True)
    with pytest.raises(click.ClickException, match="exists: choose another name"):
        unpack(archive(("a", b"new")), "a", tmp_path / "folder")
