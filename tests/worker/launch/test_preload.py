"""The imports of a script, made before its workers start: by which process, and what remains for the workers."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticjob.launch import preload
from elasticjob.launch.preload import Footprint, find_harm, merge_environment
from worker.fake_hub import FakeHub
from worker.fake_pods import Pods

pytestmark = pytest.mark.timeout(180)
PLAIN = Footprint()


@pytest.mark.parametrize(
    ("after", "module", "asked", "expected"),
    [
        pytest.param(PLAIN, "a.b", (), None, id="nothing"),
        pytest.param(Footprint(threads=2, python_threads=2), "a.b", (), "a.b starts a thread", id="a thread"),
        pytest.param(Footprint(threads=2), "a.b", (), "a.b starts a native thread", id="a native thread"),
        pytest.param(Footprint(threads=2), "scipy.linalg", (), None, id="a native thread that survives a fork"),
        pytest.param(Footprint(2, python_threads=2), "scipy", (), "scipy starts a thread", id="one that does not"),
        pytest.param(Footprint(children=1), "a", (), "a starts a process", id="a process"),
        pytest.param(Footprint(sockets=1), "a", (), "a opens a socket", id="a socket"),
        pytest.param(Footprint(files=1), "a", (), "a opens a file", id="a file"),
        pytest.param(Footprint(pipes=1), "a", (), "a opens a pipe or a queue of events", id="a pipe"),
        pytest.param(Footprint(devices=1, threads=5), "a", (), "a opens a device", id="a device"),
        pytest.param(PLAIN, "a", ("RANK",), "a reads RANK", id="a rank"),
        pytest.param(PLAIN, "lightning.fabric.utilities.rank_zero", ("RANK",), None, id="a rank that is mended"),
    ],
)  # fmt: skip
def test_what_keeps_a_module_from_being_imported_ahead(
    after: Footprint, module: str, asked: tuple[str, ...], expected: str | None
) -> None:
    assert find_harm(PLAIN, after, module, asked) == expected


@pytest.mark.parametrize(
    ("before", "after", "ordered", "expected"),
    [
        pytest.param({"A": "1"}, {"A": "1"}, {"A": "1", "RANK": "0"}, {"A": "1", "RANK": "0"}, id="nothing changed"),
        pytest.param({}, {"A": "1"}, {}, {"A": "1"}, id="an import set one"),
        pytest.param({"A": "1"}, {"A": "2"}, {"A": "1"}, {"A": "2"}, id="an import changed one"),
        pytest.param({"A": "1"}, {}, {"A": "1"}, {}, id="an import removed one"),
        pytest.param({}, {"A": "1"}, {"A": "3"}, {"A": "3"}, id="the launcher set it too"),
        pytest.param({"A": "1"}, {"A": "2"}, {}, {}, id="the launcher removed it"),
    ],
)
def test_the_environment_of_a_worker(
    before: dict[str, str], after: dict[str, str], ordered: dict[str, str], expected: dict[str, str]
) -> None:
    assert merge_environment(before, after, ordered) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({}, {}, [], id="none"),
        pytest.param({}, {"READ": "1", "COLOUR": "red"}, ["READ"], id="one that an import has read"),
        pytest.param({"READ": "1"}, {"READ": "1"}, [], id="the same as before"),
        pytest.param({"READ": "1"}, {}, ["READ"], id="no more"),
        pytest.param({}, {"SET": "0"}, [], id="as in the environment"),
        pytest.param({"SET": "1"}, {}, ["SET"], id="back to the environment"),
        pytest.param({}, {"TORCH_LOGS": "all", "LD_PRELOAD": "x"}, ["LD_PRELOAD", "TORCH_LOGS"], id="read unseen"),
    ],
)
def test_which_variables_change_what_is_imported(
    before: dict[str, str], after: dict[str, str], expected: list[str]
) -> None:
    assert preload.find_stale(before, after, {"READ", "SET"}, {"SET": "0"}) == expected


SCRIPT = """
import quiet
from lazy import late
{imports}
import json, os, sys, torch.distributed as dist
dist.init_process_group("gloo")
with open("said-%d.json" % dist.get_rank(), "w") as file:
    said = {{"pid": os.getpid(), "quiet": quiet.PID, "late": late, {more} "set": os.environ.get("SET_BY_IMPORT")}}
    json.dump(said, file)
