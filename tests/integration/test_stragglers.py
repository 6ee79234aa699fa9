"""A slow node under the real operator: its rank is named, and a pod on another node takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from operator_fixture import Jobs, wait_for

# On a machine without a free core any rank may be slow, so this is none of the tests that every change must pass.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.long]

PROGRAM = Path(__file__).parent / "programs" / "slow_node.py"


def slow_spec(folder: Path, wish: str, **elastic: Any) -> dict[str, Any]:
    """Three pods under an unmodified torchrun, which compare their times over a few seconds."""
    container = {
        "name": "trainer",
        "image": "a/b:1",
        "command": ["torchrun", str(PROGRAM), str(folder)],
        "env": [{"name": "ELASTICJOB_STRAGGLER_SECONDS", "value": "5"}],
    }
    return {
        "replicas": 3,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 3, **elastic},
        "health": {"stragglers": wish},
        "template": {"spec": {"containers": [container]}},
    }


def test_a_slow_node_is_named_and_replaced_by_a_spare(jobs: Jobs, tmp_path: Path) -> None:
    jobs.create("slow", slow_spec(tmp_path, "Replace", spares=1))
    world = jobs.await_world("slow", 3)["rendezvous"]
    used = {pod["spec"]["nodeName"] for pod in jobs.pods("slow")}
    victim = world["members"][1]
    others = [member for member in world["members"] if member["node"] == victim["node"]]
    assert len(others) == 1 and len(used) >= 3, "each member has a node of its own"
    (tmp_path / victim["node"]).touch()
    after = jobs.await_world("slow", 3, above=world["generation"], timeout=120)
    assert after["rendezvous"]["reason"] == "straggler"
    assert victim["uid"] not in {member["uid"] for member in after["rendezvous"]["members"]}
    said = wait_for(lambda: [text for reason, text in jobs.events("slow") if reason == "Straggler"], "an event")
    assert len(said) == 1, "nobody else is accused"
    assert "rank 1 is " in said[0] and f"{victim['pod']} on {victim['node']}" in said[0]
    assert after["restarts"]["total"] == after["restarts"]["infrastructure"] == 0
    wait_for(lambda: victim["uid"] not in {p["metadata"]["uid"] for p in jobs.pods("slow")}, "its pod is gone")
