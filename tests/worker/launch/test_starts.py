"""A table of starts: whatever a script can see of its own start is what the interpreter alone would show it.

Each row is started by the interpreter, by a warm start and by a cold one. What a warm start keeps is named here.
What torch leaves in a process is seen by all rows of one place. A standby takes seconds of processor time to import it,
so those of the other places import nothing: they show what the launcher's own surroundings leave. The long form imports
torch in all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import py_compile
import signal
import subprocess
import sys
import zipapp
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import ROOT, Pods

pytestmark = pytest.mark.timeout(300)
LOOK = ROOT / "tests" / "worker" / "programs" / "ej_look.py"

# Starts these commands from one agent, as torch's agent would, and prints their exit codes. "light" is a warm start
# whose standby finds an empty torch.
AGENT = """
import json, os, sys, types
from elasticjob.launch import fork_server, process
server = fork_server.ForkServer()
if sys.argv[2] == "light":
    sys.modules |= {name: types.ModuleType(name) for name in ("torch", "torch.distributed", "torch._dynamo")}
if sys.argv[2] != "cold":
    server.fork(inherited=process.find_inherited())
for command, out in json.loads(sys.argv[1]):
    env = {**os.environ, "LOOK_OUT": out}
    print(server.start((sys.executable, "-u", *command), env, None, None).wait(100), flush=True)
server.close()
"""


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """As from a shell in the foreground: one in the background ignores SIGINT, and nohup SIGHUP, unlike a launcher."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGHUP, before[1])