dist.destroy_process_group()
"""
LIBRARIES = {
    "collecting": "import gc\nTHRESHOLDS, ENABLED = gc.get_threshold(), gc.isenabled()\n",
    "choosy": "import gc\ngc.set_threshold(5000, 7, 9)\ngc.disable()\n",
    "quiet": "import os\nPID = os.getpid()\nos.environ['SET_BY_IMPORT'] = 'yes'\n",
    "lazy": "import os\ndef __getattr__(name):\n    if name != 'late': raise AttributeError(name)\n"
    "    globals()['late'] = os.getpid()\n    return late\n",
    "threaded": "import os, threading\nPID = os.getpid()\n"
    "threading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "over": "import os, threaded\nPID = os.getpid()\n",
    "over_log": "import os, logged\nPID = os.getpid()\n",
    "reading": "import os, subprocess\nwith open(os.__file__) as file, subprocess.Popen('cat', stdin=-1) as child:\n"
    "    import wsgiref.headers\n    child.stdin.close()\nPID = os.getpid()\n",
    "ranked": "import os\nPID, RANK = os.getpid(), os.environ.get('RANK')\n",
    "logged": "import os\nLOG = open('lib.log', 'a')\nPID = os.getpid()\n",
    "locked": "import fcntl, os\nLOCK = open('lock', 'w')\nfcntl.flock(LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    "PID = os.getpid()\n",
    "kept": "import os, sqlite3\nDB = sqlite3.connect('lib.db')\nDB.execute('create table if not exists t (x)')\n"
    "PID = os.getpid()\n",
    "looped": "import os, select\nLOOP = select.epoll()\nPID = os.getpid()\n",
    "deadly": "import os\nif 'RANK' not in os.environ: os.abort()\nPID = os.getpid()\n",
    "deferred": "import importlib.util, sys\nspec = importlib.util.find_spec('threaded')\n"
    "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
    "threaded = sys.modules['threaded'] = importlib.util.module_from_spec(spec)\n"
    "spec.loader.exec_module(threaded)\n"
    "def __getattr__(name): return getattr(threaded, name)\n",
    "optional": "import os\ntry:\n    import threaded\nexcept ImportError:\n    threaded = None\nPID = os.getpid()\n",
}


def run_script(pods: Pods, tmp_path: Path, imports: str = "", more: str = "", **env: str) -> tuple[dict[str, Any], str]:
    """What a worker of a pod says of its imports, and the pod's log."""
    site = tmp_path / "libraries"
    site.mkdir()
    for name, text in LIBRARIES.items():
        (site / f"{name}.py").write_text(text)
    folder = tmp_path / "script"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT.format(imports=imports, more=more))
    variables: dict[str, str | None] = {"PYTHONPATH": str(site), **env}
    pod = pods.start("pod-0", str(folder / "train.py"), env=variables)
    code = pod.wait(120)
    said = next((file for file in [*tmp_path.rglob("said-0.json"), *Path.cwd().glob("said-0.json")]), None)
    assert code == 0, pod.log
    assert said is not None, pod.log
    return json.loads(said.read_text()), pod.log


