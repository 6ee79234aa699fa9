"""Children that another process forked, as the agent sees them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticjob.launch.fork_server import Child

pytestmark = pytest.mark.timeout(120)
FILES = 1100  # more than select() can look at


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * FILES:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * FILES), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(FILES)]
    yield
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_its_end_is_awaited_with_many_open_files(many_files: None) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input(); exit(7)"], stdin=subprocess.PIPE)
    child = Child(process.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    assert process.stdin is not None
    process.stdin.close()
    assert child.wait(30) == 1, "there is no input"
    process.returncode = child.returncode  # it is reaped


def test_a_worker_that_is_ordered_at_once_imports_no_compiler_either(tmp_path: Path) -> None:
    """As those of a session are: what the first optimizer of a process imports is there, for this one and the next."""
    (tmp_path / "train.py").write_text("import sys; print('torch._dynamo' in sys.modules)")
    (tmp_path / "agent.py").write_text(
        "import os, sys\n"
        "from elasticjob.launch import fork_server\n"
        "server = fork_server.ForkServer()\n"
        "server.fork()\n"
        "for _ in range(2):\n"
        "    worker = server.start((sys.executable, '-u', 'train.py'), os.environ, None, None)\n"
        "    print(worker.wait(100), flush=True)\n"
        "server.close()\n"
    )
    done = run_agent(tmp_path)
    assert done.stdout.split() == ["True", "0", "True", "0"], done.stderr


def run_agent(folder: Path, *search_path: Path) -> subprocess.CompletedProcess[str]:
    """`agent.py` in this folder, with these on its PYTHONPATH."""
    variables = os.environ | ({"PYTHONPATH": os.pathsep.join(map(str, search_path))} if search_path else {})
    command = [sys.executable, "agent.py"]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=110, check=True)


@pytest.mark.parametrize("warm", [True, False])
def test_a_worker_in_another_folder_has_nothing_of_the_first_one(tmp_path: Path, warm: bool) -> None:
    """As after an update of the code: the standby was made for the first one, and has its folder on PYTHONPATH."""
    told = (
        "import importlib.util, os, pytest, library\n"
        "print(os.getcwd()[-3:], library.NAME, importlib.util.find_spec('gone') is not None)\n"
    )
    for name in ("old", "new"):
        (tmp_path / name / "scripts").mkdir(parents=True)
        (tmp_path / name / "scripts/train.py").write_text(told)
        (tmp_path / name / "library.py").write_text(f"NAME = {name!r}\n")
    (tmp_path / "old/gone.py").touch()
    (tmp_path / "agent.py").write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "from elasticjob import env\n"
        "from elasticjob.launch import fork_server\n"
        "root = Path.cwd()\n"
        "env.CODE_PATH = str(root / 'old')\n"
        "os.chdir(root / 'old')\n"
        "server = fork_server.ForkServer()\n"
        f"{warm} and server.fork([str(root / 'old/scripts/train.py')])\n"
        "for name in ('old', 'new', 'old'):\n"
        "    command = (sys.executable, '-u', str(root / name / 'scripts/train.py'))\n"
        "    variables = {**os.environ, 'PYTHONPATH': str(root / name)}\n"
        "    print(server.start(command, variables, None, None, str(root / name)).wait(100), flush=True)\n"
        "server.close()\n"
    )
    done = run_agent(tmp_path, tmp_path / "old")
    old, new = ["old", "old", "True", "0"], ["new", "new", "False", "0"]
    assert done.stdout.split() == [*old, *new, *old], done.stderr
    assert ("modules imported before the workers start" in done.stderr) is warm


def test_variables_of_an_update_are_there_when_modules_are_imported(tmp_path: Path) -> None:
    """Many libraries read theirs then, and only then: those of torch and Hugging Face, for example."""
    (tmp_path / "library.py").write_text("import os\nSETTING, PID = os.environ.get('SETTING'), os.getpid()\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("import library\nprint(library.SETTING, library.PID)\n")
    (tmp_path / "agent.py").write_text(
        "import os, sys\n"
        "from elasticjob.launch import fork_server\n"
        "server = fork_server.ForkServer()\n"
        "server.fork(['code/train.py'])\n"
        "for given in ({}, {'COLOUR': 'red'}, {'SETTING': 'new'}, {'SETTING': 'new', 'COLOUR': 'red'}):\n"
        "    server.import_with(given)\n"
        "    command = (sys.executable, '-u', 'code/train.py')\n"
        "    print(server.start(command, os.environ | given, None, None).wait(100), flush=True)\n"
        "    server.end_leftovers()\n"
        "server.close()\n"
    )
    done = run_agent(tmp_path, tmp_path)
    settings, pids, codes = (done.stdout.split()[place::3] for place in range(3))
    assert (settings, codes) == (["None", "None", "new", "new"], ["0"] * 4), done.stderr
    assert pids[0] == pids[1] != pids[2] == pids[3], "a variable that no import has asked for needs no other ones"
    assert "left behind" not in done.stderr


def test_a_worker_whose_agent_has_stopped_waiting_for_it_ends_in_silence(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import json, os, socket\n"
        "from elasticjob.launch import fork_server\n"
        "server = fork_server.ForkServer()\n"
        "server.fork()\n"
        "ours, theirs = socket.socketpair()\n"
        "ours.close()\n"
        "order = json.dumps({'argv': ['train.py'], 'env': dict(os.environ)}).encode() + b'\\n'\n"
        "socket.send_fds(server._channel, [order], [1, 2, theirs.fileno()])\n"
        "theirs.close()\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)\n"
        "server.close()\n"
    )
    done = run_agent(tmp_path)
    assert done.stdout.split() == ["0"], done.stderr
    assert "Traceback" not in done.stderr