def make(folder: Path) -> None:
    """The script, in all the forms of the table."""
    text = LOOK.read_text()
    for name in ("app/__main__.py", "train.py", "package/train.py", "sub dir é/tr ain.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "package" / "__init__.py").write_text("")
    zipapp.create_archive(folder / "app", folder / "app.pyz")
    py_compile.compile(str(folder / "train.py"), cfile=str(folder / "bare.pyc"))
    (folder / "suffixless").write_bytes((folder / "bare.pyc").read_bytes())
    (folder / "link.py").symlink_to(folder / "sub dir é" / "tr ain.py")
    (folder / "linked").symlink_to(folder / "sub dir é")
    (folder / "latin.py").write_bytes(f"# -*- coding: latin-1 -*-\nTEXT = 'é'\n{text}".encode("latin-1"))
    (folder / "bom.py").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (folder / "crlf.py").write_bytes(text.replace("\n", "\r\n").encode())
    (folder / "shebang.py").write_text(f"#!/usr/bin/env python3\n{text}")
    (folder / "bin").mkdir()
    (folder / "bin" / "train").write_text(
        f"#!{sys.executable}\n# -*- coding: utf-8 -*-\n{text}"
    )  # as of an entry point
    (folder / "threads.py").write_text(
        "import os, torch\nwith open(os.environ['LOOK_OUT'], 'w') as file:\n"
        "    file.write(f'{torch.get_num_threads()} {torch.get_num_interop_threads()}')\n"
    )
    (folder / "run.sh").write_text(f'export PYTHONUNBUFFERED=1\n{sys.executable} train.py "$@"\n')
    (folder / "future.py").write_text(f"from __future__ import annotations\n{text}")


STARTS: dict[str, tuple[str, ...]] = {
    "a file": ("train.py", "--lr", "0.5", ""),
    "an absolute path": ("{folder}/train.py",),
    "a relative path": ("./train.py",),
    "a path upwards": ("app/../train.py",),
    "a name with spaces": ("sub dir é/tr ain.py", "a b", "ü"),
    "a link to a file": ("link.py",),
    "a link to a folder": ("linked/tr ain.py",),
    "a folder": ("app", "--x"),
    "a folder by a path": ("{folder}/linked/../app",),
    "this folder": (".",),
    "an archive": ("app.pyz", "--x"),
    "byte code": ("bare.pyc",),
    "byte code under another name": ("suffixless",),
    "a module": ("-m", "train", "--x"),
    "a module of a package": ("-m", "package.train", "--x"),
    "a package": ("-m", "app"),
    "latin-1": ("latin.py",),
    "a byte order mark": ("bom.py",),
    "carriage returns": ("crlf.py",),
    "the future in the script": ("future.py",),
    "a shebang": ("shebang.py", "--x"),
    "a console script": ("{folder}/bin/train", "--x"),
}


@dataclass(frozen=True)
class Place:
    """Where a launcher runs, which is an interpreter of its own, and what is started there."""

    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "."
    options: tuple[str, ...] = ()  # of the launcher's interpreter
    redirected: str = ""  # files of the launcher, in words of the shell
    within: tuple[str, ...] = ()  # a command that runs the launcher
    unset: tuple[str, ...] = ()
    rows: tuple[str, ...] = ("a file", "a module of a package", "a folder")


# Everything but the folder of the test.
READ_ONLY = (
    'mount --make-rprivate / && mount --bind "{folder}" "{folder}" && mount -o remount,ro,bind / && cd . && exec "$@"'
)
PLACES = {
    "plain": Place(rows=tuple(name for name in STARTS if name != "this folder")),
    "in a folder": Place(cwd="app", rows=("this folder",)),
    "no encoding": Place({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
    "LC_ALL=C": Place({"LC_ALL": "C"}),
    "C.UTF-8": Place({"LC_ALL": "C.UTF-8"}),
    "an encoding": Place({"PYTHONIOENCODING": "latin-1:replace"}),
    "a safe path": Place({"PYTHONSAFEPATH": "1", "PYTHONPATH": "{folder}/package:{folder}"}),
    "a path": Place({"PYTHONPATH": "{folder}/package:{folder}"}),
    "optimized": Place({"PYTHONOPTIMIZE": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}),
    "warnings": Place({"PYTHONWARNINGS": "ignore::DeprecationWarning"}),
    "development": Place({"PYTHONDEVMODE": "1"}),
    "a launcher with options": Place(options=("-O", "-X", "dev", "-B", "-W", "ignore"), rows=("a file",)),
    "more open files": Place(redirected="7</dev/null 8>/dev/null", rows=("a file",)),
    "no home": Place({"HOME": ""}, rows=("a file",)),
    "a user without a name or a home": Place(
        within=("unshare", "--user", "--map-user=54321", "--map-group=54321"), unset=("HOME",), rows=("a file",)
    ),
    "a read-only root": Place(within=("unshare", "--mount", "sh", "-c", READ_ONLY, "sh"), rows=("a file",)),
}
SELDOM = ("C.UTF-8", "a path", "warnings", "development", "no home")  # others take the same ways
ROWS = [
    pytest.param(place, row, marks=[pytest.mark.long] if place in SELDOM else [])
    for place in PLACES
    for row in PLACES[place].rows
]


@dataclass(frozen=True)
class Seen:
    """What a script has seen, or how it failed."""

    code: int
    seen: dict[str, Any]
    log: str


WITH_TORCH = "plain"


class Launchers:
    """All rows of one place, started once by each launcher."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make(folder)
        self.start = cache(self._start)

    def _start(self, place: str, how: str) -> dict[str, Seen]:
        here = PLACES[place]
        orders = [
            (
                [word.format(folder=self.folder) for word in STARTS[row]],
                str(self.folder / f"{place} {how} {row}.json"),
            )
            for row in here.rows
        ]
        if how == "interpreter":
            runs = [self.run(here, [sys.executable, "-u", *command], LOOK_OUT=out) for command, out in orders]
            codes, logs = [ran.returncode for ran in runs], [ran.stderr for ran in runs]
        else:
            kind = "light" if how == "warm" and place != WITH_TORCH else how.partition(" ")[0]
            ran = self.run(here, [sys.executable, *here.options, "-c", AGENT, json.dumps(orders), kind])
            codes, logs = [int(word) for word in ran.stdout.split()], [ran.stderr] * len(orders)
        assert len(codes) == len(orders), logs
        return {
            row: Seen(code, read(Path(out)), log)
            for row, code, log, (_, out) in zip(here.rows, codes, logs, orders, strict=True)
        }

    def run(self, place: Place, command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")
        env = {key: os.environ[key] for key in kept if key in os.environ}
        env |= {key: value.format(folder=self.folder) for key, value in place.env.items()}
        env = {key: value for key, value in env.items() if key not in place.unset}
        within = [word.replace("{folder}", str(self.folder)) for word in place.within]
        if within and subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
            pytest.skip(f"{within[:2]} is not allowed here")
        return subprocess.run(
            [*within, "sh", "-c", f'exec "$@" {"" if "LOOK_OUT" in more else place.redirected}', "sh", *command],
            env={"OMP_NUM_THREADS": "1", **env, "LOCAL_RANK": "0", **more},
            cwd=self.folder / place.cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            start_new_session=True,
            check=False,
        )


def read(file: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        found: dict[str, Any] = json.loads(file.read_text())
        found["environ"].pop("LOOK_OUT")
        return found
    return {}


@pytest.fixture(scope="module")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Launchers:
    return Launchers(tmp_path_factory.mktemp("starts"))


def find_differences(seen: dict[str, Any], expected: dict[str, Any], how: str) -> dict[str, tuple[Any, Any]]:
    """What a script saw, and what it should have seen."""
    if how != "cold":
        own = len(seen["warnings"]) - len(expected["warnings"])  # those of torch come before
        seen = seen | {"warnings": seen["warnings"][own:]}
    return {key: (seen[key], value) for key, value in expected.items() if seen[key] != value}


@pytest.mark.parametrize("how", ["warm", "cold", pytest.param("warm with torch", marks=pytest.mark.long)])
@pytest.mark.parametrize(("place", "row"), ROWS)
def test_a_script_sees_what_the_interpreter_shows_it(launchers: Launchers, place: str, row: str, how: str) -> None:
    expected = launchers.start(place, "interpreter")[row]
    found = launchers.start(place, how)[row]
    assert expected.code == 0, expected.log
    assert found.code == 0, found.log
    assert not find_differences(found.seen, expected.seen, how)


def test_torch_uses_as_many_threads(launchers: Launchers) -> None:
    place = Place({"OMP_NUM_THREADS": "1"})
    outs = [str(launchers.folder / f"threads {how}") for how in ("interpreter", "warm")]
    plain = launchers.run(place, [sys.executable, "-u", "threads.py"], LOOK_OUT=outs[0])
    warm = launchers.run(place, [sys.executable, "-c", AGENT, json.dumps([(["threads.py"], outs[1])]), "warm"])
    assert plain.returncode == 0 and warm.stdout.split() == ["0"], (plain.stderr, warm.stderr)
    said = [Path(out).read_text() for out in outs]
    assert said[0] == said[1] and said[0].startswith("1 ")


@pytest.mark.parametrize("how", ["warm", "cold"])
def test_a_script_can_use_its_main_module(tmp_path: Path, how: str) -> None:
    """Its classes are pickled, processes are spawned, it starts itself again, and a thread outlives its last line."""
    text = (LOOK.parent / "ej_main_module.py").read_text()
    for name in ("train.py", "package/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    commands = [["train.py"], ["-m", "package.train"]]
    orders = [([*command, f"out{number}"], "unused") for number, command in enumerate(commands)]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ELASTICJOB_", "PET_"))}
    ran = subprocess.run(
        [sys.executable, "-c", AGENT, json.dumps(orders), how],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert ran.stdout.split() == ["0"] * len(orders), ran.stderr
    assert [(tmp_path / f"out{number}").read_text() for number in range(len(orders))] == [
        "__main__ __main__ Own\n"
    ] * len(orders)


@pytest.mark.parametrize("how", ["light", "cold", pytest.param("warm", marks=pytest.mark.long)])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_launcher_without_standard_files_starts_workers(tmp_path: Path, how: str, closed: str) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nprint('out'); sys.stderr and print('err', file=sys.stderr)\n"
        "with open('said', 'w') as file: print(sys.stdin and sys.stdin.read(), file=file)\n"
    )
    agent = AGENT.replace("print(server.start", "open('code', 'w').write(str(server.start").replace(
        ", flush=True)", "))"
    )
    orders = json.dumps([(["train.py"], "out")])
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", agent, orders, how]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ELASTICJOB_", "PET_"))}
    ran = subprocess.run(
        command,
        env=env,
        cwd=tmp_path,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=200,
        check=False,
    )
    assert (tmp_path / "code").read_text() == "0", ran
    assert (tmp_path / "said").read_text() in ("\n", "None\n")
    assert "cold" not in ran.stderr
    assert ("out" in ran.stdout.split()) is (">&-" not in closed.split())
    assert ("err" in ran.stderr.split()) is ("2>&-" not in closed)


# Through both launchers, to the end of a job, with the imports that they make ahead.
SET_BY_TORCHRUN = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
}
WHOLE = ("latin-1", "a module of a package", "a folder", "byte code")


@pytest.mark.parametrize("launcher", ["elasticjob-run", pytest.param("torchrun", marks=pytest.mark.long)])
@pytest.mark.parametrize("row", WHOLE)
def test_a_worker_sees_the_same_but_for_its_channel_to_the_agent(
    hub: FakeHub, launchers: Launchers, launcher: str, row: str
) -> None:
    hub.set_size(1)
    expected = launchers.start("plain", "interpreter")[row].seen
    folder = launchers.folder
    out = folder / f"{launcher} {row}.json"
    command = [word.format(folder=folder) for word in STARTS[row]]
    of_python = {name: None for name in os.environ if name.startswith("PYTHON")}
    with Pods(folder, hub.url, warm=False) as pods:
        pod = pods.start("pod-0", *command, launcher=launcher, env={**of_python, "LOOK_OUT": str(out)})
        assert pod.wait(120) == 0, pod.log
        given = pods.environment("pod-0")
    assert "cold" not in pod.log
    seen = read(out)
    differences = find_differences(seen, expected, "warm")
    assert differences.keys() == {"files", "threads", "environ"}
    assert seen["files"].keys() - {"0", "1", "2"} == {"3", "4"}, "the channel, and the file for its stacks"
    assert seen["threads"] == [["MainThread", "elasticjob-control"], 2]
    set_by_launcher = seen["environ"].keys() - given.keys() - of_python.keys()
    assert {name for name in set_by_launcher if not name.startswith(("TORCH", "ELASTICJOB_"))} <= SET_BY_TORCHRUN


OTHERS = {
    "a shell": ("bash", "run.sh", "--lr", "a b"),
    "-c": (sys.executable, "-c", "exec(compile(open('train.py').read(), 'train.py', 'exec'))", "--lr"),
    "options of python": (sys.executable, "-O", "-X", "utf8=0", "-W", "error", "train.py"),
}


@pytest.mark.parametrize("command", OTHERS.values(), ids=OTHERS)
def test_a_command_that_is_not_started_as_python_sees_its_own_start(
    hub: FakeHub, launchers: Launchers, tmp_path: Path, command: tuple[str, ...]
) -> None:
    hub.set_size(1)
    folder, plain, out = launchers.folder, tmp_path / "plain.json", tmp_path / "worker.json"
    ran = launchers.run(PLACES["plain"], list(command), LOOK_OUT=str(plain))
    assert ran.returncode == 0, ran.stderr
    of_python = {name: None for name in os.environ if name.startswith("PYTHON")}
    with Pods(folder, hub.url, warm=False) as pods:
        env = {**of_python, "LOOK_OUT": str(out)}
        pod = pods.start("pod-0", "--no-python", *command, launcher="elasticjob-run", env=env)
        assert pod.wait(120) == 0, pod.log
    seen, expected = read(out), read(plain)
    assert find_differences(seen, expected, "cold").keys() == {"environ", "files"}
    assert seen["files"].keys() == expected["files"].keys(), "a pipe, and the pod's log"


@pytest.mark.parametrize("launcher", ["torch.distributed.run", "torch.distributed.launch"])
def test_what_argparse_says_is_told_whatever_module_is_the_launcher(tmp_path: Path, launcher: str) -> None:
    """The older launcher passes an argument that most scripts refuse."""
    script = tmp_path / "train.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    arguments = () if launcher == "torch.distributed.launch" else ("--local-rank=0",)
    with FakeHub(size=1) as hub, Pods(tmp_path, hub.url, warm=False) as pods:
        pods.start("pod-0", "-m", launcher, str(script), *arguments, launcher="python")
        hub.wait_for(hub.failures, what="the failure of the script")
    assert hub.failures()[0]["message"] == "train.py: error: unrecognized arguments: --local-rank=0"