def test_the_imports_of_a_script_are_made_before_its_worker(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    hub.set_size(1)
    said, log = run_script(pods, tmp_path)
    assert said["quiet"] == said["late"] != said["pid"], "one process imported both, before the worker"
    assert said["set"] == "yes", "what an import set is there"
    assert "modules imported before the workers start" in log


def test_what_elasticjob_loads_on_first_use_is_loaded_before_the_worker(
    hub: FakeHub, pods: Pods, tmp_path: Path
) -> None:
    hub.set_size(1)
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nAHEAD = sorted(sys.modules)\nimport torch.distributed.fsdp\nimport elasticjob\n"
        "if __name__ == '__main__':\n  print('ahead:', *AHEAD, elasticjob.Checkpointer.__name__, elasticjob.init)\n"
    )
    pod = pods.start("pod-0", str(script))
    assert pod.wait(120) == 0, pod.log
    ahead = next(line for line in pod.log.splitlines() if line.startswith("ahead: ")).split()
    assert {"elasticjob.checkpoint.checkpointer", "elasticjob.context.setup", "torch.distributed.fsdp"} <= set(ahead)


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        pytest.param("quiet", [list(gc.get_threshold()), True], id="as Python does"),
        pytest.param("choosy", [[5000, 7, 9], False], id="as a library wants"),
    ],
)
def test_garbage_is_collected_in_the_script_and_not_during_the_imports(
    hub: FakeHub, pods: Pods, tmp_path: Path, library: str, expected: list[Any]
) -> None:
    hub.set_size(1)
    more = (
        '"at_import": collecting.THRESHOLDS, "frozen": gc.get_freeze_count(), '
        '"now": [gc.get_threshold(), gc.isenabled()], '
    )
    said, _ = run_script(pods, tmp_path, f"import collecting\nimport {library}\nimport gc", more)
    assert said["at_import"][0] > 10**9, "no import is interrupted by a collection"
    assert said["now"] == expected
    assert said["frozen"] > 100_000, "no collection looks at what was imported, nor copies its pages"


