"""Every manifest of `manifests/examples/` runs to completion on the devcluster, at a small size, with the expected
output.

The nodes run processes: the image's content is mounted from the repository, and checkpoints go to a folder of the test.
Otherwise manifests run unchanged, except for arguments that make them smaller.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster_fixture import remove_namespace
from elasticjob_devcluster import Cluster
from elasticjob_devcluster.local import localize
from operator_fixture import GROUP, ROOT, Jobs, OperatorProcess, wait_for
from torch_features import needs_fsdp_on_cpu

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MANIFESTS = ROOT / "manifests" / "examples"
EXAMPLES = ROOT / "worker_image" / "examples"
Facts = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of a manifest: with so many pods, with more arguments; what its ranks have said."""

    replicas: int
    arguments: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, operator_factory: Callable[..., OperatorProcess]) -> Iterator[Jobs]:
    """One namespace and one operator for all examples: they come one after the other."""
    name = f"gallery-{secrets.token_hex(4)}"
    cluster.make_namespace(name)
    operator = operator_factory(["--namespace", name, "--stable-seconds", "1"])
    yield Jobs(cluster, name)
    operator.stop()
    remove_namespace(cluster, name)
    assert "this is a bug" not in operator.log


@pytest.fixture
def play(jobs: Jobs, tmp_path: Path) -> Callable[..., list[Facts]]:
    """Runs a manifest; gives the JSON lines that its pods wrote, those of rank 0 first."""

    def run(name: str, run: Run) -> list[Facts]:
        manifest = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())
        mounts = {"/opt/elasticjob/examples": EXAMPLES}
        if "checkpoints" not in manifest["spec"]:
            mounts["/checkpoints"] = tmp_path
        elif "archive" in manifest["spec"]["checkpoints"]:
            mounts["/archive"] = tmp_path
        job = localize(manifest, mounts)
        job["spec"]["replicas"] = run.replicas
        # All pods from the first step on: on a busy machine one may be ready seconds before the others, and begin.
        job["spec"]["elasticPolicy"]["minReplicas"] = run.replicas
        job["spec"]["template"]["spec"]["containers"][0]["command"] += [w.format(tmp_path) for w in run.arguments]
        name = f"{name.replace('/', '-')}-{run.replicas}"
        jobs.create(name, job["spec"])
        ended = ("Complete", "Failed")
        wait_for(lambda: any(jobs.condition(name, c).get("status") == "True" for c in ended), f"{name} ends", 200)
        status = jobs.status(name)
        assert status["phase"] == "Complete", status["conditions"]
        assert status["restarts"]["total"] == 0
        logs = [jobs.cluster.logs(jobs.namespace, pod["metadata"]["name"]) for pod in jobs.pods(name)]
        assert len(logs) == run.replicas
        jobs.delete(name)
        return [json.loads(line) for log in logs for line in log.splitlines() if line.startswith("{")]

    return run


def by_rank(said: list[Facts]) -> list[Facts]:
    return sorted(said, key=lambda facts: int(facts["rank"]))


Play = Callable[[str, Run], list[Facts]]


@pytest.mark.long
def test_launched_takes_the_elastic_path(play: Play) -> None:
    said = play("basics-launched", Run(2))
    assert [(facts["path"], facts["worldSize"]) for facts in said] == [("elastic", 2), ("elastic", 2)]


def test_backend_trains_as_one_process_would(play: Play) -> None:
    first, second = play("basics-backend", Run(2))
    assert first["available"]["gloo"] is True
    assert max(first["difference"], second["difference"]) < 1e-5


@pytest.mark.long
def test_groups(play: Play) -> None:
    ranks = by_rank(play("basics-groups", Run(3)))
    assert [facts["token"] for facts in ranks] == [1, 2, 3]
    assert [facts["fromBefore"] for facts in ranks] == [2, 0, 1]
    assert {(facts["SUM"], facts["PRODUCT"], facts["MAX"], facts["MIN"]) for facts in ranks} == {(6, 6, 3, 1)}
    assert [facts.get("even") for facts in ranks] == [2, None, 2]


@pytest.mark.long
def test_gathering(play: Play) -> None:
    ranks = by_rank(play("basics-gathering", Run(3)))
    for facts in ranks:
        assert facts["concatenated"] == [0, 0, 1, 1, 2, 2]
        assert facts["stacked"] == facts["list"] == [0, 1, 2]
        assert facts["unequal"] == [[1, 2], [2, 2], [3, 2]]
    assert [facts["gather"] for facts in ranks] == [[0, 1, 2], None, None]


