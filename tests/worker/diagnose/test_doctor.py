"""The doctor: each possible problem is provoked and must be named with its remedy. Real sockets, real processes."""

from __future__ import annotations

import base64
import errno
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticjob
from elasticjob.diagnose import checks, cli, doctor, hardware, selftest
from elasticjob.diagnose.findings import (
    FAIL,
    OK,
    SKIP,
    WARN,
    Finding,
    find_exit_code,
    render_table,
    to_json,
    worst_status,
)
from worker.gang_helper import clean_environment


class _Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does to a visitor without a token."""

    skew = 0.0

    def do_GET(self) -> None:
        self.send_response_only(401)
        self.send_header("Date", self.date_time_string(time.time() + self.skew))
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, type[_Hub]]]:
    handler = type("Handler", (_Hub,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"ws://127.0.0.1:{server.server_port}", handler
        server.shutdown()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def write_token(path: Path, expires_in: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + expires_in}).encode()).decode().rstrip("=")
    path.write_text(f"header.{claims}.signature")
    return str(path)


def test_a_hub_that_answers(hub: tuple[str, type[_Hub]]) -> None:
    assert checks.check_hub({"ELASTICJOB_HUB_URL": hub[0]}).status == OK


def test_a_hub_whose_clock_is_wrong(hub: tuple[str, type[_Hub]]) -> None:
    hub[1].skew = -300.0
    finding = checks.check_hub({"ELASTICJOB_HUB_URL": hub[0]})
    assert finding.status == WARN
    assert "clock" in finding.detail
    assert "NTP" in finding.remedy


def test_no_hub() -> None:
    finding = checks.check_hub({"ELASTICJOB_HUB_URL": f"ws://127.0.0.1:{closed_port()}"})
    assert finding.status == FAIL
    assert "operator" in finding.remedy


@pytest.mark.parametrize(
    ("seconds", "status", "word"), [(600, OK, "good for"), (-60, FAIL, "expired 60 s ago")], ids=["good", "expired"]
)
def test_the_token(tmp_path: Path, seconds: float, status: str, word: str) -> None:
    finding = checks.check_token({"ELASTICJOB_TOKEN_FILE": write_token(tmp_path / "token", seconds)})
    assert finding.status == status
    assert word in finding.detail


@pytest.mark.parametrize("content", ["", "garbage", "a.b.c", "a.e30.c"])
def test_a_broken_token(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    assert checks.check_token({"ELASTICJOB_TOKEN_FILE": str(tmp_path / "token")}).status == FAIL


@pytest.mark.parametrize(
    ("check", "environ", "status", "words"),
    [
        ("check_environment", {}, OK, "world of one"),
        ("check_environment", {"RANK": "x", "WORLD_SIZE": "1"}, FAIL, "MASTER_ADDR"),
        ("check_environment", {"ELASTICJOB_HUB_URL": "http://x"}, FAIL, "ELASTICJOB_HUB_URL"),
        ("check_names", {"MASTER_ADDR": "no-such-host.invalid"}, FAIL, "no-such-host.invalid = nothing"),
        ("check_interface", {"GLOO_SOCKET_IFNAME": "nope0"}, FAIL, "nope0 does not exist"),
        ("check_interface", {"ELASTICJOB_POD_IP": "203.0.113.7"}, FAIL, "203.0.113.7"),
        ("check_interface", {"ELASTICJOB_POD_IP": "127.0.0.1"}, OK, "127.0.0.1"),
        ("check_ports", {"ELASTICJOB_POD_IP": "203.0.113.7"}, FAIL, "203.0.113.7"),
        ("check_ports", {"ELASTICJOB_POD_IP": "127.0.0.1"}, OK, "listened"),
        ("check_master", {}, SKIP, "no MASTER_ADDR"),
        ("check_master", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "1"}, FAIL, "127.0.0.1:1"),
        ("check_master", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "0"}, SKIP, "will host"),
        ("check_token", {}, SKIP, "not in"),
        ("check_token", {"ELASTICJOB_TOKEN_FILE": "/nowhere"}, FAIL, "/nowhere"),
        ("check_hub", {}, SKIP, "not in"),
        ("check_hub", {"ELASTICJOB_HUB_URL": "nonsense"}, FAIL, "nonsense"),
        ("check_versions", {}, OK, "torch"),
        ("check_backends", {}, OK, "gloo"),
        ("check_clock", {}, OK, "20"),
    ],
)
def test_each_check(check: str, environ: dict[str, str], status: str, words: str) -> None:
    finding = getattr(checks, check)(environ)
    assert finding.status == status, finding
    assert words in finding.detail
    assert finding.remedy or finding.status in (OK, SKIP)


def test_the_command_on_one_machine() -> None:
    command = [sys.executable, "-m", "elasticjob", "doctor", "--json"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=110, check=False)
    said = json.loads(done.stdout)
    status = {finding["check"]: finding["status"] for finding in said["findings"]}
    assert done.returncode == 0, done.stdout
    assert {status[name] for name in selftest.TESTS} == {OK}
    assert status["clocks"] == status["pairs"] == OK


def test_the_command_across_a_job() -> None:
    """Started by torchrun: every rank checks, rank 0 tells."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    command = [*torchrun, sys.executable, "-m", "elasticjob", "doctor"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 ranks" in done.stdout
    assert "point to point" in done.stdout
    assert len(re.findall(r"^\w+ +versions ", done.stdout, re.MULTILINE)) == 1, "one rank tells"


