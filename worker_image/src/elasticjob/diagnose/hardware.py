"""The checks of a machine's hardware: memory, disk, devices. Each takes the environment and returns a `Finding`."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from elasticjob.diagnose import counters, devices
from elasticjob.diagnose.findings import FAIL, OK, SKIP, WARN, Finding

Environment = Mapping[str, str]
_LEAST_SHM = 1 << 30
_SHM = "/dev/shm"  # noqa: S108 - the path to check
_MEMORY = 64 << 20  # bytes to write and to read again
_DISK = 8 << 20  # bytes to write, to sync and to read again
_PROBE_SECONDS = 90.0  # for all devices of a pod: torch is imported, and each has some seconds
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
    """CUDA devices: whether there are enough, and whether each computes right, holds what is written, and is fast."""
    import torch

    if not torch.cuda.is_available():
        if environ.get("NVIDIA_VISIBLE_DEVICES") not in (None, "", "void", "none"):
            remedy = "the pod has a GPU, but this torch cannot use it: check the CUDA build and the driver"
            return Finding("devices", WARN, f"no CUDA device; {os.cpu_count()} CPU cores", remedy)
        return Finding("devices", OK, f"no CUDA device; {os.cpu_count()} CPU cores")
    found = probe_devices(environ)
    if isinstance(found, Finding):
        return found
    names = [one.name for one in found]
    return devices.judge_sharing(_count_processes(environ), len(found), names) or devices.judge(found)


def probe_devices(environ: Environment, seconds: float = _PROBE_SECONDS) -> list[devices.Measured] | Finding:
    """What a process of its own has measured on the devices: nothing of it stays on them, and it may hang."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "elasticjob.diagnose.device_probe"]
        child = subprocess.Popen(command, env=dict(environ), stdout=output, stderr=errors)
        try:
            code: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            child.kill()
            # Where the driver hangs it does not end: nobody waits but a thread of its own.
            threading.Thread(target=child.wait, name="elasticjob-probe", daemon=True).start()
        output.seek(0)
        errors.seek(0)
        rows = [json.loads(line) for line in output.read().decode(errors="replace").splitlines() if line.endswith("}")]
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
    if code == 0 and rows:
        return [devices.Measured(**row) for row in rows]
    remedy = "drain the node: a device or its driver does not answer"
    where = f"cuda:{len(rows)}"
    if code is None:
        return Finding("devices", FAIL, f"{where} did not answer within {seconds:g} s", remedy)
    return Finding(
        "devices", FAIL, f"{where}: {' '.join(last) or f'the process that tried it ended with {code}'}", remedy
    )


def _count_processes(environ: Environment) -> int:
    """The processes that share this pod's devices: of the launcher, or of the agent that is about to launch them."""
    text = environ.get("LOCAL_WORLD_SIZE") or environ.get("PET_NPROC_PER_NODE") or "1"
    return int(text) if text.isdecimal() else 1


def check_device_health(environ: Environment) -> Finding:
    """What the driver has counted: errors of memory, clocks that the hardware holds down, links that are down."""
    if not Path("/dev/nvidiactl").exists() and shutil.which("nvidia-smi") is None:
        return Finding("device health", SKIP, "no NVIDIA driver")
    found, source = counters.read(environ)
    if not found:
        return Finding("device health", SKIP, "neither NVML (nvidia-ml-py) nor nvidia-smi answers")
    return devices.judge_health(found, source)