@pytest.mark.long
def test_the_agent_meets_before_it_assigns_ranks_and_starts(play: Play) -> None:
    (said,) = play("basics-agent", Run(1))
    assert said["steps"] == ["rendezvous", "ranks", "processes"]
    assert said["state"] == "SUCCEEDED"
    assert [(told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"]) for told in said["workers"]] == [
        ("0", "0", "2"),
        ("1", "1", "2"),
    ]
    assert {told["TORCHELASTIC_RUN_ID"] for told in said["workers"]} == {"basics"}


def test_a_job_of_a_pool_with_a_size_by_hand(play: Play) -> None:
    assert len(play("digits-pool", Run(1, ("--epochs=1",)))) > 0


@needs_fsdp_on_cpu
def test_fsdp_splits_the_parameters_and_continues_at_another_size(play: Play) -> None:
    before = by_rank(play("fsdp", Run(2, ("--steps=10",))))
    after = by_rank(play("fsdp", Run(3, ("--steps=14",))))
    assert sum(facts["mine"] for facts in before) == sum(facts["mine"] for facts in after) == before[0]["whole"]
    assert [facts["resumedAt"] for facts in after] == [10, 10, 10]
    assert after[0]["losses"][-1] < before[0]["losses"][0] / 2


@pytest.mark.long  # test_sessions.py has it with a loss, tests/worker/sessions/test_sharded.py the copies
@needs_fsdp_on_cpu
def test_a_session_holds_two_copies_of_a_sharded_model(play: Play) -> None:
    said = play("fsdp-session", Run(4, ("--epochs=2",)))
    done = by_rank([facts for facts in said if facts["event"] == "done"])
    assert sum(facts["mine"] for facts in done) == 2 * done[0]["whole"]
    assert all(facts["lastLoss"] < facts["firstLoss"] / 2 for facts in done)


@pytest.mark.long  # in tests/manifests/test_transcript.py it learns; that of FSDP above continues at another size
def test_the_language_model_learns_and_continues_at_another_size(play: Play) -> None:
    before = by_rank(play("language-model", Run(2, ("--steps=30", "--batch-size=12"))))[0]
    after = by_rank(play("language-model", Run(3, ("--steps=40", "--batch-size=12"))))[0]
    assert before["lastLoss"] < before["firstLoss"] - 0.5
    assert after["firstLoss"] < before["firstLoss"] - 0.5
    assert after["step"] == 40


@pytest.mark.long  # tests/worker/test_examples.py has the accuracy, and `make e2e` runs the manifest
def test_digits_reaches_its_accuracy(play: Play) -> None:
    said = play("digits", Run(2, ("--epochs=6",)))
    done = [facts for facts in said if facts["event"] == "done"]
    assert done[-1]["accuracy"] >= 0.95


@pytest.mark.long  # test_checkpoints.py runs the manifest to its end, with a loss
def test_digits_needs_no_volume(play: Play) -> None:
    done = [facts for facts in play("digits-copies", Run(2, ("--epochs=1",))) if facts["event"] == "done"]
    assert len(done) == 2


@pytest.mark.long  # test_archive.py runs the manifest, and begins from what is in its archive
def test_digits_has_an_archive(play: Play) -> None:
    done = [facts for facts in play("digits-archive", Run(2, ("--epochs=1",))) if facts["event"] == "done"]
    assert len(done) == 2


@pytest.mark.long  # that of a job that checks its nodes runs the same script; test_sessions.py has the manifest
def test_the_session_has_the_same_result_on_all_ranks(play: Play) -> None:
    said = play("digits-session", Run(2, ("--epochs=4",)))
    first, second = (facts["accuracy"] for facts in said if facts["event"] == "done")
    assert first == second >= 0.9


def test_a_job_that_checks_its_nodes_first(play: Play) -> None:
    said = play("health", Run(2, ("--epochs=4",)))
    first, second = (facts["accuracy"] for facts in said if facts["event"] == "done")
    assert first == second >= 0.9


def test_the_same_curve(play: Play) -> None:
    said = play("same-curve", Run(2, ("--epochs=1",)))
    done = [line for line in said if line["event"] == "done"]
    assert len({line["digest"] for line in done}) == 1


@pytest.mark.long
def test_rpc_asks_every_rank(play: Play) -> None:
    (said,) = play("rpc", Run(2))
    assert (said["worldSize"], said["total"]) == (2, sum(number**2 for number in range(12)))


@pytest.mark.long
def test_spawn_is_not_elastic(play: Play) -> None:
    said = by_rank(play("spawn", Run(1)))
    assert [(line["rank"], line["elastic"], line["total"]) for line in said] == [(0, False, 3), (1, False, 3)]


def test_steps_write_one_line_a_step(play: Play, tmp_path: Path) -> None:
    play("steps", Run(2, ("--out={}", "--steps=3", "--step-seconds=0.01")))
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted((line["rank"], line["step"], line["world"]) for line in lines) == [
        (rank, step, 2) for rank in range(2) for step in range(3)
    ]
    assert set(lines[0]) == {"t", "rank", "world", "pid", "generation", "step"}


@pytest.mark.long  # tests/integrations/test_kueue_page.py applies the manifest, and waits for its end
def test_a_job_for_a_queue_is_a_job_like_any_other(play: Play, tmp_path: Path) -> None:
    """What its label means is tried in tests/integrations."""
    play("queued", Run(2, ("--out={}", "--steps=3", "--step-seconds=0.01")))
    assert list(tmp_path.glob("*.jsonl"))


def test_a_job_takes_what_it_leaves_out_from_its_template(play: Play, jobs: Jobs, tmp_path: Path) -> None:
    template = yaml.safe_load((MANIFESTS / "templates" / "small.yaml").read_text())
    jobs.cluster.kube.request("POST", f"{GROUP}/namespaces/{jobs.namespace}/elasticjobtemplates", template)
    play("templates/steps", Run(1, ("--out={}", "--steps=3", "--step-seconds=0.01")))
    assert list(tmp_path.glob("*.jsonl"))


def test_no_example_is_left_out() -> None:
    source = Path(__file__).read_text()
    jobs = [
        p.relative_to(MANIFESTS).with_suffix("")
        for p in MANIFESTS.rglob("*.yaml")
        if "kind: ElasticJob\n" in p.read_text()
    ]
    assert [name for name in jobs if f'play("{name}"' not in source] == []
