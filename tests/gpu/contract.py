"""What the project assumes of NCCL, and its model of NCCL on the CPU imitates. If it fails, the two have parted."""

from __future__ import annotations

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


def _find(rows: Rows, event: str) -> Rows:
    return [row for row in rows if row["event"] == event and row["rank"] < 2]


def death(check: Report, folder: Path) -> None:
    """A peer dies, torch's error handling is off, and the communicator is aborted a second later."""
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


def watchdog(check: Report, folder: Path) -> None:
    """A peer dies and nobody aborts: torch's watchdog ends the process in mode 1, and leaves it alone in mode 0."""
    dump = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1500"}  # it sleeps four times as long, by default 60 s
    modes: list[tuple[str, dict[str, str]]] = [
        ("1", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"} | dump),
        ("3", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"} | dump),
        ("0", _QUIET),
    ]
    worlds = [("watchdog", 2, {"LIVE": "14"} | variables) for _, variables in modes]
    for (mode, _), rows in zip(modes, run_many(folder, "contract.py", worlds, 40.0), strict=True):
        code = next(row["code"] for row in rows if row["event"] == "end" and row["rank"] == 0)
        lived = max((row["after"] for row in rows if row["rank"] == 0 and "after" in row), default=None)
        check.measure(**{f"mode{mode}": {"code": code, "secondsLived": lived}})
        ends = mode != "0"
        text = f"in mode {mode} torch's watchdog " + ("ends the process" if ends else "leaves the process alone")
        check.expect((code == -6) if ends else (code == 0), text, code, device_only=True)


def two_communicators(check: Report, folder: Path) -> None:
    """Two communicators wait for a dead peer: aborted one after the other they block, in threads they do not."""
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
