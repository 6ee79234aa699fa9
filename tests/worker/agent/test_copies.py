"""A real agent and a script that knows nothing of it: what the script has saved is there when it starts again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasticjob.archive import reading
from elasticjob.archive.storage import Storage
from worker.fake_hub import FakeHub
from worker.fake_pods import ROOT, Pods
from worker.gang_helper import PROGRAMS
from worker.peers.gang import wait_for

pytestmark = pytest.mark.timeout(240)

SAVES_LAST = ROOT / "tests/integration/programs/saves_last.py"


@pytest.mark.parametrize("pods_of", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_script_finds_what_it_had_finished(hub: FakeHub, pods: Pods, tmp_path: Path, pods_of: int) -> None:
    hub.set_size(pods_of)
    members = []
    for index in range(pods_of):
        home = tmp_path / f"home-{index}"
        env: dict[str, str | None] = {
            "ELASTICJOB_CHECKPOINTS": str(home / "files"),
            "ELASTICJOB_CHECKPOINT_COPIES": str(home / "copies"),
            "ELASTICJOB_PRELOAD": "0",
            "ELASTICJOB_WARM_START": "0",
        }
        members.append(pods.start(f"pod-{index}", str(PROGRAMS / "copies_program.py"), env=env))
    assert [pod.wait(150) for pod in members] == [0] * pods_of
    for pod in members:
        said = [json.loads(line) for line in pod.log.splitlines() if line.startswith("{")]
        assert [facts["found"] for facts in said] == [{}, {"a.pt": "saved"}], "and not the half of another one"


@pytest.mark.parametrize(
    ("first", "suspends"),
    [(0, False), pytest.param(1, False, marks=pytest.mark.long), pytest.param(0, True, marks=pytest.mark.long)],
)
def test_what_was_saved_last_is_archived_by_a_pod_that_waits_when_it_is_told_to_end(
    hub: FakeHub, pods: Pods, tmp_path: Path, first: int, suspends: bool
) -> None:
    """One pod is evicted, so too few are left for a world; then the other one goes: its node is drained."""
    hub.set_size(2)
    url, journal = f"file://{tmp_path}/store/uid", tmp_path / "journal"
    members = {}
    for index in range(2):
        home = tmp_path / f"home-{index}"
        env: dict[str, str | None] = {
            "ELASTICJOB_CHECKPOINTS": str(home / "files"),
            "ELASTICJOB_CHECKPOINT_COPIES": str(home / "copies"),
            "ELASTICJOB_ARCHIVE": url,
            "ELASTICJOB_ARCHIVE_EVERY_SECONDS": "3600",
            "ELASTICJOB_PRELOAD": "0",
            "ELASTICJOB_WARM_START": "0",
        }
        members[f"pod-{index}"] = pods.start(
            f"pod-{index}", str(SAVES_LAST), str(home / "files"), str(journal), env=env
        )
    ranks = hub.wait_for_world(2).pods
    wait_for(lambda: reading.find_saves(Storage(url)), "the first save is archived")
    members[ranks[first]].terminate()
    assert members[ranks[first]].wait() == 0
    last = ranks[1 - first]
    hub.wait_for(lambda: hub.phases(last)[-1] == "ready", what="the other one waits for a world")
    hub.suspend() if suspends else members[last].terminate()
    assert members[last].wait() == 0
    (asked,) = [line.split()[2] for line in journal.read_text().splitlines() if line.startswith("asked 0 ")]
    saved = [list(save.record.files) for _, save in reading.find_saves(Storage(url))]
    assert saved[0] == [f"step-{int(asked):08d}.pt"]
