"""The command line as seen by users: its output and its exit code."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller import client_fixture as given
from elasticjob_devcluster import Cluster, wait_until
from elasticjob_operator.cli import common
from elasticjob_operator.cli.root import run

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command line without any cluster."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("KUBECONFIG", "ELASTICJOB_IMAGE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return call


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("list", "none found: give --kubeconfig, set KUBECONFIG"),
        ("list --kubeconfig /gone", "kubeconfig /gone: no such file"),
        ("frobnicate", "No such command 'frobnicate'"),
        ("scale digits", "specify the number of replicas"),
        ("scale digits many", "'many' is not a valid integer"),
        ("logs x -p -f", "leave out --follow, --rank, --generation, --tail and --timestamps"),
        ("logs x -p --tail 5", "leave out --follow, --rank, --generation, --tail and --timestamps"),
        ("logs x -p --timestamps", "leave out --follow, --rank, --generation, --tail and --timestamps"),
        ("logs x -g 2 -f", "leave out --follow, --rank and --tail"),
        ("submit", "specify a script, or a manifest with --file"),
        ("submit train.py", "--image: is required"),
        ("submit train.py -f x", "specify a script or --file, not both"),
        ("submit train.py --image i --min 4 --max 2", "spec.elasticPolicy: minReplicas must not be greater"),
        ("submit train.py --image i --nproc many", "spec.nprocPerNode: must be 'auto'"),
        ("submit train.py --image i -e 1=2", "--env 1=2: must be KEY=VALUE"),
        ("submit train.py --image i -e GONE_VARIABLE", "is not set in this environment"),
        ("submit -f /gone", "/gone: cannot be read"),
        ("convert -f /gone", "/gone: cannot be read"),
        ("report", "specify the NAME of a job, or a recording"),
        ("report --from /gone", "--from /gone: cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_code_2(cli: Run, line: str, message: str) -> None:
    code, out, err = cli(*line.split())
    assert (code, out) == (2, "")
    assert message in err


def test_help_is_no_mistake(cli: Run) -> None:
    code, out, _ = cli("--help")
    assert code == 0
    assert "submit" in out
    for command in re.findall(r"^  (\w+)  ", out, re.MULTILINE):
        assert cli(command, "--help")[0] == 0, command
    assert cli()[0] == 0


def test_a_dry_run_prints_what_would_be_sent(cli: Run) -> None:
    line = "submit train.py --image i --name n --min 1 --max 4 --gpus 2 --nproc auto -e A=b --dry-run -- --lr 0.1"
    code, out, _ = cli(*line.split())
    assert code == 0
    job = yaml.safe_load(out)
    assert job["metadata"] == {"name": "n"}
    assert job["spec"]["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 4}
    assert job["spec"]["template"]["spec"]["containers"] == [
        {
            "name": "worker",
            "image": "i",
            "command": ["torchrun", "train.py", "--lr", "0.1"],
            "env": [{"name": "A", "value": "b"}],
            "resources": {"limits": {"nvidia.com/gpu": 2}},
        }
    ]


def test_a_dry_run_refuses_what_would_be_refused(cli: Run, tmp_path: Path) -> None:
    manifest = given.manifest(failurePolicy={"rules": [{"action": "FailJob", "onExitCodes": [2]}]})
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest))
    code, out, err = cli("submit", "-f", str(path), "--dry-run")
    assert (code, out) == (2, "")
    assert "onExitCodes" in err


def test_numbers_stand_in_a_line() -> None:
    assert common.dump({"values": [1, 2, 3], "names": ["a"]}, "yaml") == "values: [1, 2, 3]\nnames:\n- a"


def test_convert_takes_what_kubectl_get_prints(cli: Run, tmp_path: Path) -> None:
    """Of several jobs that is a list, with what the API server has added to each."""
    spec = {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"image": "i"}]}}}}}
    added = {"uid": "0c1b", "resourceVersion": "7", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    jobs: list[Any] = [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name, "managedFields": [{"manager": "kubectl"}], **added},
            "spec": spec,
            "status": {"conditions": [{"type": "Running", "status": "True"}]},
        }
        for name in ("mnist", "bert")
    ]
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": jobs, "metadata": {}}))
    code, out, err = cli("convert", "-f", str(path))
    assert (code, err) == (0, "")
    assert [(one["kind"], one["metadata"]) for one in yaml.safe_load_all(out)] == [
        ("ElasticJob", {"name": "mnist"}),
        ("ElasticJob", {"name": "bert"}),
    ]
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": ["mnist"]}))
    code, out, err = cli("convert", "-f", str(path))
    assert (code, out) == (2, "")
    assert "has a document that is not an object" in err


def test_convert_prints_yaml_and_warns_on_stderr(cli: Run, tmp_path: Path) -> None:
    source = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "mnist"},
        "spec": {
            "mystery": 1,
            "pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"image": "i"}]}}}},
        },
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all([source, {"apiVersion": "v1", "kind": "Service"}]))
    code, out, err = cli("convert", "-f", str(path))
    assert code == 0
    assert yaml.safe_load(out)["kind"] == "ElasticJob"
    assert "warning: mnist: spec.mystery: has no counterpart" in err
    assert "warning: Service of v1 is not supported: skipped" in err
    assert cli("convert", "-f", str(path), "--strict")[0] == 1
    path.write_text("#!/bin/sh\n#SBATCH -J mnist\nmodule load cuda\nsrun torchrun train.py\n")
    code, out, err = cli("convert", "-f", str(path))
    assert code == 0
    assert yaml.safe_load(out)["spec"]["template"]["spec"]["containers"][0]["command"] == ["torchrun", "train.py"]
    assert "warning: mnist: line 3: module load cuda was left out" in err
    path.write_text("#!/bin/sh\necho hi")
    assert "no command that starts a training" in cli("convert", "-f", str(path))[2]
    path.write_text("kind: [")
    assert "is not valid YAML" in cli("convert", "-f", str(path))[2]
    path.write_text("- 1")
    assert "not an object" in cli("convert", "-f", str(path))[2]


def test_a_report_of_a_recording_needs_no_cluster(cli: Run, tmp_path: Path) -> None:
    from elasticjob_operator.client import history

    recording, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    recording.write_text(history.format_sample(history.take_sample(given.job(), 1000.0)) + "\n")
    assert cli("report", "--from", str(recording), "--html", str(page))[0] == 0
    assert "run: ElasticJob report" in page.read_text()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        pytest.param({"time": 1e300}, "time: is no time between 1970 and 9999", id="late"),
        pytest.param({"time": -1e10}, "time: is no time between 1970 and 9999", id="early"),
        pytest.param({"time": float("nan")}, "time: is no time between 1970 and 9999", id="never"),
        pytest.param({"formed": float("inf")}, "formed: is no time between 1970 and 9999", id="formed"),
        pytest.param({"phase": {}}, "phase: ", id="phase"),
        pytest.param({"members": 5}, "members: ", id="members"),
        pytest.param({"members": [[1]]}, "members.0.0: ", id="member"),
        pytest.param({"metrics": {"loss": "high"}}, "metrics.loss: ", id="metric"),
        pytest.param({"step": 10**400}, "step: is more than", id="step"),
        pytest.param({"training_seconds": None}, "training_seconds: ", id="nothing"),
    ],
)
def test_a_recording_of_somebody_else_is_told_by_its_line(
    cli: Run, tmp_path: Path, said: dict[str, Any], told: str
) -> None:
    recording = tmp_path / "run.jsonl"
    recording.write_text(json.dumps({"time": 1000.0, "phase": "Running", **said}) + "\n")
    code, _, err = cli("report", "--from", str(recording), "--html", str(tmp_path / "run.html"))
    assert code == 2 and f"line 1 is not a sample of a recording: {told}" in err


RULES = [
    {"name": "Ecc", "when": {"log": "(?i)ecc error"}, "action": "Replace"},
    {"name": "Stuck", "when": {"noProgress": 3}},
]


def test_rules_are_tried_on_a_log(cli: Run, tmp_path: Path) -> None:
    log, manifest = tmp_path / "log", tmp_path / "job.yaml"
    log.write_text("step 1\nGPU 3: ECC error\nan ECC error again\n")
    manifest.write_text(yaml.safe_dump(given.manifest(health={"rules": RULES})))
    code, out, err = cli("rules", "test", str(log), "-f", str(manifest))
    assert (code, err) == (0, "Stuck is not tested: no line tells it\n")
    assert [line.split() for line in out.splitlines()] == [
        ["RULE", "WHERE", "WHAT"],
        ["Ecc", "line", "2", "wrote", "'GPU", "3:", "ECC", "error'"],
    ]
    log.write_text("step 1\n")
    assert cli("rules", "test", str(log), "-f", str(manifest))[1] == "no rule would have fired\n"


def test_a_log_on_stdin_may_have_any_bytes(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(given.manifest(health={"rules": RULES[:1]})))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n\xffECC error\n"), encoding="utf-8"))
    code, out, _ = cli("rules", "test", "-", "-f", str(manifest))
    assert code == 0 and "line 2" in out


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (None, "a log has no rules of its own: name the manifest with them, -f FILE"),
        ({"log": "(a+"}, "spec.health.rules[0].when.log: a ( is not closed: write \\( for the character"),
    ],
)
def test_rules_that_cannot_be_tried(cli: Run, tmp_path: Path, rule: dict[str, Any] | None, said: str) -> None:
    log, manifest = tmp_path / "log", tmp_path / "job.yaml"
    log.write_text("step 1\n")
    manifest.write_text(yaml.safe_dump(given.manifest(health={"rules": [{"name": "A", "when": rule}]})))
    code, _, err = cli("rules", "test", str(log), *(() if rule is None else ("-f", str(manifest))))
    assert code == 2 and said in err


def test_completion(cli: Run) -> None:
    for shell in ("bash", "zsh", "fish", "kubectl"):
        code, out, _ = cli("completion", shell)
        assert code == 0
        assert "kubectl-elasticjob" in out
    code, out, _ = cli("__complete", "su")
    assert [line.partition("\t")[0] for line in out.splitlines()] == ["submit", "suspend", ":4"]
    assert cli("__complete", "describe", "")[1].strip() == ":4"  # no cluster: nothing, and no error


def test_the_console_script(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "elasticjob_operator.cli", "list", "--kubeconfig", str(tmp_path / "gone")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("error: kubeconfig")
    environment = os.environ | {
        "_KUBECTL_ELASTICJOB_COMPLETE": "bash_complete",
        "COMP_WORDS": "x sus",
        "COMP_CWORD": "1",
    }
    result = subprocess.run(command[:3], capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert result.stdout.strip() == "plain,suspend"


# --- against a cluster -----------------------------------------------------------------------------------


@pytest.fixture
def live(cli: Run, cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    given.install_crd(cluster)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return lambda *arguments: cli("-n", namespace, *arguments)


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_life_of_a_job(live: Run, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    assert live("list")[1] == "no ElasticJobs found; -A looks in all namespaces\n"
    code, out, _ = live("submit", "train.py", "--image", "i", "--name", "digits", "--min", "1", "--max", "4")
    assert (code, out) == (0, "elasticjob digits created; kubectl elasticjob watch digits\n")
    code, _, err = live("submit", "train.py", "--image", "i", "--name", "digits")
    assert code == 2
    assert "choose another name" in err
    given.write_status(cluster, namespace, "digits", given.running_status())
    assert "digits   Running   2" in live("list")[1]
    assert live("list", "-o", "name")[1] == "elasticjob.elasticjob.dev/digits\n"
    assert json.loads(live("list", "-o", "json")[1])["items"][0]["metadata"]["name"] == "digits"
    assert "GOODPUT" in live("list", "-o", "wide")[1]
    assert namespace in live("list", "-A")[1]
    assert live("scale", "digits", "3")[:2] == (0, "elasticjob digits scaled to 3\n")
    assert live("scale", "digits", "--replicas", "9")[0] == 2
    assert yaml.safe_load(live("suspend", "digits", "-o", "yaml")[1])["spec"]["runPolicy"]["suspend"] is True
    assert live("resume", "digits")[0] == 0
    text = live("describe", "digits")[1]
    assert "digits-worker-1" in text
    assert "3 wanted, 1 to 4 allowed" in text
    assert "0.5/s" in live("top")[1]
    assert "no metrics server" in live("top", "digits")[2]
    assert live("describe", "nothing")[0] == 2
    assert live("events", "nothing")[0] == 2
    assert live("delete", "digits")[1] == "elasticjob digits deleted\n"
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(given.manifest()))
    assert live("submit", "-f", str(manifest), "--name", "again", "-o", "name")[1].endswith("/again\n")
    assert live("__complete", "describe", "-n", namespace, "ag")[1] == "again\n:4\n"


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_table_of_jobs_is_answered_from_the_memory_of_the_api_server(live: Run, cluster: Cluster) -> None:
    """It costs the API server a quarter of a list that it reads from etcd; what programs read is never behind."""
    assert live("submit", "train.py", "--image", "i", "--name", "digits")[0] == 0
    wait_until(lambda: "digits" in live("list")[1], 30, "the API server's memory has the job")

    def count_reads(*arguments: str) -> int:
        before = count_lists_in_etcd(cluster)
        code, out, _ = live(*arguments)
        assert (code, "digits" in out) == (0, True)
        return count_lists_in_etcd(cluster) - before

    for arguments in (("list",), ("list", "-A"), ("list", "-o", "wide"), ("list", "-l", "!absent"), ("top",)):
        # The controller that deletes namespaces lists their objects, too, but not all the time.
        assert min(count_reads(*arguments) for _ in range(5)) == 0, arguments
    for output in ("json", "yaml", "name"):
        assert count_reads("list", "-o", output) >= 1, output


def count_lists_in_etcd(cluster: Cluster) -> int:
    """The lists of custom resources for which the API server has asked etcd; newer versions name the resource.

    From Kubernetes 1.31 on, it asks only whether its memory is up to date, and counts that elsewhere.
    """
    text = cluster.kube.raw("GET", "/metrics").decode()
    lists = r'etcd_request_duration_seconds_count\{[^}]*operation="list[^}]*(?:elasticjobs|Unstructured)[^}]*\} (\d+)'
    checks = r'apiserver_watch_cache_consistent_read_total\{[^}]*resource="elasticjobs(?:\.[a-z.]+)?"[^}]*\} (\d+)'
    return sum(int(count) for pattern in (lists, checks) for count in re.findall(pattern, text))


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_watch_and_wait_end_with_the_job(live: Run, cluster: Cluster, namespace: str) -> None:
    live("submit", "train.py", "--image", "i", "--name", "digits", "--max", "4")
    assert live("wait", "digits", "--timeout", "0.1")[0] == 1
    assert live("watch", "digits", "--timeout", "0.5")[0] == 1
    given.write_status(cluster, namespace, "digits", given.running_status())
    code, out, _ = live("watch", "digits", "--for", "Running")
    assert code == 0
    assert "digits: Running; generation 3" in out
    failed: dict[str, Any] = {"phase": "Failed", "conditions": [given.condition("Failed", reason="Budget")]}
    failed["lastFailure"] = {"pod": "digits-worker-1", "rank": 1, "exitCode": 3, "traceback": "ValueError: no"}
    given.write_status(cluster, namespace, "digits", failed)
    code, out, err = live("watch", "digits")
    assert code == 1
    assert "job digits failed: Budget" in err
    assert live("wait", "digits")[0] == 1
    assert live("wait", "digits", "--for", "Finished")[0] == 0
    code, out, _ = live("logs", "digits", "--previous")
    assert code == 0
    assert "exit code 3" in out
    assert "ValueError: no" in out


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_logs_and_chaos_on_real_pods(live: Run, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    live("submit", "train.py", "--image", "i", "--name", "digits", "--max", "4")
    given.write_status(cluster, namespace, "digits", given.running_status())
    for index in (0, 1):
        given.run_pod(cluster, namespace, "digits", index, f"echo hello from {index}; exec sleep 1000")
    assert sorted(live("logs", "digits")[1].splitlines()) == ["[0] hello from 0", "[1] hello from 1"]
    assert live("logs", "digits", "--rank", "1")[1] == "hello from 1\n"
    assert live("logs", "digits", "--rank", "7")[0] == 2
    assert live("logs", "digits", "--previous")[0] == 2
    long_ago = [{"generation": one, "time": f"2020-01-0{one}T00:00:00Z", "size": 2} for one in (2, 3)]
    given.write_status(cluster, namespace, "digits", given.running_status() | {"timeline": long_ago})
    assert sorted(live("logs", "digits", "-g", "3")[1].splitlines()) == ["[0] hello from 0", "[1] hello from 1"]
    code, out, err = live("logs", "digits", "--generation", "2")
    assert (code, out) == (0, "")
    assert "no pod of digits has a log of generation 2 any more" in err
    code, _, err = live("logs", "digits", "-g", "9")
    assert code == 2
    assert "status.timeline has no generation 9 of job digits: it has generations 2 to 3" in err
    assert live("logs", "digits", "-g", "3", "--rank", "0")[0] == 2
    code, _, err = live("chaos", "rank", "digits", "1", "--how", "process")
    assert code == 1
    assert "rank 1 was not killed: " in err  # its nodes have no exec, or no process has RANK=1
    code, out, err = live("chaos", "rank", "digits", "1")
    assert (code, out) == (0, "killed pod digits-worker-1 with rank 1 (deleted without grace)\n")
    assert "deleting the pod instead" in err
    given.wait_until_gone(cluster, namespace, "digits-worker-1")
    assert "killed pod digits-worker-0 on node-" in live("chaos", "pod", "digits", "0")[1]
    given.wait_until_gone(cluster, namespace, "digits-worker-0")
    assert live("chaos", "node", "digits")[0] == 2
    page = tmp_path / "report.html"
    assert live("report", "digits", "--html", str(page), "--duration", "0.2")[0] == 0
    assert "digits-worker" in page.read_text() or "a member was lost" in page.read_text()
