"""Training stacks that nothing disturbs: what a job looks for by itself, and rules as people write them, find nothing.

They need an environment of their own: `make frameworks` makes it and runs this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from frameworks import story
from frameworks.environment import BIN, require
from frameworks.test_frameworks import ROWS, find_spec
from operator_fixture import ROOT, Jobs, wait_for
from side_by_side import together

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not (BIN / "torchrun").exists(), reason="no environment with the frameworks: make frameworks"),
]

AT_ONCE: Final = 3  # see `side_by_side`: each has processes that import torch
STEPS: Final = 100_000  # of which none is slow to leave time for the changes of a story
SECONDS, LEAST_STEPS = 60.0, 100  # how long each trains
STACKS: Final = (
    "transformers-adapter",
    "trl-adapter",
    "accelerate-adapter",
    "lightning-adapter",
    "lightning-session",
    "deepspeed-zero-2",
    "fsdp2",
    "spark-parquet",
    "torchtitan",
    "jax",
)
# Each program writes its loss to its log, and those with an adapter report it too.
PRINTED: Final = {"name": "printed", "log": "^step \\d+ loss ([-+.0-9einfa]+)$"}
RULES: Final[list[dict[str, Any]]] = [
    *yaml.safe_load((ROOT / "manifests/examples/health.yaml").read_text())["spec"]["health"]["rules"],
    {"name": "Jump", "when": {"metric": {"name": "loss", "sigma": 12}}, "forSeconds": 5},
    {"name": "Large", "when": {"metric": {"name": "loss", "above": 100}}},
    {"name": "Slow", "when": {"metric": {"name": "stepSeconds", "above": 10}}, "forSeconds": 10},
    {"name": "Printed", "when": {"metric": {**PRINTED, "notFinite": True}}, "action": "Restart"},
    {"name": "PrintedJump", "when": {"metric": {**PRINTED, "sigma": 12}}, "forSeconds": 5},
    {"name": "Error", "when": {"log": "Traceback \\(most recent|Xid|(CUDA|NCCL) error|out of memory"}},
    {"name": "LongSave", "when": {"slow": {"checkpointSeconds": 60}}},
    {"name": "Looks", "when": {"metric": {**PRINTED, "below": 1e9}}},  # the only one that has something to find
]
TOLD: Final = {"Straggler", "MaybeHung", "WorldHung", "RankHung", "CorruptState", "MemberLost"}


@pytest.mark.parametrize("name", STACKS)
@together
def test_nothing_is_found_in_a_stack_that_nothing_disturbs(jobs: Jobs, tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    require(*row.needs)
    spec = find_spec(row, tmp_path)
    container = spec["template"]["spec"]["containers"][0]
    container["command"][2] = str(STEPS)
    container["env"].append({"name": "PRINTS", "value": "1"})
    spec["elasticPolicy"]["minReplicas"] = 2
    spec["health"] = {"rules": RULES, "stragglers": "Report", "hangTimeoutSeconds": "auto"}
    jobs.create(name, spec)

    def has_trained() -> bool:
        made = story.read_steps(tmp_path)
        return bool(made) and made[-1].t - made[0].t > SECONDS and max(one.step for one in made) > LEAST_STEPS

    wait_for(has_trained, f"{name}: it trains", timeout=4 * story.PATIENCE, poll=1.0)
    status = jobs.status(name)
    assert (status["rendezvous"]["generation"], status["rendezvous"]["worldSize"]) == (1, 2)
    assert not jobs.condition(name, "Warning") or jobs.condition(name, "Warning")["status"] == "False"
    assert [(one["rule"], one["count"]) for one in status["incidents"] if one.get("count")] == [("Looks", 1)]
    assert not status.get("stragglers") and not status.get("nodeFaults")
    assert "lastFailure" not in status and "diagnosis" not in status
    assert (status["restarts"]["total"], status["goodput"].get("faults", 0)) == (0, 0)
    told = [reason for reason, _ in jobs.events(name)]
    assert not TOLD & {*told}
    assert told.count("RuleFired") == 1
