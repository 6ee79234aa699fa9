"""Agents start workers with an update of the code: what its variables mean where modules are imported ahead."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from elasticjob_operator.launch import update
from elasticjob_operator.launch.bundle import Bundle, File
from worker.agent.test_revisions import mount
from worker.fake_hub import FakeHub
from worker.fake_pods import Pods

pytestmark = pytest.mark.timeout(180)

TRAIN = """
import json, os, sys
import library
import sent
told = {"setting": library.SETTING, "ahead": library.PID != os.getpid(), "sent": sent.PID == os.getpid()}
print("told", json.dumps({**told, "new": sent.NEW}), flush=True)
"""
SENT = "import os\nPID, NEW = os.getpid(), %s\n"


def test_variables_of_an_update_are_there_when_modules_are_imported_ahead(
    hub: FakeHub, pods: Pods, tmp_path: Path
) -> None:
    """And what was sent is still imported by each worker, where the update has it on its PYTHONPATH, too."""
    hub.set_size(1)
    code, libraries = tmp_path / "code", tmp_path / "libraries"
    for folder in (code / "app", code / "lib", libraries):
        folder.mkdir(parents=True)
    (libraries / "library.py").write_text("import os\nSETTING, PID = os.environ.get('SETTING'), os.getpid()\n")
    (code / "app/train.py").write_text(TRAIN)
    (code / "lib/sent.py").write_text(SENT % "False")
    files = (File("app/train.py", TRAIN.encode()), File("lib/sent.py", (SENT % "True").encode()))
    variables = {"SETTING": "new", "PYTHONPATH": f"{code}/lib:{libraries}"}
    sent = update.Revision(Bundle(files), None, variables)
    mount(tmp_path / "updates/a", sent)
    hub.code = {"revision": 1, "digest": sent.digest}
    launcher = tmp_path / "launch"
    launcher.write_text(
        f"#!{sys.executable}\n"
        "from elasticjob import env\n"
        f"env.CODE_PATH, env.UPDATES_PATH = {str(code)!r}, {str(tmp_path / 'updates')!r}\n"
        "from elasticjob.run import main\n"
        "main()\n"
    )
    launcher.chmod(0o755)
    pod = pods.start("pod-0", str(code / "app/train.py"), launcher=str(launcher), env={"PYTHONPATH": str(libraries)})
    assert pod.wait(120) == 0, pod.log
    said = next(line.partition(" ")[2] for line in pod.log.splitlines() if line.startswith("told "))
    assert json.loads(said) == {"setting": "new", "ahead": True, "sent": True, "new": True}