def test_it_can_be_turned_off(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    hub.set_size(1)
    said, log = run_script(pods, tmp_path, **{preload.VARIABLE: "0"})
    assert said["quiet"] == said["late"] == said["pid"]
    assert "imported before" not in log


@pytest.mark.parametrize(
    ("library", "why"),
    [
        pytest.param("threaded", "threaded starts a thread", id="a thread", marks=pytest.mark.long),
        pytest.param("over", "threaded starts a thread", id="a thread in what it imports", marks=pytest.mark.long),
        pytest.param("optional", "threaded starts a thread", id="a thread in what it may do without"),
        pytest.param("ranked", "ranked reads RANK", id="it looks for its rank"),
        pytest.param("logged", "logged opens a file", id="it has a log"),
        pytest.param("over_log", "logged opens a file", id="a log in what it imports", marks=pytest.mark.long),
        pytest.param("locked", "locked opens a file", id="it has a lock", marks=pytest.mark.long),
        pytest.param("kept", "kept opens a file", id="it has a database", marks=pytest.mark.long),
        pytest.param("looped", "looped opens a pipe or a queue of events", id="it waits for events"),
        pytest.param("deadly", None, id="it ends the process"),
    ],
)
def test_what_does_harm_is_left_to_the_worker(
    hub: FakeHub, pods: Pods, tmp_path: Path, library: str, why: str | None
) -> None:
    hub.set_size(1)
    more = f'"other": {library}.PID, "rank": getattr({library}, "RANK", None), '
    said, log = run_script(pods, tmp_path, f"import {library}", more)
    assert said["other"] == said["pid"]
    if why is not None:
        assert said["quiet"] != said["pid"], "what came before it is imported ahead all the same"
        assert f"the workers make some of their imports themselves: {why}." in log
    assert said["rank"] == ("0" if library == "ranked" else None)
    assert "Traceback" not in log


def test_what_an_import_has_for_a_moment_does_no_harm(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    """A file is open while the codec of its encoding is imported."""
    hub.set_size(1)
    said, log = run_script(pods, tmp_path, "import reading", '"other": reading.PID, ')
    assert said["other"] == said["quiet"] != said["pid"]
    assert "the workers make" not in log


def test_a_module_that_is_loaded_late_is_the_workers(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    hub.set_size(1)
    said, log = run_script(pods, tmp_path, "import deferred", '"other": deferred.PID, ')
    assert said["other"] == said["pid"] != said["quiet"]
    assert "the workers make" not in log, "what it would do is harmless there"


FINDERS = """
import importlib.abc, importlib.util, sys
from pathlib import Path

class Made(importlib.abc.Loader):
    def exec_module(self, module):
        module.BY = self.by

class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name, by):
        self.name, self.loader = name, Made()
        self.loader.by = by
    def find_spec(self, fullname, path, target=None):
        return importlib.util.spec_from_loader(fullname, self.loader) if fullname == self.name else None

class OfOldTimes:
    def find_module(self, name, path=None):
        return None

Path("lib").mkdir()
Path("lib/made.py").write_text("BY = 'a file'")
sys.path.append("lib")
sys.meta_path[:] = [OfOldTimes(), Finder("made", "a finder"), *sys.meta_path, Finder("late", "the last finder")]
from elasticjob.launch import leading, preload
steps = [leading.Import(name) for name in ("made", "late", "wsgiref")]
outcome = preload.run(steps, preload.Script(("train.py",), Path("train.py"), str(Path("script").resolve())))
import made, late, wsgiref
print(outcome, made.BY, late.BY, vars(made.__loader__).keys(), sep=" | ")
"""


def test_every_finder_is_asked_in_its_turn(tmp_path: Path) -> None:
    (tmp_path / "finders.py").write_text(FINDERS)
    ran = subprocess.run(
        [sys.executable, "finders.py"], cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False
    )
    expected = "Outcome(done=3, harm=None) | a finder | the last finder | dict_keys(['by'])"
    assert ran.stdout.strip() == expected, ran.stderr


MISSING = "ModuleNotFoundError: No module named"
ATTEMPTS = """
import sys
from pathlib import Path
for name, text in {"broken": "import not_there", "needy": "raise ImportError('no')", "wrong": "raise ValueError('no')",
                   "there": "", "pack/__init__": "", "pack/inner": ""}.items():
    Path("lib", name).parent.mkdir(exist_ok=True, parents=True)
    Path("lib", name + ".py").write_text(text)
sys.path.append("lib")
from elasticjob.launch.leading import Attempt, Import
from elasticjob.launch import preload
def read(text): return Import(text.partition(":")[0], tuple(text.split(":")[1:]))
steps = [*(Attempt(tuple(map(read, names.split("+")))) for names in sys.argv[1:]), Import("there")]
print(preload.run(steps, preload.Script(("train.py",), Path("train.py"), str(Path("script").resolve()))))
print(*(name for name in ("there", "json.tool", "pack") if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("attempts", "done", "harm"),
    [
        pytest.param(["not_there"], 2, None, id="missing"),
        pytest.param(["not_there.at.all"], 2, None, id="its package is missing"),
        pytest.param(["pack.not_there"], 2, None, id="missing in its package"),
        pytest.param(["not_there+wrong", "not_there"], 3, None, id="nothing is tried after it"),
        pytest.param(["pack:not_there+wrong"], 2, None, id="a name is missing"),
        pytest.param(["pack:inner+wrong"], 0, "ValueError: no", id="a module of a package is there"),
        pytest.param(["pack+broken"], 0, f"{MISSING} 'not_there'", id="what it needs is missing"),
        pytest.param(["needy"], 0, "ImportError: no", id="it fails halfway"),
        pytest.param(["pack", "wrong"], 1, "ValueError: no", id="another mistake"),
    ],
)  # fmt: skip
def test_a_script_can_do_without_some_modules(tmp_path: Path, attempts: list[str], done: int, harm: str | None) -> None:
    (tmp_path / "attempts.py").write_text(ATTEMPTS)
    ran = subprocess.run(
        [sys.executable, "attempts.py", *attempts],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said, *loaded = ran.stdout.splitlines()
    assert said == str(preload.Outcome(done, harm)), ran.stderr
    assert ("there" in loaded[0].split()) is (harm is None)


def test_an_import_that_fails_is_the_scripts_own_error(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    hub.set_size(1)
    (tmp_path / "train.py").write_text("import json\nimport not_a_module_xyz\n")
    pods.start("pod-0", str(tmp_path / "train.py"))
    failure = hub.wait_for(hub.failures, 120, "the failure")[0]
    assert failure["message"] == "ModuleNotFoundError: No module named 'not_a_module_xyz'"
    assert failure["traceback"].count("File ") == 1
