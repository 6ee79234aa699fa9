"""What the project assumes of NCCL, and its model of NCCL on the CPU imitates. If it fails, the two have parted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpu.report import Report
from gpu.rig import DRY, run_many

_RIGHT = 3.0  # (1 + 2 + 3) * 0.5: what `death` computes when nobody dies
_QUIET = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
Rows = list[dict[str, Any]]


def _judge_model(check: Report) -> None:
    """The model of NCCL is expected to do what NCCL does."""
    check.dry = check.dry and os.environ.get("FAKE") != "1"


def _find(rows: Rows, event: str) -> Rows:
    return [row for row in rows if row["event"] == event and row["rank"] < 2]


def death(check: Report, folder: Path) -> None:
    """A peer dies, torch's error handling is off, and the communicator is aborted a second later."""
    _judge_model(check)
    (rows,) = run_many(folder, "contract.py", [("death", 3, _QUIET)], 45.0)
    values = sorted({value for row in _find(rows, "values") for value in row["values"]})
    silent = all(row["raised"] is None for event in ("all_reduce", "read") for row in _find(rows, event))
    check.measure(
        valuesAfterAbort=values[:6],
        secondsOfAbort=[row["seconds"] for row in _find(rows, "abort")],
        secondsUntilRead=[row["after"] for row in _find(rows, "read")],
        afterAbort=[row["raised"] for row in _find(rows, "collective after the abort")],
        secondsOfDestroy=[row["seconds"] for row in _find(rows, "destroy")],
    )
    check.expect(silent, "neither the collective nor the read of its value raises", device_only=True)
    waits = all(row["after"] >= 0.9 for row in _find(rows, "read"))
    check.expect(waits, "the device waits for a dead peer until the abort", device_only=True)
    check.expect(bool(values) and _RIGHT not in values, "the value is wrong after the abort", values, device_only=True)
    raised = all(row["raised"] for row in _find(rows, "collective after the abort"))
    check.expect(raised, "a collective after the abort raises", device_only=True)
    initialized = [row["initialized"] for row in _find(rows, "state")]
    check.expect(initialized == [False, False], "destroy_process_group clears torch's state", initialized)
    check.expect(
        [row["value"] for row in _find(rows, "next")] == [3.0, 3.0],
        "the survivors form another world in the same processes",
        _find(rows, "next world"),
    )


def streams(check: Report, folder: Path) -> None:
    """What waits for a collective whose peer is dead: the session's question, and the model, stand on this."""
    _judge_model(check)
    worlds = [("streams", 3, _QUIET), ("collectives", 2, _QUIET)]
    rows, found = run_many(folder, "contract.py", worlds, 45.0)

    def returned(event: str) -> list[bool]:
        return [row["returned"] for row in _find(rows, event)]

    check.measure(
        completedWhileStuck=[row["before"] for row in _find(rows, "completed")],  # NCCL's own error makes it true, too
        completedAfterAbort=[row["completed"] for row in _find(rows, "aborted")],
        firstMessageToTheDead=[[row["returned"], row["freed"]] for row in _find(rows, "first message")],
    )
    for event, right, text in (
        ("begun", True, "the script's stream does not wait for a collective that was only begun"),
        ("message", True, "a message between two others passes a collective that is stuck"),
        ("waited", False, "after its wait() the stream waits for it"),
        ("whole", False, "and the whole device does anyway"),
    ):
        # Gloo does the work of the model, and may be stuck itself in a part of the other message.
        if event == "message" and os.environ.get("FAKE") == "1":
            continue
        check.expect(returned(event) == [right] * 2, text, returned(event), device_only=True)
    ended = [row["ended"] for row in _find(rows, "aborted")]
    check.expect(ended == [True] * 2, "until the abort", ended, device_only=True)
    wrong = [row["wrong"] for row in _find(found, "collectives")]
    check.expect(wrong == [[], []], "all collectives that scripts call have the right values", wrong, device_only=True)


