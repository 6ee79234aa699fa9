"""`docs/kueue.md` shows what happens: its commands are played, with the queue that it tells of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticjob_devcluster.local import localize
from integrations.conftest import Queues
from manifests import transcript
from operator_fixture import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PAGE = ROOT / "docs" / "kueue.md"
BIN = Path(sys.executable).parent


class Shell:
    """Runs the page's commands: kubectl's own by hand, since there may be no kubectl."""

    def __init__(self, queues: Queues, directory: Path) -> None:
        self.queues = queues
        self.directory = directory
        config = json.loads(queues.jobs.cluster.kubeconfig.read_text())
        for context in config["contexts"]:
            context["context"]["namespace"] = queues.jobs.namespace
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))

    def run(self, argv: list[str]) -> str:
        if argv[:3] == ["kubectl", "apply", "-f"]:
            return self._apply(ROOT / argv[3])
        assert argv[:2] == ["kubectl", "elasticjob"], argv
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.directory), "COLUMNS": "200"}
        command = [str(BIN / "kubectl-elasticjob"), *argv[2:]]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _apply(self, path: Path) -> str:
        examples = {"/opt/elasticjob/examples": ROOT / "worker_image/examples", "/tmp/steps": self.directory}
        job: dict[str, Any] = localize(yaml.safe_load(path.read_text()), examples)
        self.queues.kube.request("POST", self.queues.jobs.path, job)
        return f"elasticjob.elasticjob.dev/{job['metadata']['name']} created\n"


@pytest.mark.parametrize("kueue", ["stand-in"], indirect=True)
def test_the_page_shows_what_happens(queues: Queues, tmp_path: Path) -> None:
    queues.make("team-a", 150)  # 1,500 thousandths of a CPU: three pods of that job
    played = transcript.play(transcript.read(PAGE), Shell(queues, tmp_path).run)
    if os.environ.get("ELASTICJOB_WRITE_TRANSCRIPT"):
        transcript.write(PAGE, played)
        return
    recorded = transcript.read(PAGE)
    hint = "the page is stale: run it with ELASTICJOB_WRITE_TRANSCRIPT=1"
    assert [transcript.mask(c.output) for c in played[:-1]] == [transcript.mask(c.output) for c in recorded[:-1]], hint
    # Whether the first world has two or three pods is a matter of speed.
    assert "Complete" in played[-1].output.splitlines()[-1]
