"""The table of illnesses that a job finds: what happens, what its author has written, what is seen, what is done.

`test_illnesses.py` makes each of them happen in a real job, and docs/health.md has the same table: the page cannot
promise more than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

import yaml

PROGRAMS: Final = Path(__file__).parent / "programs"
WORKER_PROGRAMS: Final = Path(__file__).parents[1] / "worker/programs"


class Then(Enum):
    """What the job does about it, as the page says it."""

    GOES_ON = "tells it, and trains on"
    GOES_BACK = "goes back to a checkpoint from before it"
    REPLACES = "saves, and replaces the pod on another node"
    CONTINUES = "starts all workers anew, from the newest checkpoint that is whole"
    EXCLUDES = "goes back to the last step at which all agreed, without that node"
    SUSPENDS = "saves, and is suspended"
    FAILS = "fails, with that as the reason"
    COMPLETES = "goes back to older checkpoints, until one trains"


@dataclass(frozen=True)
class Illness:
    """A row. Without a rule, the job looks for it by itself."""

    name: str  # of the job, and the illness of programs/sick.py
    what: str
    then: Then
    says: str  # a regular expression, for what is told
    rank: int | None = None  # that is named; None: any, or none
    when: Mapping[str, Any] | None = None  # of a rule
    rule: Mapping[str, Any] = field(default_factory=dict)  # the rest of it
    health: Mapping[str, Any] = field(default_factory=dict)
    starts: frozenset[int] = frozenset()  # the steps from which it may go on
    at_once: bool = False  # the rank is sick from when the test says so
    short: bool = False  # in each run of the tests
    size: int = 2
    command: tuple[str, ...] = ()  # another program; {} is the folder
    where: str = "rule"  # that tells it: a rule, the last failure (`failure`), or an event

    @property
    def rule_name(self) -> str:
        """Also of the rule that each job has."""
        return "Sick" if self.when is not None else "LossNotFinite"

    @property
    def rules(self) -> list[dict[str, Any]] | None:
        return None if self.when is None else [{"name": self.rule_name, "when": self.when, **self.rule}]

    def find_command(self, directory: Path) -> list[str]:
        if self.command:
            return ["torchrun", *(word.format(directory) for word in self.command)]
        return ["torchrun", str(PROGRAMS / "sick.py"), str(directory), self.name]


NOT_FINITE: Final = {"metric": {"name": "loss", "notFinite": True}}
BACK: Final = {"action": "Restart", "from": "BeforeIncident"}
REPLACE: Final = {"action": "Replace"}

ILLNESSES: Final = (
    Illness(
        "nan",
        "the loss becomes NaN on all ranks",
        Then.GOES_ON,
        "loss is NaN or infinite at step [23][0-9]",
    ),
    Illness(
        "rank",
        "the loss of one rank becomes NaN, on one node",
        Then.REPLACES,
        "loss is NaN or infinite",
        1,
        NOT_FINITE,
        REPLACE,
        at_once=True,
    ),
    Illness(
        "gradients",
        "the norm of the gradients overflows on one rank, and its loss does not",
        Then.GOES_ON,
        "gradientNorm is NaN or infinite at step [23][0-9]",
        1,
        {"metric": {"name": "gradientNorm", "notFinite": True}},
    ),
    Illness(
        "spike",
        "the loss of one rank jumps, and stays there",
        Then.GOES_BACK,
        "loss is 20[0-9.]+, above 100",
        0,
        {"metric": {"name": "loss", "above": 100}},
        {**BACK, "forSeconds": 2},
        starts=frozenset({30, 40}),
    ),
    Illness(
        "bump",
        "the loss of one rank is three times as high for some seconds",
        Then.GOES_ON,
        r"loss is 6[0-9.]+, [0-9.]+ deviations above its median 2[0-9.]* .*at step 2[0-9]{2}",
        1,
        {"metric": {"name": "loss", "sigma": 20}},
    ),
    Illness(
        "collapse",
        "the accuracy collapses",
        Then.SUSPENDS,
        r"accuracy is 0\.1, below 0\.5",
        None,
        {"metric": {"name": "accuracy", "below": 0.5}},
        {"action": "Suspend"},
    ),
    Illness(
        "weights",
        "parameters become NaN, and are saved in checkpoints",
        Then.GOES_BACK,
        "loss is NaN or infinite at step [34][0-9]",
        None,
        NOT_FINITE,
        BACK,
        starts=frozenset({10, 20, 30}),
        short=True,
    ),
    Illness(
        "hidden",
        "the same, noticed only after a restart from such a checkpoint",
        Then.GOES_BACK,
        "loss is NaN or infinite at step [45][0-9]",
        None,
        NOT_FINITE,
        BACK,
        starts=frozenset({30}),
    ),
    Illness(
        "cut",
        "the newest checkpoint is cut in half, when it is needed",
        Then.CONTINUES,
        "RuntimeError: a cosmic ray",
        1,
        starts=frozenset({10}),
        where="failure",
        short=True,
    ),
    Illness(
        "poison",
        "each start from the newest checkpoint fails at the same step",
        Then.COMPLETES,
        "FloatingPointError: the loss is NaN",
        command=(str(PROGRAMS / "poisons.py"), "{}", "file"),
        where="failure",
    ),
    Illness(
        "crash",
        "the program fails at the same step, from each checkpoint",
        Then.FAILS,
        r"2 restarts in a row without a step beyond 1[0-7]; last: .*ValueError: bad sample",
        None,
        {"noProgress": 2},
        {"action": "Fail"},
    ),
    Illness(
        "raise",
        "one rank fails once",
        Then.CONTINUES,
        "RuntimeError: a cosmic ray",
        1,
        starts=frozenset({20}),
        where="failure",
    ),
    Illness(
        "killed",
        "one rank is killed, as for want of memory",
        Then.CONTINUES,
        "SIGKILL",
        1,
        starts=frozenset({20}),
        where="failure",
    ),
    Illness(
        "hang",
        "one rank waits for its data forever",
        Then.CONTINUES,
        "no step for .* at sick.py:[0-9]+ in fall_sick",
        1,
        health={"hangTimeoutSeconds": 5},
        starts=frozenset({10}),  # at 20 no world saves: rank 1 has not come to it
        where="failure",
    ),
    Illness(
        "leak",
        "the memory of one rank grows with each step",
        Then.REPLACES,
        r"memoryMiB is 1[2-9][0-9], above 120",
        1,
        {"metric": {"name": "memoryMiB", "above": 120}},
        REPLACE,
        short=True,
    ),
    Illness(
        "ecc",
        "a rank writes an error of its device to its log",
        Then.REPLACES,
        "wrote 'NVRM: Xid 48: GPU 0: Uncorrectable ECC error'",
        1,
        {"log": "(?i)xid (48|79).*uncorrectable"},
        REPLACE,
        at_once=True,
    ),
    Illness(
        "logged",
        "a script that reports nothing writes a loss that is NaN",
        Then.GOES_ON,
        "loss is NaN or infinite",
        None,
        {"metric": {"name": "loss", "log": "loss=([0-9.]+|nan)", "notFinite": True}},
    ),
    Illness(
        "sink",
        "the throughput sinks",
        Then.GOES_ON,
        "samplesPerSecond is [0-9.]+, [5-9][0-9] % below its best of [0-9.]+ with 2 pods",
        0,
        {"metric": {"name": "samplesPerSecond", "fallsPercent": 50}},
    ),
    Illness(
        "evaluation",
        "the evaluation takes ten times as long",
        Then.GOES_ON,
        r"evaluationSeconds is 3, [0-9.]+ deviations above its median 0\.3 ",
        None,
        {"metric": {"name": "evaluationSeconds", "sigma": 20}},
    ),
    Illness(
        "save",
        "a checkpoint takes four seconds",
        Then.GOES_ON,
        "its steps waited [4-9] s for a save",
        0,
        {"slow": {"checkpointSeconds": 2}},
    ),
    Illness(
        "start",
        "the first step does not come",
        Then.GOES_ON,
        "generation 1 has made no step in 5 s",
        None,
        {"slow": {"firstStepSeconds": 5}},
    ),
    Illness(
        "straggler",
        "a node becomes three times as slow",
        Then.GOES_ON,
        "rank 1 is ",
        1,
        health={"stragglers": "Report"},
        at_once=True,
        size=3,
        command=(str(PROGRAMS / "slow_node.py"), "{}"),
        where="Straggler",
    ),
    Illness(
        "flip",
        "a bit of a parameter flips on one rank",
        Then.EXCLUDES,
        "",
        1,
        health={"compareEverySteps": 7},
        size=3,
        command=(str(WORKER_PROGRAMS / "ej_session.py"), "--out={}", "--flip-in=3", "--step-seconds=0.05"),
        where="failure",
    ),
)


def render() -> str:
    """The table of docs/health.md."""
    rows = [f"| {one.what} | {_written(one)} | {one.then.value} |" for one in ILLNESSES]
    return "\n".join(["| illness | what you write | what the job does |", "|---|---|---|", *rows])


def _written(one: Illness) -> str:
    if one.when is None and not one.health:
        return "nothing"
    parts = {"when": one.when, **one.rule} if one.when is not None else dict(one.health)
    text = yaml.safe_dump(parts, default_flow_style=True, sort_keys=False, width=10_000).strip()[1:-1]
    return f"`{text}`".replace("|", "\\|")
