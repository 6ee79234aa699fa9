"""The checks of a machine's hardware: memory, disk, devices. Each takes the environment and returns a `Finding`."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from elasticjob.diagnose.findings import FAIL, OK, WARN, Finding

Environment = Mapping[str, str]
_LEAST_SHM = 1 << 30
_SHM = "/dev/shm"  # noqa: S108 - the path to check
_MEMORY = 64 << 20  # bytes to write and to read again
_DISK = 8 << 20  # bytes to write, to sync and to read again
_SLOW_DISK = 10.0  # seconds for that: under 1 MB/s
_OF_THE_POD = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)  # how the pod is set up, not a broken disk


def check_shared_memory(environ: Environment) -> Finding:
    """NCCL and DataLoader workers need /dev/shm; a container gets 64 MiB by default."""
    path = Path(_SHM)
    if not path.is_dir():
        return Finding(_SHM, WARN, "it does not exist", "mount an emptyDir with medium Memory at /dev/shm")
    free = shutil.disk_usage(path).free
    detail = f"{free / 2**20:.0f} MiB free"
    if free < _LEAST_SHM:
        remedy = "mount an emptyDir with medium Memory at /dev/shm: DataLoader workers and NCCL need it"
        return Finding(_SHM, WARN, detail, remedy)
    return Finding(_SHM, OK, detail)


def check_memory(environ: Environment) -> Finding:
    """Whether 64 MiB hold what was written to them, and can be had at all."""
    pattern = bytes(range(256)) * 4096
    places = [slice(start, start + len(pattern)) for start in range(0, _MEMORY, len(pattern))]
    try:
        held = memoryview(bytearray(_MEMORY))
    except MemoryError:
        return Finding("memory", FAIL, f"no {_MEMORY >> 20} MiB are left", "raise the pod's memory limit")
    for place in places:
        held[place] = pattern
    for place in places:
        if held[place] != pattern:
            return Finding("memory", FAIL, "it does not hold what was written to it", "drain the node: memory is bad")
    return Finding("memory", OK, f"{_MEMORY >> 20} MiB hold what was written")


def check_disk(environ: Environment) -> Finding:
    """Whether the folder for temporary files can be written, synced and read, and how fast."""
    folder = environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the folder that programs use
    written = os.urandom(1 << 20) * (_DISK >> 20)
    started = time.monotonic()
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="elasticjob-check-") as file:
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
            took = time.monotonic() - started
            is_same = Path(file.name).read_bytes() == written
    except OSError as error:
        if error.errno in _OF_THE_POD:
            return Finding("disk", WARN, f"{folder}: {error}", "mount an emptyDir there if the script needs the folder")
        return Finding("disk", FAIL, f"{folder}: {error}", "free space on the node's disk, or drain the node")
    if not is_same:
        return Finding(
            "disk", FAIL, f"{folder} does not hold what was written to it", "drain the node: its disk is bad"
        )
    text = f"{folder}: {_DISK >> 20} MiB written and synced in {took:.2f} s"
    if took > _SLOW_DISK:
        return Finding("disk", WARN, text, "look at the node's disk")
    return Finding("disk", OK, text)


def check_devices(environ: Environment) -> Finding:
    """CUDA devices, and whether each can compute."""
    import torch

    if not torch.cuda.is_available():
        if environ.get("NVIDIA_VISIBLE_DEVICES") not in (None, "", "void", "none"):
            remedy = "the pod has a GPU, but this torch cannot use it: check the CUDA build and the driver"
            return Finding("devices", WARN, f"no CUDA device; {os.cpu_count()} CPU cores", remedy)
        return Finding("devices", OK, f"no CUDA device; {os.cpu_count()} CPU cores")
    names = []
    for index in range(torch.cuda.device_count()):
        try:
            value = torch.ones(1024, device=f"cuda:{index}").sum().item()
        except RuntimeError as error:
            return Finding(
                "devices", FAIL, f"cuda:{index}: {str(error).splitlines()[0]}", "drain the node: the device is broken"
            )
        if value != 1024:
            return Finding("devices", FAIL, f"cuda:{index} computes {value} for 1024", "drain the node")
        names.append(torch.cuda.get_device_name(index))
    return Finding("devices", OK, ", ".join(names))
