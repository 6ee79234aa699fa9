"""What the driver has counted on the devices: asked of NVML, through its Python binding or `nvidia-smi`."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob.diagnose.devices import Health

_SECONDS = 15.0
# The fields of `nvidia-smi --query-gpu`; a driver that does not know one of them answers none.
FIELDS = (
    "index",
    "uuid",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "retired_pages.pending",
    "clocks_throttle_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown",
)
_SLOWED = {6: "thermal", 7: "power brake"}


def read(environ: Mapping[str, str]) -> tuple[list[Health], str]:
    """The counters of all devices that this pod sees, and where they come from; no devices if nobody can be asked."""
    with contextlib.suppress(Exception):  # the binding is there, but not the library, or of another driver
        return _ask_nvml(), "NVML"
    return _ask_nvidia_smi(environ), "nvidia-smi"


def _ask_nvidia_smi(environ: Mapping[str, str]) -> list[Health]:
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_table(told)


def parse_table(text: str) -> list[Health]:
    """The rows that `nvidia-smi` prints for `FIELDS`. Pure."""
    found = []
    for line in text.splitlines():
        values = [one.strip() for one in line.split(",")]
        if len(values) == len(FIELDS) and values[0].isdecimal():
            found.append(_parse_row(values))
    return found


def _parse_row(values: Sequence[str]) -> Health:
    flags = [{"yes": True, "no": False, "1": True, "0": False}.get(one.lower()) for one in values]
    pending = [flag for flag in (flags[3], flags[5]) if flag is not None]
    return Health(
        int(values[0]),
        values[1],
        uncorrected=int(values[2]) if values[2].isdecimal() else None,
        rows_failed=flags[4],
        rows_pending=any(pending) if pending else None,
        slowed=tuple(why for column, why in _SLOWED.items() if values[column].lower() == "active"),
    )


def _ask_nvml() -> list[Health]:
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    try:
        return [_ask_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _ask_device(nvml: Any, index: int) -> Health:
    device = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(function: str, *arguments: Any) -> Any:
        """None where this device or this driver does not tell."""
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            return getattr(nvml, function)(device, *arguments)
        return None

    uuid = ask("nvmlDeviceGetUUID") or ""
    rows = ask("nvmlDeviceGetRemappedRows")  # corrected, uncorrected, is pending, has failed
    pages = ask("nvmlDeviceGetRetiredPagesPendingStatus")
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    links = [ask("nvmlDeviceGetNvLinkState", link) for link in range(18)]
    pending = [bool(flag) for flag in (None if rows is None else rows[2], pages) if flag is not None]
    known = {
        "thermal": getattr(nvml, "nvmlClocksThrottleReasonHwThermalSlowdown", 0x40),
        "power brake": getattr(nvml, "nvmlClocksThrottleReasonHwPowerBrakeSlowdown", 0x80),
    }
    return Health(
        index,
        uuid.decode() if isinstance(uuid, bytes) else str(uuid),
        uncorrected=ask("nvmlDeviceGetTotalEccErrors", 1, 0),  # uncorrected, since the driver was loaded
        rows_failed=None if rows is None else bool(rows[3]),
        rows_pending=any(pending) if pending else None,
        slowed=tuple(why for why, bit in known.items() if reasons & bit),
        links_down=sum(one == 0 for one in links),
        links_up=sum(one == 1 for one in links),
    )
