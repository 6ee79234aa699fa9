"""A table of ends: exit code and last words are those of the interpreter, and the agent is told the first message.

Each script is ended by the interpreter, by a warm worker and by a cold one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import Pods

pytestmark = pytest.mark.timeout(300)

AGENT = """
import json, os, sys
from elasticjob.launch import fork_server
server = fork_server.ForkServer()
if sys.argv[2] == "warm":
    server.fork()
for name in json.loads(sys.argv[1]):
    env = {**os.environ, "TORCHELASTIC_ERROR_FILE": f"{name} {sys.argv[2]}.json"}
    with open(f"{name} {sys.argv[2]}.err", "w") as errors:
        worker = server.start((sys.executable, "-u", f"{name}.py", "--local-rank=0"), env, None, errors)
        print(worker.wait(100), flush=True)
server.close()
"""


@dataclass(frozen=True)
class End:
    script: str
    message: str | None  # what the agent is told: its beginning
    exact: bool = True  # the log is the interpreter's to the letter


GROUP = "ExceptionGroup('several', [ValueError('one'), KeyError('two')])"
ENDS = {
    "well": End("pass", None),
    "exit": End("import sys; sys.exit()", None),
    "zero": End("import sys; sys.exit(0)", None),
    "number": End("import sys; sys.exit(42)", None),
    "words": End("raise SystemExit('bad loss')", "bad loss"),
    "object": End("raise SystemExit(['bad', 1])", "['bad', 1]"),
    "handled": End("try: 1 / 0\nexcept ZeroDivisionError: raise SystemExit(3)", "ZeroDivisionError: division by zero"),
    "unrelated": End("try: 1 / 0\nexcept ZeroDivisionError: raise SystemExit(3) from None", None),
    "arguments": End(
        "import argparse\nargparse.ArgumentParser().parse_args()",
        "arguments.py: error: unrecognized arguments: --local-rank=0",
    ),
    "value": End(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local-rank', choices=['x'])\np.parse_args()",
        "value.py: error: argument --local-rank: invalid choice",
    ),
    "raised": End("raise FloatingPointError('loss is nan')", "FloatingPointError: loss is nan"),
    "base": End("class Mine(BaseException): pass\nraise Mine('own')", "Mine: own"),
    "interrupt": End("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "group": End(f"raise {GROUP}", "ExceptionGroup: several (2 sub-exceptions): ValueError: one; KeyError: 'two'"),
    "speechless": End(
        "class Bad(Exception):\n  def __str__(self): raise ValueError('no text')\nraise Bad",
        "Bad: <its text cannot be read: ValueError>",
    ),
    "closed": End(
        "import sys\nsys.stdout.close(); sys.stderr.close()\nraise RuntimeError('after')", "RuntimeError: after", False
    ),
    "surrogate": End(r"raise RuntimeError('caf\udce9')", "RuntimeError: caf\udce9"),
    "hook": End(
        "import sys\ndef hook(*_): raise ValueError('in the hook')\nsys.excepthook = hook\nraise RuntimeError('first')",
        "RuntimeError: first",
    ),
    "syntax": End("def f(:\n  pass", "SyntaxError: "),
    "chained": End("try: 1 / 0\nexcept ZeroDivisionError: raise RuntimeError('then')", "RuntimeError: then"),
    "recursion": End("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded", False),
    "deep": End("import sys; sys.setrecursionlimit(60)\ndef f(): f()\nf()", "RecursionError: ", False),
    "big": End("raise RuntimeError('x' * 1_000_000 + ' the end')", "RuntimeError: xxx"),
    "missing": End("", f"OSError: {sys.executable}: can't open file '"),
}


@dataclass(frozen=True)
class Ended:
    code: int
    said: str
    message: str | None


class Launchers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, end in ENDS.items():
            if name != "missing":
                (folder / f"{name}.py").write_text(end.script)
        self.end = cache(self._end)

    def _end(self, how: str) -> dict[str, Ended]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("ELASTICJOB_", "PET_", "TORCH"))}
        if how == "interpreter":
            return {
                name: Ended(ran.returncode, ran.stderr, None)
                for name in ENDS
                for ran in [self._run([sys.executable, "-u", f"{name}.py", "--local-rank=0"], env)]
            }
        ran = self._run([sys.executable, "-c", AGENT, json.dumps(list(ENDS)), how], env)
        codes = [int(word) for word in ran.stdout.split()]
        return {name: self._read(name, how, code) for name, code in zip(ENDS, codes, strict=True)}

    def _run(self, command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, check=False)

    def _read(self, name: str, how: str, code: int) -> Ended:
        error = self.folder / f"{name} {how}.json"
        said = (self.folder / f"{name} {how}.err").read_text()
        return Ended(code, said, json.loads(error.read_text())["message"]["message"] if error.exists() else None)


@pytest.fixture(scope="module")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Launchers:
    return Launchers(tmp_path_factory.mktemp("ends"))


@pytest.mark.parametrize("how", ["warm", "cold"])
@pytest.mark.parametrize("name", ENDS)
def test_a_script_ends_as_it_does_by_itself_and_the_agent_knows_why(launchers: Launchers, name: str, how: str) -> None:
    if name == "group" and sys.version_info < (3, 11):
        pytest.skip("this Python has no groups")
    expected, found = launchers.end("interpreter")[name], launchers.end(how)[name]
    assert found.code == expected.code
    if ENDS[name].exact:
        assert found.said == expected.said
    wanted = ENDS[name].message
    assert found.message == wanted or (wanted and found.message and found.message.startswith(wanted))


def test_a_script_in_a_pipe_is_refused_because_the_next_start_would_find_none(tmp_path: Path) -> None:
    """`torchrun /dev/stdin` in a shell: a worker that is started again reads an empty script, and ends well."""
    error = tmp_path / "error.json"
    ran = subprocess.run(
        [sys.executable, "-u", "-m", "elasticjob.launch.standby", "run", "/dev/stdin"],
        input="print('ran')", env=os.environ | {"TORCHELASTIC_ERROR_FILE": str(error)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, ""), ran.stderr
    assert "'/dev/stdin' is a pipe" in ran.stderr
    assert "'/dev/stdin' is a pipe" in json.loads(error.read_text())["message"]["message"]


@pytest.mark.parametrize("launcher", ["elasticjob-run", "torchrun"])
@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        pytest.param("raise SystemExit('bad loss')", 1, "bad loss", id="words"),
        pytest.param(r"raise RuntimeError('caf\udce9')", 1, "RuntimeError: caf\ufffd", id="a broken name"),
    ],
)
def test_the_hub_hears_the_first_message(
    hub: FakeHub, pods: Pods, tmp_path: Path, launcher: str, script: str, code: int, message: str
) -> None:
    hub.set_size(1)
    (tmp_path / "train.py").write_text(script)
    pods.start("pod-0", str(tmp_path / "train.py"), launcher=launcher)
    failure = hub.wait_for(hub.failures, 120, "the failure")[0]
    assert (failure["exitCode"], failure["message"]) == (code, message)


UNEVEN = """
import sys, torch, torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, model = dist.get_rank(), DistributedDataParallel(torch.nn.Linear(2, 1))
with Join([model]):
    for _ in range(20 - rank):
        model(torch.ones(1, 2)).sum().backward()
print(f"rank {rank} has trained", flush=True)
if sys.argv[1] == "shapes":
    dist.all_reduce(torch.ones(1000 + 1000 * rank))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["join", "shapes"])
def test_ranks_with_different_amounts_of_data(hub: FakeHub, pods: Pods, tmp_path: Path, how: str) -> None:
    """torch's own `Join`; and a collective of different sizes, of which gloo makes an abort."""
    (tmp_path / "train.py").write_text(UNEVEN)
    members = [pods.start(f"pod-{i}", str(tmp_path / "train.py"), how) for i in range(2)]
    if how == "join":
        assert [member.wait(120) for member in members] == [0, 0]
        assert not hub.failures()
        return
    aborted = hub.wait_for(lambda: [one for one in hub.failures() if "signal" in one], 120, "the abort")[0]
    said = next(member.log for member in members if "terminate called" in member.log)
    assert aborted["signal"] == "SIGABRT"
    assert f"rank {aborted['rank']} has trained" in said, "whose words gloo's are"
    assert "what():  " in said
