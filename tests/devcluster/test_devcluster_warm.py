"""First processes of containers that are forked from one with their imports: as if they had been executed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster.runtime import sandbox, spawn, warm
from elasticjob_devcluster.system import processes

LOOK = """
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv, "name": __name__, "path": sys.path[:3], "cwd": os.getcwd(), "environ": dict(os.environ),
    "parent": os.getppid(), "session": os.getsid(0) == os.getpid(), "files": sorted(os.listdir("/proc/self/fd")),
    "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
    "host": os.uname().nodename, "encoding": sys.stdout.encoding,
}), flush=True)
if "fail" in sys.argv:
    raise ValueError("as it was asked to")
if "wait" in sys.argv:
    signal.pause()
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> Path:
    file = tmp_path / "bin" / "look"
    file.parent.mkdir()
    file.write_text(f"#!{sys.executable}\n{LOOK}")
    file.chmod(0o755)
    return file


@pytest.fixture
async def forks() -> AsyncIterator[warm.Forks]:
    forks = warm.Forks(["decimal"])
    await forks.await_imports()
    yield forks
    forks.close()


def spec_of(folder: Path, *argv: str, cwd: str = "", env: dict[str, str] | None = None) -> spawn.Spec:
    (folder / "scratch").mkdir(exist_ok=True)
    variables = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "LANG": "C.UTF-8", "WORD": "ü", **(env or {})}
    variables |= {processes.MARK_CLUSTER: "c", processes.MARK_NODE: "c/n", processes.MARK_CONTAINER: folder.name}
    return spawn.Spec("id", list(argv), variables, cwd or str(folder), "", "pod-0", str(folder / "scratch"))


class Ran:
    """A container that was started, and what it says."""

    def __init__(self, folder: Path, start: Any, spec: spawn.Spec) -> None:
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.pid: int = start(spec, sandbox.probe(), out.fileno(), err.fileno())

    def wait(self) -> tuple[int, str]:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), self.err.read_text()

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out.read_text())
        return found


async def test_a_script_sees_what_it_would_see_if_it_was_executed(forks: warm.Forks, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "look", "a", "b c", env={"PYTHONPATH": "/usr/share:/usr/lib"})
    ran = Ran(tmp_path, spawn.start, spec)
    assert ran.wait() == (3, "")
    executed = ran.said
    ran = Ran(tmp_path, forks.start, spec)
    assert ran.wait() == (3, "")
    assert ran.said == executed | {"files": ["0", "1", "2", "3"]}, "none of the tests' files, and that of the listing"
    assert executed["parent"] == os.getpid(), "so that the runtime learns how it ended"
    assert executed["host"] == ("pod-0" if sandbox.probe() != sandbox.Mode.REWRITE else os.uname().nodename)


async def test_what_it_started_is_found_by_its_marks_and_its_signal_is_told(forks: warm.Forks, tmp_path: Path) -> None:
    ran = Ran(tmp_path, forks.start, spec_of(tmp_path, "look", "wait", env={"LONG": "x" * 2000}))
    assert processes.find_marked(processes.MARK_CONTAINER, tmp_path.name) == [ran.pid]
    assert b"\0LONG=" + b"x" * 2000 + b"\0" in Path(f"/proc/{ran.pid}/environ").read_bytes()
    os.kill(ran.pid, signal.SIGTERM)
    assert ran.wait() == (-signal.SIGTERM, "")


async def test_failures_are_told_as_those_of_an_executed_one(forks: warm.Forks, tmp_path: Path) -> None:
    code, error = Ran(tmp_path, forks.start, spec_of(tmp_path, "look", "fail")).wait()
    assert (code, error.splitlines()[-1]) == (1, "ValueError: as it was asked to")
    with pytest.raises(spawn.StartError, match="working directory '/nowhere': no such file or directory"):
        Ran(tmp_path, forks.start, spec_of(tmp_path, "look", cwd="/nowhere"))
    assert Ran(tmp_path, forks.start, spec_of(tmp_path, "look")).wait() == (3, ""), "the next one starts"


async def test_without_the_process_that_forks_it_is_executed(forks: warm.Forks, tmp_path: Path) -> None:
    for pid in processes.descendants([os.getpid()]):
        if b"runtime.warm" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    assert Ran(tmp_path, forks.start, spec_of(tmp_path, "look")).wait() == (3, "")


@pytest.mark.parametrize(
    ("argv", "env", "suits"),
    [
        pytest.param(["look"], {}, True, id="a script of this interpreter"),
        pytest.param([sys.executable, "look"], {}, False, id="the interpreter"),
        pytest.param(["sh", "-c", "look"], {}, False, id="a shell"),
        pytest.param(["nothing"], {}, False, id="no program"),
        pytest.param(["look"], {"PYTHONUTF8": "1"}, False, id="a variable of the interpreter"),
        pytest.param(["look"], {"OMP_NUM_THREADS": "1"}, False, id="a variable that an import reads"),
    ],
)
def test_what_can_be_forked(tmp_path: Path, argv: list[str], env: dict[str, str], suits: bool) -> None:
    assert warm.Forks(["decimal"]).suits(spec_of(tmp_path, *argv, env=env)) is suits
    assert not warm.Forks().suits(spec_of(tmp_path, *argv, env=env))
