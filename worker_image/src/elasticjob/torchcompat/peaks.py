"""Which device a process has, and what it computes at most, by its data sheet: the measure of model FLOPs utilization
(MFU).

In floating-point operations a second, of dense matrix products (without structured sparsity) in bfloat16 or, on devices
that do not have it, in float16. A device that is not listed has no utilization, unless the script gives its peak.
"""

from __future__ import annotations

import re
import sys
from typing import Final

# By the words that have to be in the name that torch gives of the device; of several that fit, the one with most words.
PEAKS: Final = {
    ("GB200",): 2500e12,
    ("B200",): 2250e12,
    ("GH200",): 989e12,
    ("H200",): 989e12,
    ("H200", "NVL"): 835e12,
    ("H100",): 989e12,
    ("H100", "PCIe"): 756e12,
    ("H100", "NVL"): 835e12,
    ("H800",): 989e12,
    ("H800", "PCIe"): 756e12,
    ("H20",): 148e12,
    ("A100",): 312e12,
    ("A800",): 312e12,
    ("A40",): 150e12,
    ("A30",): 165e12,
    ("A10",): 125e12,
    ("A10G",): 70e12,
    ("L40S",): 362e12,
    ("L40",): 181e12,
    ("L4",): 121e12,
    ("V100",): 125e12,
    ("V100", "PCIE"): 112e12,
    ("V100S",): 130e12,
    ("T4",): 65e12,
    ("MI325X",): 1307e12,
    ("MI300X",): 1307e12,
    ("MI300A",): 981e12,
    ("MI250X",): 191.5e12,  # of one of its two dies, which are two devices
    ("MI250",): 181e12,  # the same
    ("MI210",): 181e12,
}
_PART: Final = re.compile(r"MIG|\d+(A|B|C|CME|Q)")  # what says so in a name: of a vGPU, its memory and its series


def find_peak(name: str) -> float | None:
    """The peak of the device of this name. None if it is not known, or the device is a part of one (MIG or vGPU)."""
    words = {word.upper() for word in re.split(r"[\s\-_]+", name)}
    if any(map(_PART.fullmatch, words)):
        return None
    found = [key for key in PEAKS if words.issuperset(word.upper() for word in key)]
    return PEAKS[max(found, key=len)] if found else None


def read_device() -> str:
    """The present device of this process, as its administrator finds it; "" without one, as for `read_peak`."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return ""
        index = torch.cuda.current_device()
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)  # from torch 2.5 on
        return f"cuda:{index}" if uuid is None else f"cuda:{index} GPU-{uuid}"
    except Exception:  # a device may have failed, and a report must not
        return ""


def read_peak() -> float | None:
    """The peak of the present device of this process. None without one: nothing is imported or initialized for it."""
    torch = sys.modules.get("torch")
    try:
        return find_peak(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_initialized() else None
    except Exception:  # a device may have failed, and a report must not
        return None