def test_a_failure_is_an_exit_code_and_a_remedy() -> None:
    env = clean_environment(ELASTICJOB_POD_IP="203.0.113.7")
    command = [sys.executable, "-m", "elasticjob", "doctor"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1
    assert "203.0.113.7" in done.stdout
    assert "-> " in done.stdout
    assert "all_reduce" not in done.stdout  # no self-test where the checks fail already


def test_memory_that_holds_what_was_written_is_good() -> None:
    assert hardware.check_memory({}) == Finding("memory", OK, "64 MiB hold what was written")


def test_a_disk_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"TMPDIR": str(tmp_path)}
    assert hardware.check_disk(here).status == OK
    assert not list(tmp_path.iterdir())
    assert hardware.check_disk({"TMPDIR": str(tmp_path / "missing")}).status == WARN, "the pod has no such folder"

    def fail(number: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    broken = hardware.check_disk(here)
    assert broken.status == FAIL and "Input/output error" in broken.detail and "drain the node" in broken.remedy


def test_a_disk_that_returns_something_else_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"something else")
    assert hardware.check_disk({"TMPDIR": str(tmp_path)}).status == FAIL


def test_a_check_that_does_not_end_fails_the_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(environ: object) -> Finding:
        released.wait(60)
        return Finding("hang", OK, "")

    monkeypatch.setattr(doctor, "PREFLIGHT_CHECKS", (hang,))
    problem = doctor.find_problem(doctor.preflight("Node", {}, seconds=0.1))
    released.set()
    assert problem is not None and problem.startswith("time limit: the checks did not end within 0.1 s -- ")


def test_preflight_levels() -> None:
    assert doctor.preflight("Off", {}) == []
    found = {finding.check for finding in doctor.preflight("Node", {})}
    assert found >= {"versions", "ports"}
    assert "torch internals" not in found, "no torch keeps a pod out of the world by its private names"


FINDINGS = [
    Finding("a", OK, "1 ms", rank=0),
    Finding("a", OK, "2 ms", rank=1),
    Finding("b", OK, "fine", rank=0),
    Finding("b", FAIL, "broken", "mend it", rank=1),
    Finding("c", WARN, "odd", "look", rank=0),
]


def test_findings_are_merged_and_counted() -> None:
    merged = doctor.merge_ranks(FINDINGS)
    assert [(finding.check, finding.rank) for finding in merged] == [("a", None), ("b", 1), ("c", 0)]
    assert merged[0].detail == "2 ranks; 1 ms"
    assert (worst_status(FINDINGS), find_exit_code(FINDINGS)) == (FAIL, 1)
    assert (worst_status(FINDINGS[:2]), find_exit_code(FINDINGS[4:])) == (OK, 0)
    assert to_json(FINDINGS)["status"] == FAIL
    table = render_table(merged)
    assert "fail  b  [rank 1] broken" in table
    assert "-> mend it" in table
    assert table.endswith("1 ok, 1 warn, 1 fail, 0 skip")


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ({(0, 1): 0.01, (0, 2): 0.01, (1, 2): 0.01}, []),
        ({(0, 1): 0.01, (0, 2): 0.5, (1, 2): 0.01}, [(0, 2)]),
        ({(0, 1): 0.001, (0, 2): 0.04, (1, 2): 0.001}, []),
        ({(0, 1): 5.0}, []),
    ],
)
def test_find_slow_pairs(seconds: dict[tuple[int, int], float], slow: list[tuple[int, int]]) -> None:
    assert selftest.find_slow_pairs(seconds) == slow


def test_pairs_and_clocks() -> None:
    assert selftest.list_pairs(3) == [(0, 1), (0, 2), (1, 2)]
    assert len(selftest.list_pairs(100)) == 100
    assert selftest.time_offsets([10.0, 11.0, 15.0]) == [-1.0, 0.0, 4.0]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert cli.main([]) == 0
    assert cli.main(["dance"]) == 2
    captured = capsys.readouterr()
    assert elasticjob.__version__ in captured.out
    assert "'dance' is not a command" in captured.err


@pytest.mark.gpu
def test_every_collective_on_nccl() -> None:
    import torch

    if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        pytest.skip("needs a CUDA device and NCCL")
    findings = doctor.run_local_world(clean_environment(), size=torch.cuda.device_count(), backend="nccl")
    assert {finding.check for finding in findings} >= set(selftest.TESTS)
    assert worst_status(findings) == OK, render_table(findings)
