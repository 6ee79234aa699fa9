"""The costs of the runtime for a script: import, report, checkpoint, sampler; and of an agent.

Every case runs in fresh processes. An import is the whole lifetime of an interpreter that imports and exits; the peer
imports only torch. Memory is the proportional share (PSS) of the agent process, idle before its first world: shared
pages count in part.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import cases, harness, launchers, plots, timeline
from benchmarks.launchers import local, torchrun
from benchmarks.processes import install_clean_up

SCRIPT = launchers.ROOT / "benchmarks" / "scripts" / "runtime_case.py"
MEASURED = {
    "report() per call": ("report", "a logging call that is switched off"),
    "checkpoint: training waits for save()": ("checkpoint:blocking", "torch.save and fsync"),
    "checkpoint: until it is on disk": ("checkpoint:save", "torch.save and fsync"),
    "checkpoint: against the disk": ("checkpoint:disk", "raw write of as many bytes and fsync"),
    "checkpoint: restore": ("checkpoint:restore", "torch.load and load_state_dict"),
    "sampler: an epoch of 200,000, one of 4 ranks": ("sampler", "DistributedSampler and BatchSampler"),
}
IMPORTS = (
    "import torch; import elasticjob",
    "import torch; import elasticjob; elasticjob.init, elasticjob.report, elasticjob.all_reduce",
)


def run_case(case: str, repeats: int, megabytes: int, directory: Path) -> dict[str, list[float]]:
    command = [sys.executable, str(SCRIPT), case, "--repeats", str(repeats), "--megabytes", str(megabytes)]
    done = subprocess.run(
        command,
        env=launchers.base_environment(),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{case}: {done.stderr.strip()[-600:]}")
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def time_import(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=launchers.base_environment(), check=True, timeout=120)
    return time.perf_counter() - begin


def measure_imports(repeats: int) -> list[harness.Result]:
    found: dict[str, list[float]] = {code: [] for code in ("import torch", *IMPORTS)}
    for _ in range(repeats):
        for code, times in found.items():
            times.append(time_import(code))
    plain = found["import torch"]
    return [harness.Result("runtime", code, found[code], "import torch", plain) for code in IMPORTS]


def read_memory(pid: int) -> float:
    """Proportional set size in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return float(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss of process {pid}")


def measure_agent(launcher: local.Local | torchrun.Torchrun, node: int = 0) -> float:
    """The memory of an agent whose one worker trains, in bytes."""
    with tempfile.TemporaryDirectory(prefix="elasticjob-bench-") as directory:
        job = launchers.Job(Path(directory), 1)
        run = cases.Run(launcher, timeline.Tail(job.steps))
        try:
            launcher.open(job, wanted=1)
            began = launcher.start_agent(node)
            if cases.wait_for_world(run, 1, began, 90.0) is None:
                raise RuntimeError(f"{launcher.name}: the worker did not start")
            return read_memory(launcher.pods[node].process.pid)
        finally:
            launcher.close()


def main(argv: Sequence[str] | None = None) -> None:
    install_clean_up()
    options = harness.parse_options("runtime", __doc__ or "", argv, budgets=(50, 300), repeats=(3, 7))
    report = harness.Report("runtime", options)
    bars: dict[str, dict[str, float]] = {}
    megabytes = 32 if options.quick else 256
    for label, (case, peer) in MEASURED.items():
        if not options.has_time():
            break
        found = run_case(case, options.repeats, megabytes, options.out)
        size = f", {megabytes} MiB" if case.startswith("checkpoint") else ""
        report.add(harness.Result("runtime", label + size, found["ours"], peer, found["peer"]))
    report.add_all(measure_imports(options.repeats))
    if not options.quick:
        ours = [measure_agent(local.elasticjob_run_cold()) for _ in range(2)]
        plain = [measure_agent(torchrun.tuned()) for _ in range(2)]
        report.add(harness.Result("runtime", "agent memory, PSS", ours, "torchrun c10d agent", plain, "bytes"))
    for line in report.lines:
        values = line.get("seconds") or {}
        if values.get("median") and line["peerValue"]["median"]:
            bars[line["case"]] = {"ours": values["median"], "peer": line["peerValue"]["median"]}
    plots.draw_bars(options.out / "runtime.png", bars, "seconds (median)")
    report.finish()


if __name__ == "__main__":
    main()
