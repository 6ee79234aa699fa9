"""Checks of one process on the device: what it is, the doctor, snapshots, the cost of a session's step, warm forks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from elasticjob import env
from gpu import rig
from gpu.report import Report

_GIB = 1 << 30
_QUERY = "driver_version,compute_mode,mig.mode.current,memory.total,pcie.link.gen.current,pcie.link.width.current"


def _run(folder: Path, name: str, seconds: float, **variables: str) -> dict[str, Any]:
    """What one process says, by event, and its exit code."""
    rows = rig.run_ranks(folder, "alone.py", name, 1, seconds, **variables)
    return {row["event"]: row for row in rows}


def _require_end(check: Report, found: dict[str, Any]) -> bool:
    return check.expect(found["end"]["code"] == 0, "the process ends well", found["end"]["code"])


def facts(check: Report, folder: Path) -> None:
    """The card, its driver, and the versions of torch and NCCL."""
    found = _run(folder, "facts", 40.0)
    check.measure(
        **{name: value for name, value in found.get("facts", {}).items() if name not in ("event", "rank", "after")}
    )
    if not rig.DRY:
        command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        check.measure(nvidiaSmi=dict(zip(_QUERY.split(","), told.split(", "), strict=False)))
    _require_end(check, found)


def fence(check: Report, folder: Path) -> None:
    """What a session adds to a step of about 20 ms under DDP: a wait for the device alone, and everything."""
    for case in ("device", "launches"):
        with rig.gang(folder, "cost.py", {"case": case}) as world:
            world.start(1)
            rig.wait(lambda here=world: here.find("cost"), "the timed steps", 60.0)  # type: ignore[misc]
            row = world.find("cost")[0]
        check.measure(**{case: {"milliseconds": row["milliseconds"], "shares": row["shares"]}})
        if case == "device":
            check.goal("part by which a session's step of some 20 ms is longer", row["shares"]["session"], 0.01)


def snapshots(check: Report, folder: Path) -> None:
    """Snapshots in shared memory of some GiB, beside the training: the first and later ones, and what they cost."""
    gibibytes = 0.05 if rig.DRY else _find_size()
    memory = Path("/dev/shm") / f"gpu-check-{os.getpid()}"
    memory.mkdir()
    try:
        more = {env.MEMORY: str(memory), "BYTES": str(int(gibibytes * _GIB)), "FOLDER": str(folder)}
        found = _run(folder, "snapshots", 165.0, **more)
    finally:
        subprocess.run(["rm", "-rf", str(memory)], check=False)
    if not _require_end(check, found):
        return
    row = found["snapshots"]
    check.measure(**{name: value for name, value in row.items() if name not in ("event", "rank", "after", "restored")})
    check.expect(row["restored"], "a snapshot holds the bits of its step")
    check.goal("GB/s of later snapshots", row["laterGBs"], 40.0, most=False)
    check.goal("part of the time that snapshots in every tenth step cost", row["shareMore"], 0.01)


def _find_size() -> float:
    """GiB of a snapshot: two of them fit into shared memory, beside what the process copies for its comparison."""
    return min(12.0, shutil.disk_usage("/dev/shm").free / _GIB / 2.5)


def doctor(check: Report, folder: Path) -> None:
    """The preflight of a pod with one device passes, and leaves nothing on the device in the agent's process."""
    found = _run(folder, "doctor", 80.0)
    if not _require_end(check, found):
        return
    for level in ("Node", "Network"):
        row = found[level]
        check.measure(**{level: {"seconds": row["seconds"], "findings": row["findings"]}})
        check.expect(row["problem"] is None, f"a pod with one device passes the level {level}", row["problem"])
    check.measure(mibLeftInAgent=found["left"]["mib"])
    check.expect(not found["left"]["initialized"], "the agent's process has no context on the device")
    check.expect(not found["left"]["mib"], "and no memory of the device", found["left"]["mib"])


def warm_fork(check: Report, folder: Path) -> None:
    """A process that has looked for devices as the launcher does is forked, and its child uses the device."""
    found = _run(folder, "fork", 35.0, PYTORCH_NVML_BASED_CUDA_CHECK="1")
    if not _require_end(check, found) or rig.DRY:
        return
    for name, text in (("child", "after a look for devices"), ("launched", "after torchrun's look for devices")):
        row = found.get(name, {"value": None})
        check.measure(**{name: {key: row.get(key) for key in ("lost", "value", "seconds")}})
        check.expect(row["value"] == 3.0, f"a forked child can use the device {text}", row["value"])