def watchdog(check: Report, folder: Path) -> None:
    """A peer dies and nobody aborts: torch's watchdog ends the process in mode 1, and leaves it alone in mode 0."""
    _judge_model(check)
    dump = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1500"}  # it sleeps four times as long, by default 60 s
    modes: list[tuple[str, dict[str, str]]] = [
        ("1", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"} | dump),
        ("3", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"} | dump),
        ("2", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"} | dump),
        ("0", _QUIET),
        ("0 with desync debug", _QUIET | {"TORCH_NCCL_DESYNC_DEBUG": "1"}),
    ]
    worlds = [("watchdog", 2, {"LIVE": "14", "FAKE_NCCL": "notices=0.1"} | variables) for _, variables in modes]
    for (mode, _), rows in zip(modes, run_many(folder, "contract.py", worlds, 40.0), strict=True):
        code = next(row["code"] for row in rows if row["event"] == "end" and row["rank"] == 0)
        lived = max((row["after"] for row in rows if row["rank"] == 0 and "after" in row), default=None)
        freed = next((row["after"] for row in rows if row["rank"] == 0 and row["event"] == "freed"), None)
        check.measure(**{f"mode{mode}": {"code": code, "secondsLived": lived, "secondsUntilFreed": freed}})
        if mode in ("0", "2"):
            text = f"in mode {mode} torch's watchdog " + ("aborts" if mode == "2" else "does not abort")
            check.expect((freed is not None) == (mode == "2"), text, freed, device_only=True)
        ends = mode not in ("0", "2")
        text = f"in mode {mode} torch's watchdog " + ("ends the process" if ends else "leaves the process alone")
        check.expect((code == -6) if ends else (code == 0), text, code, device_only=True)


def two_communicators(check: Report, folder: Path) -> None:
    """Two communicators wait for a dead peer: aborted one after the other they block, in threads they do not."""
    _judge_model(check)
    worlds = [("two", 3, _QUIET | {"HOW": how}) for how in ("sequential", "parallel")]
    worlds.append(("creation", 2, dict(_QUIET)))
    sequential, parallel, creation = run_many(folder, "contract.py", worlds, 40.0)
    found = {}
    for how, rows in (("sequential", sequential), ("parallel", parallel)):
        found[how] = [(row["ended"], row["seconds"]) for row in _find(rows, "aborted")]
    alone = [(row["ended"], row["seconds"]) for row in _find(sequential, "alone")]
    returned = [row["within"] for row in _find(creation, "returned") if row["rank"] == 0]
    check.measure(**found, firstAlone=alone, creationReturnsWithoutPeer=returned)
    check.expect(
        len(found["parallel"]) == 2 and all(ended and seconds < 5 for ended, seconds in found["parallel"]),
        "two stuck communicators that are aborted in threads end within seconds",
        found["parallel"],
    )
    blocked = len(alone) == 2 and not any(ended for ended, _ in alone)
    check.expect(blocked, "the abort of the first alone waits for the second's", alone, device_only=True)
    if not DRY:
        check.expect(returned == [False], "a communicator whose peer never comes waits", returned)


def worlds(check: Report, folder: Path) -> None:
    """What torch and NCCL themselves leave behind in a process for each world that was aborted, or destroyed."""
    found = run_many(
        folder, "contract.py", [("worlds", 2, _QUIET | {"HOW": how}) for how in ("abort", "destroy")], 50.0
    )
    for how, rows in zip(("abort", "destroy"), found, strict=True):
        sizes = [row["mib"] for row in rows if row["event"] == "world" and row["rank"] == 0]
        check.measure(**{how: sizes})
        check.expect(len(sizes) == 20, f"20 worlds one after the other are entered and left by {how}", len(sizes))
        if len(sizes) == 20:
            check.measure(**{f"{how}MibPerWorld": round((min(sizes[-4:]) - min(sizes[4:8])) / 12, 1)})
