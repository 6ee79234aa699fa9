"""A bit flips in a parameter under the real operator: the rank is excluded, and its node is avoided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from operator_fixture import ROOT, Jobs, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.long]

PROGRAM = ROOT / "tests/worker/programs/ej_session.py"


def session_spec(out: Path) -> dict[str, Any]:
    """Three pods with a session, in which a bit of rank 1 flips once."""
    command = ["torchrun", str(PROGRAM), f"--out={out}", "--flip-in=3", "--step-seconds=0.05"]
    container = {"name": "trainer", "image": "a/b:1", "command": command}
    return {
        "replicas": 3,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 3, "maxRestarts": 0},
        "health": {"compareEverySteps": 7},
        "template": {"spec": {"containers": [container]}},
    }


def test_a_flipped_bit_excludes_its_rank_and_its_node(jobs: Jobs, tmp_path: Path) -> None:
    jobs.create("flip", session_spec(tmp_path))
    world = jobs.await_world("flip", 3, timeout=120)["rendezvous"]
    victim = world["members"][1]
    wait_for(lambda: jobs.status("flip").get("nodeFaults"), "the node is at fault", timeout=120)
    after = jobs.await_world("flip", 3, above=world["generation"], timeout=120)
    assert [(fault["node"], fault["count"]) for fault in after["nodeFaults"]] == [(victim["node"], 2)]
    assert victim["node"] not in {member["node"] for member in after["rendezvous"]["members"]}
    assert (after["lastFailure"]["reason"], after["lastFailure"]["rank"]) == ("CorruptState", 1)
    assert after["restarts"]["total"] == 0
    wait_for(lambda: any(reason == "CorruptState" for reason, _ in jobs.events("flip")), "it is told as an event")
