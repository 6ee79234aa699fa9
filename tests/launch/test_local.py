"""`kubectl elasticjob local`: a script on this machine, changed from a second terminal, and its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from elasticjob_devcluster.system import processes
from elasticjob_operator.cli.root import run
from operator_fixture import stop_process, wait_for

SCRIPT = """
import os, sys, time
from pathlib import Path
import beside
print("mine", os.environ.get("MINE"), flush=True)
print("world", os.environ["WORLD_SIZE"], flush=True)
while not Path("stop").exists():
    time.sleep(0.05)
sys.exit(int(sys.argv[1]))
"""
LINE = (sys.executable, "-m", "elasticjob_operator.cli")


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("local_programs")
def test_a_second_terminal_and_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").touch()
    (tmp_path / "data.bin").write_bytes(bytes(2**21))  # more than a job could carry
    out, err = tmp_path / "out", tmp_path / "err"
    command = [*LINE, "local", "train.py", "--workers", "1..2", "--name", "here", "--", "7"]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        mine = os.environ | {"MINE": "a $(HOME) $$ b", "WORLD_SIZE": "7"}  # of a shell, and of another launcher
        process = subprocess.Popen(command, cwd=tmp_path, stdout=stdout, stderr=stderr, env=mine)
    try:

        def said(pattern: str, file: Path = out) -> re.Match[str] | None:
            assert process.poll() is None, (out.read_text(), err.read_text())
            return re.search(pattern, file.read_text(), re.MULTILINE)

        found = wait_for(lambda: said(r"export KUBECONFIG=(\S+)", err), "the second terminal's line", 240)
        wait_for(lambda: said(r"^world 2$"), "two workers", 240)
        assert said(r"^mine a \$\(HOME\) \$\$ b$"), out.read_text()
        cluster_id = json.loads(Path(found[1]).with_name("config.json").read_text())["id"]
        second = subprocess.run(
            [*LINE, "scale", "here", "1"],
            env={**os.environ, "KUBECONFIG": found[1]},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert second.returncode == 0, second.stderr
        wait_for(lambda: said(r"^world 1$"), "one worker", 240)
        (tmp_path / "stop").touch()
        assert process.wait(240) == 7, err.read_text()
    finally:
        stop_process(process)  # where it has not ended
    assert "Traceback" not in err.read_text()
    assert not Path(found[1]).exists()
    assert not processes.find_marked(processes.MARK_CLUSTER, cluster_id), "nothing is left"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("local gone.py", "gone.py: no such file"),
        ("local train.py --workers 4..1", "'4..1': write a number, or a range"),
        ("local train.py --workers many", "'many': write a number"),
        ("local train.py --cpus 0", "0 is not in the range x>=1"),
        ("local train.py --name Bad_Name", "metadata.name"),
        ("local", "Missing argument 'SCRIPT'"),
    ],
)
def test_mistakes(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert run(line.split()) == 2
    assert told in capsys.readouterr().err
