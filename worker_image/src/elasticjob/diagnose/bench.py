"""`elasticjob bench`: measure the collectives, and compare them with the limit of the machine.

The conventions are those of nccl-tests. Algorithm bandwidth is size divided by time; for all_gather, reduce_scatter and
all_to_all the size is that of the whole buffer. Bus bandwidth multiplies it by the minimum that each rank must send, so
that it is comparable with the link's bandwidth for any number of ranks. The raw limit is measured in the same run: one
TCP stream between ranks 0 and 1 for gloo, a copy on the device for NCCL.

Under a launcher it measures that world; otherwise it starts one on this machine. It prints one JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from elasticjob.diagnose.hosted_worlds import HostedWorld
from elasticjob.errors import ConfigurationError

OPERATIONS = ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "all_to_all", "send_recv")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def bus_factor(operation: str, world_size: int) -> float:
    """The factor from algorithm bandwidth to bus bandwidth."""
    n = world_size
    if operation == "all_reduce":
        return 2 * (n - 1) / n
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) / n
    return 1.0


def parse_sizes(text: str) -> list[int]:
    """Sizes in bytes: `1K:16M` is every second power of two between them; `1K,3M` are these two.

    Raises ConfigurationError for an invalid size.
    """
    try:
        if ":" in text:
            low, high = (_parse_size(part) for part in text.split(":"))
            sizes = []
            while low <= high:
                sizes.append(low)
                low *= 4
        else:
            sizes = [_parse_size(part) for part in text.split(",")]
    except (KeyError, ValueError):
        raise ConfigurationError(f"--sizes={text!r}: write 1K:16M or 4K,1M, with K, M or G.") from None
    if not sizes or min(sizes) < 4:
        raise ConfigurationError(f"--sizes={text!r}: sizes must be 4 bytes or more, the smaller one first.")
    return sizes


def _parse_size(text: str) -> int:
    unit = text.strip().upper().rstrip("B")[-1:]
    unit = unit if unit in "KMG" else ""
    digits = text.strip().upper().rstrip("B").removesuffix(unit)
    return int(digits) * _UNITS[unit]


def build_row(operation: str, size: int, seconds: float, world: tuple[int, str], raw: float) -> dict[str, Any]:
    """One result. Bandwidths, including `raw`, are in 10^9 bytes per second."""
    world_size, backend = world
    algorithm = size / seconds / 1e9
    bus = algorithm * bus_factor(operation, world_size)
    return {
        "operation": operation,
        "bytes": size,
        "worldSize": world_size,
        "backend": backend,
        "seconds": seconds,
        "algorithmGBs": algorithm,
        "busGBs": bus,
        "rawGBs": raw,
        "ofRaw": bus / raw if raw else None,
    }


def run_in_world(operations: Sequence[str], sizes: Sequence[int], least_seconds: float) -> Iterator[dict[str, Any]]:
    """Measure in the world that the launcher describes; every rank yields the same rows."""
    from elasticjob.context.setup import init
    from elasticjob.diagnose.measure import measure, measure_raw

    with init(timeout=120, threads=1) as world:
        raw = measure_raw(world)
        for operation in operations:
            for size in sizes:
                try:
                    seconds = measure(operation, size, world, least_seconds)
                except (RuntimeError, NotImplementedError) as error:
                    reason = str(error).splitlines()[0]
                    if world.rank == 0:
                        sys.stderr.write(f"{operation} cannot be measured on {world.backend}: {reason}\n")
                    break
                yield build_row(operation, size, seconds, (world.world_size, world.backend), raw)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot bus bandwidth over size, one line per operation, and the raw limit, as a PNG.

    Raises ConfigurationError without matplotlib.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise ConfigurationError("--plot needs matplotlib: pip install 'elasticjob[plot]'.") from None
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for operation in dict.fromkeys(row["operation"] for row in rows):
        mine = [row for row in rows if row["operation"] == operation]
        axes.plot([row["bytes"] for row in mine], [row["busGBs"] for row in mine], marker="o", label=operation)
    raw = rows[0]["rawGBs"]
    if raw:
        axes.axhline(raw, linestyle="--", color="black", label="raw limit")
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="bus bandwidth (GB/s)")
    axes.set_title(f"{rows[0]['backend']}, {rows[0]['worldSize']} ranks")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def _start_world(size: int, arguments: Sequence[str]) -> int:
    """Run the same command in several processes on this machine; rank 0 writes to our standard output."""
    world = HostedWorld(size)
    command = [sys.executable, "-m", "elasticjob", "bench", *arguments]
    processes = []
    try:
        for rank in range(size):
            processes.append(subprocess.Popen(command, env=dict(os.environ) | world.place(rank)))
        watcher = threading.Thread(target=_stop_all_if_one_fails, args=(processes,))
        watcher.start()
        codes = [process.wait() for process in processes]
        watcher.join()
        return max(abs(code) for code in codes)
    finally:
        for process in processes:
            process.kill()


def _stop_all_if_one_fails(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            time.sleep(1)  # the other ranks raise an error of their own, which is more useful
            for process in processes:
                process.kill()
            return
        time.sleep(0.05)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="elasticjob bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", default="all", help=f"all, or some of {','.join(OPERATIONS)}")
    parser.add_argument("--sizes", default="1K:16M", help="bytes: FIRST:LAST in steps of four, or a list")
    parser.add_argument("--seconds", type=float, default=0.2, help="least time to measure each point")
    parser.add_argument("--nproc", type=int, default=2, help="ranks to start when no launcher did")
    parser.add_argument("--plot", type=Path, default=None, metavar="FILE.png")
    options = parser.parse_args(given)
    try:
        sizes = parse_sizes(options.sizes)
        operations = OPERATIONS if options.operations == "all" else tuple(options.operations.split(","))
        unknown = [name for name in operations if name not in OPERATIONS]
        if unknown:
            raise ConfigurationError(f"--operations={unknown[0]!r} is unknown: use {', '.join(OPERATIONS)}.")
        if not os.environ.get("RANK"):
            return _start_world(options.nproc, given)
        rows = []
        for row in run_in_world(operations, sizes, options.seconds):
            rows.append(row)
            if os.environ["RANK"] == "0":
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
        if options.plot and os.environ["RANK"] == "0" and rows:
            plot(rows, options.plot)
    except ConfigurationError as error:
        sys.stderr.write(f"elasticjob bench: {error}\n")
        return 2
    return 0
