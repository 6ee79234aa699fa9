"""`docs/transcript.md` matches the real output: install, apply, watch, with the page's commands."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from chart_fixture import CHART, ROOT
from devcluster_fixture import remove_namespace
from elasticjob_devcluster import Cluster
from elasticjob_devcluster.local import localize
from manifests import transcript
from manifests.test_chart_release import remove_crds
from manifests.test_rbac import ChartOperator
from operator_fixture import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PAGE = ROOT / "docs" / "transcript.md"
SYSTEM = "elasticjob-system"
BIN = Path(sys.executable).parent
JOBS = "/apis/elasticjob.dev/v1alpha1/namespaces/default/elasticjobs"


class Shell:
    """Runs the commands of the page in a folder that is the repository, but for the mounts in its examples."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.helm = helm_python.Config(kubeconfig_path=cluster.kubeconfig, namespace=SYSTEM)
        self.operator: ChartOperator | None = None
        examples = directory / "manifests" / "examples"
        examples.mkdir(parents=True)
        (directory / "manifests" / "chart").symlink_to(CHART.parent)
        (directory / "checkpoints").mkdir()
        mounts = {"/opt/elasticjob/examples": ROOT / "worker_image/examples", "/checkpoints": directory / "checkpoints"}
        for path in (ROOT / "manifests" / "examples").glob("*.yaml"):
            job = localize(yaml.safe_load(path.read_text()), mounts)
            (examples / path.name).write_text(yaml.safe_dump(job, sort_keys=False))

    def run(self, argv: list[str]) -> str:
        if argv[0] == "helm":
            return self._install(argv[1:])
        assert argv[0] == "kubectl", argv
        if argv[1] == "elasticjob":
            plugin = [str(BIN / "kubectl-elasticjob")]
            return self._execute(argv if shutil.which("kubectl") else [*plugin, *argv[2:]])
        assert argv[1:3] == ["apply", "-f"], argv
        return self._execute(argv) if shutil.which("kubectl") else self._apply(self.directory / argv[3])

    def _install(self, argv: list[str]) -> str:
        command, name, chart, *options = argv
        assert (command, options) == ("install", ["--namespace", SYSTEM, "--create-namespace"])
        release = self.helm.install(self.directory / chart, name, {}, namespace=SYSTEM, create_namespace=True)
        self.operator = ChartOperator(self.cluster, SYSTEM, {}, self.directory)
        self.operator.start("127.0.0.1")
        wait_for(lambda: self.cluster.kube.get(JOBS), "the jobs are served")
        when = datetime.datetime.fromisoformat(release["deployed_at"]).strftime("%a %b %e %H:%M:%S %Y")
        facts = {"NAME": name, "LAST DEPLOYED": when, "NAMESPACE": release["namespace"], "STATUS": release["status"]}
        head = "".join(f"{key}: {value}\n" for key, value in facts.items())
        return f"{head}REVISION: {release['revision']}\nNOTES:\n{release['notes']}"

    def _apply(self, path: Path) -> str:
        job: dict[str, Any] = yaml.safe_load(path.read_text())
        self.cluster.kube.request("POST", JOBS, job)
        return f"elasticjob.elasticjob.dev/{job['metadata']['name']} created\n"

    def _execute(self, argv: list[str]) -> str:
        env = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "PATH": f"{BIN}:{os.environ['PATH']}"}
        env |= {"HOME": str(self.directory)}
        done = subprocess.run(
            argv, cwd=self.directory, env=env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        kube = self.cluster.kube
        for job in (kube.get(JOBS) or {}).get("items", ()):
            kube.request("DELETE", f"{JOBS}/{job['metadata']['name']}")
        wait_for(lambda: not kube.request("GET", "/api/v1/namespaces/default/pods")["items"], "the pods are gone")
        if self.operator is not None:
            self.operator.stop()
        for release in self.helm.list(all_states=True):
            self.helm.uninstall(release["name"])
        self.helm.close()
        remove_crds(self.cluster)
        remove_namespace(self.cluster, SYSTEM)


@pytest.fixture
def shell(audited: Cluster, tmp_path: Path) -> Iterator[Shell]:
    remove_crds(audited)
    shell = Shell(audited, tmp_path)
    yield shell
    shell.close()


def test_the_transcript_is_what_happens(shell: Shell) -> None:
    recorded = transcript.read(PAGE)
    assert [command.argv[:2] for command in recorded] == [
        ["helm", "install"],
        ["kubectl", "apply"],
        ["kubectl", "elasticjob"],
    ]
    played = transcript.play(recorded, shell.run)
    if os.environ.get("ELASTICJOB_WRITE_TRANSCRIPT"):
        transcript.write(PAGE, played)
        return
    hint = "the page is stale: run `make transcript`"
    assert [transcript.mask(c.output) for c in played[:2]] == [transcript.mask(c.output) for c in recorded[:2]], hint
    assert transcript.collect_news(played[2].output) == transcript.collect_news(recorded[2].output), hint
    assert "Complete" in played[2].output.splitlines()[-1]
    assert float(re.findall(r"loss ([\d.]+)", played[2].output)[-1]) < 4, "it learned: it begins at 4.6"


def test_what_differs_from_run_to_run_is_masked() -> None:
    slow = "a: Pending; none\na: Running; generation 1\na: step 1 of 9 (11%), loss 4.5\na: Complete\n"
    fast = "a: generation 1; Running\na: Complete; step 9 of 9 (99%), 0s left, loss 1\n"
    news = {"Running", "generation 1", "step <n> of 9, loss <n>", "Complete"}
    assert transcript.collect_news(slow) == transcript.collect_news(fast) == news
    assert transcript.mask("LAST DEPLOYED: Sat Nov 21 15:29:55 2026") == "LAST DEPLOYED: <time>"


def test_a_page_is_read_and_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("One\n\n```console\n$ a b\nold\n$ c\n```\n\n```console\n$ d\n```\nEnd\n")
    assert [c.argv for c in transcript.read(page)] == [["a", "b"], ["c"], ["d"]]
    transcript.write(page, [transcript.Command(c.line, f"of {c.line}\n") for c in transcript.read(page)])
    assert page.read_text() == "One\n\n```console\n$ a b\nof a b\n$ c\nof c\n```\n\n```console\n$ d\nof d\n```\nEnd\n"
