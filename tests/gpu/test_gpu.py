"""`make gpu`: what sessions, snapshots and the doctor do on a real device, over real NCCL.

Each check runs in processes of its own, in a session of its own, with a limit: one that hangs, or leaves the device's
context broken, ends alone. All results go to one JSON file, which is written after each check. Variables: GPU_SECONDS
(for all checks), OUT (a file or a folder for the results), DRY=1 (the same code over gloo, without a device; with
FAKE=1 sessions use the backend of the project's other tests that behaves like NCCL).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu import report
from gpu.catalogue import CHECKS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DRY = os.environ.get("DRY") == "1"
ASKED = os.environ.get("ELASTICJOB_GPU") == "1"
_LEAST_SECONDS = 12.0  # a check is not begun with less
_PROBE = "import torch, sys; sys.exit(not (torch.cuda.is_available() and torch.distributed.is_nccl_available()))"


class Suite:
    """One run: its time, and its results so far."""

    def __init__(self) -> None:
        self._end = time.monotonic() + float(os.environ.get("GPU_SECONDS") or (3600 if DRY else 470))
        self._checks: list[dict[str, Any]] = []
        self._facts: dict[str, Any] = {}
        self._next: Running | None = None
        self._date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        out = Path(os.environ.get("OUT") or ROOT / ".work/gpu")
        self.file = out if out.suffix == ".json" else out / "gpu.json"
        self.file.parent.mkdir(parents=True, exist_ok=True)

    def prepare(self, name: str | None) -> None:
        """Start a check's process, which waits: it imports while another check runs."""
        self._next = None if name is None else Running(name)

    def take(self, name: str) -> Running:
        prepared, self._next = self._next, None
        if prepared is not None and prepared.name == name:
            return prepared
        if prepared is not None:
            prepared.discard()
        return Running(name)

    def close(self) -> None:
        if self._next is not None:
            self._next.discard()

    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def record(self, found: dict[str, Any]) -> None:
        if found["check"] == "facts":
            self._facts = found["measured"]
        self._checks.append(found)
        report.write_json(self.file, report.join(self._facts, self._checks, DRY, self._date))


@pytest.fixture(scope="module")
def suite() -> Iterator[Suite]:
    if not ASKED:
        pytest.skip("`make gpu` runs it, on a machine with a CUDA device")
    if not DRY and subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False).returncode:
        pytest.skip("torch finds no CUDA device with NCCL; DRY=1 runs the same code over gloo")
    found = Suite()
    yield found
    found.close()


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHECKS)
def test_on_device(name: str, suite: Suite, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    limit = min(CHECKS[name].seconds * (5 if DRY else 1), suite.seconds_left())
    if limit < _LEAST_SECONDS:
        suite.record(report.Report(name).dump() | {"skipped": "no time was left"})
        pytest.skip("no time is left: raise GPU_SECONDS")
    began = time.monotonic()
    check = suite.take(name)
    suite.prepare(find_next(request))
    problem = check.run(tmp_path, limit)
    found = report.read(name, tmp_path / "report.json") | {"seconds": round(time.monotonic() - began, 1)}
    if problem:
        found["failures"] = [*found["failures"], problem]
        found["output"] = [*found["output"], *tail(tmp_path / "log")]
    suite.record(found)
    missed = [f"{goal['name']}: {goal['value']}, wanted {goal['limit']}" for goal in found["goals"] if not goal["met"]]
    print(f"{name}: {found['measured']}" + "".join(f"\n  goal missed: {one}" for one in missed))
    if found["failures"]:
        pytest.fail("\n".join([*found["failures"], *found["output"][-12:]]), pytrace=False)


def find_next(request: pytest.FixtureRequest) -> str | None:
    """The check after this one."""
    items = request.session.items
    after = items[items.index(request.node) + 1 :]
    return next((item.callspec.params["name"] for item in after if hasattr(item, "callspec")), None)


class Running:
    """The process of one check. It imports torch, which takes seconds, and then waits until it is its turn."""

    def __init__(self, name: str) -> None:
        self.name = name
        # A short name: the folder of a control socket must fit into an address.
        self._scratch = tempfile.TemporaryDirectory(prefix="gpu-", dir="/tmp", ignore_cleanup_errors=True)
        self._log = Path(self._scratch.name) / "log"
        paths = [str(ROOT / "worker_image/src"), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {"PYTHONPATH": ":".join(paths), "TMPDIR": self._scratch.name, "PYTHONUNBUFFERED": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpu.run", name],
                env=os.environ | variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, folder: Path, limit: float) -> str | None:
        """Run it to its end or to its limit, and end what it leaves; what went wrong with the run itself."""
        try:
            self._process.communicate(f"{folder}\n".encode(), timeout=limit)
        except subprocess.TimeoutExpired:
            return f"did not end within {limit:.0f} s"
        except BrokenPipeError:
            pass  # it has ended before its turn
        finally:
            self._end()
            shutil.copy(self._log, folder / "log")
            self._scratch.cleanup()
        code = self._process.returncode
        return None if code == 0 else f"the check itself ended with code {code}"

    def discard(self) -> None:
        self._end()
        self._scratch.cleanup()

    def _end(self) -> None:
        kill_session(self._process.pid)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def kill_session(leader: int) -> None:
    """End every process of a session: a paused or hung one of a check, too."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                os.kill(int(folder.name), signal.SIGKILL)
        except (OSError, IndexError):
            continue


def tail(file: Path, lines: int = 12) -> list[str]:
    return [line[:300] for line in file.read_text(errors="replace").splitlines()[-lines:]]
