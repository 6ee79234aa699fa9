"""Collectives over gloo on loopback: compared with raw TCP between the same processes, and ours with plain torch.

The limit is a ring of plain sockets that moves the bytes each rank has to send, in both directions at once. In the
comparison with torch, ours are `elasticjob`'s functions with their defaults; `all_gather` writes to an existing tensor,
and `all_gather_new` allocates one for each result, for both sides. `--settings` tries gloo's settings. NCCL is measured
if CUDA is available.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks import harness, launchers, plots
from benchmarks.launchers.torchrun import find_port
from benchmarks.processes import Pod, install_clean_up

WORKER = launchers.ROOT / "benchmarks" / "scripts" / "collective_worker.py"
OPS = ("all_reduce", "all_gather", "all_gather_new", "reduce_scatter", "broadcast", "send_recv")
SIZES = (4, 1024, 16 * 1024, 256 * 1024, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
QUICK_SIZES = (4, 1024, 256 * 1024, 16 << 20)
SETTINGS: dict[str, dict[str, str]] = {
    "plain": {},
    "2 interfaces": {"GLOO_SOCKET_IFNAME": "lo,lo"},
    "4 interfaces": {"GLOO_SOCKET_IFNAME": "lo,lo,lo,lo"},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    "libuv transport": {"GLOO_DEVICE_TRANSPORT": "UV"},
    "lazy init": {"TORCH_GLOO_LAZY_INIT": "1"},
}

Times = dict[tuple[str, int, str], list[float]]  # (operation, bytes, via) -> seconds


def run(
    world: int,
    sizes: Sequence[int],
    ops: Sequence[str],
    directory: Path,
    *,
    repeats: int,
    seconds: float,
    vias: Sequence[str] = ("torch", "elasticjob", "tcp"),
    settings: Mapping[str, str] | None = None,
) -> Times:
    """Start the ranks, wait, and read rank 0's output."""
    port = find_port("127.0.0.1")
    command = [sys.executable, str(WORKER), "--repeats", str(repeats), "--seconds", str(seconds)]
    command += ["--sizes", *map(str, sizes), "--ops", *ops, "--vias", *vias]
    pods = []
    logs = [directory / f"collectives-{world}-{rank}.log" for rank in range(world)]
    try:
        for rank, log in enumerate(logs):
            log.unlink(missing_ok=True)
            where = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            pods.append(Pod(f"rank-{rank}", command, launchers.base_environment() | where | dict(settings or {}), log))
        for pod, log in zip(pods, logs, strict=True):
            if pod.process.wait(timeout=600) != 0:
                raise RuntimeError(f"a rank failed:\n{log.read_text()[-1500:]}")
    finally:
        for pod in pods:
            pod.close()
    found: Times = defaultdict(list)
    for line in logs[0].read_text().splitlines():
        if line.startswith("{"):
            said = json.loads(line)
            found[said["op"], said["bytes"], said["via"]].append(said["seconds"])
    return found


def name_size(size: int) -> str:
    for limit, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= limit:
            return f"{size // limit} {unit}"
    return f"{size} B"


def compare(world: int, found: Times) -> list[harness.Result]:
    """torch against raw TCP, and ours against torch; rates are whole operations per second."""
    results = []
    for (op, size, via), seconds in found.items():
        case = f"{op} {name_size(size)}, {world} ranks"
        pairs = {"torch": ("tcp", "raw TCP ring"), "elasticjob": ("torch", "plain torch")}
        if via in pairs and (op, size, pairs[via][0]) in found:
            peer = [1 / other for other in found[op, size, pairs[via][0]]]
            label = f"{case} [{'elasticjob' if via == 'elasticjob' else 'gloo'}]"
            results.append(harness.Result("collectives", label, [1 / s for s in seconds], pairs[via][1], peer, "rate"))
    return results


def try_settings(options: harness.Options) -> list[harness.Result]:
    """Each setting against the default, alternating; settings that this build does not support are omitted."""
    sizes, found = (
        (1024, 1 << 20, 16 << 20),
        {name: defaultdict[tuple[int, int], list[float]](list) for name in SETTINGS},
    )
    for _ in range(options.repeats):
        for name, settings in SETTINGS.items():
            for world in (2, 4):
                try:
                    times = run(
                        world,
                        sizes,
                        ["all_reduce"],
                        options.out,
                        repeats=1,
                        seconds=0.3,
                        vias=["torch"],
                        settings=settings,
                    )
                except RuntimeError as error:
                    harness.say(f"{name}: {str(error).strip().splitlines()[-1]}")
                    continue
                for (_, size, _), seconds in times.items():
                    found[name][world, size] += seconds
    plain = found["plain"]
    return [
        harness.Result(
            "collectives",
            f"all_reduce {name_size(size)}, {world} ranks [gloo, {name}]",
            [1 / s for s in seconds],
            "gloo, plain",
            [1 / s for s in plain[world, size]],
            "rate",
        )
        for name in SETTINGS
        if name != "plain"
        for (world, size), seconds in found[name].items()
    ]


def draw(path: Path, world: int, found: Times) -> None:
    curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (op, size, via), seconds in sorted(found.items()):
        if via == "torch" and (op, size, "tcp") in found:
            curves[op].append((size, median(found[op, size, "tcp"]) / median(seconds)))
    label = f"gloo's rate as a share of raw TCP ({world} ranks)"
    plots.draw_lines(path, curves, "bytes", label, log=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", action="store_true", help="try what gloo can be told instead")
    parser.add_argument("--max-bytes", type=int, default=SIZES[-1], help="largest message (default: %(default)s)")


def main(argv: Sequence[str] | None = None) -> None:
    install_clean_up()
    options = harness.parse_options(
        "collectives", __doc__ or "", argv, budgets=(50, 600), repeats=(2, 3), add_arguments=add_arguments
    )
    options.out.mkdir(parents=True, exist_ok=True)
    if options.extra.settings:
        harness.Report("collectives-settings", options.out).add_all(try_settings(options))
        return
    report = harness.Report("collectives", options.out)
    sizes = [size for size in (QUICK_SIZES if options.quick else SIZES) if size <= options.extra.max_bytes]
    ops = ("all_reduce", "all_gather", "all_gather_new", "broadcast") if options.quick else OPS
    for world in (2, 4):
        if not options.has_time():
            harness.say("the time is over: what follows is left out (--budget)")
            return
        seconds = 0.1 if options.quick else 0.4
        found = run(world, sizes, ops, options.out, repeats=options.repeats, seconds=seconds)
        report.add_all(compare(world, found))
        draw(options.out / f"collectives-{world}.png", world, found)


if __name__ == "__main__":
    main()
