"""Snapshots in memory of every step, for states of several sizes: see `scripts/snapshot_cost.py`.

What training waits for is compared with `torch.save` to the same file system, and the time until a snapshot is complete
with a plain copy of the same bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks import harness, launchers

SCRIPT = launchers.ROOT / "benchmarks" / "scripts" / "snapshot_cost.py"


def describe(runs: Sequence[Mapping[str, float]]) -> list[harness.Result]:
    """One size; the script writes milliseconds."""

    def read(key: str) -> list[float]:
        return [one[key] / 1000 for one in runs]

    size = f"{runs[0]['mb']} MiB"
    return [
        harness.Result(
            "snapshots", f"{size}: training waits", read("waits"), "torch.save to /dev/shm", read("torchSave")
        ),
        harness.Result("snapshots", f"{size}: until complete", read("untilComplete"), "a plain copy", read("copy")),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    options = harness.parse_options("snapshots", __doc__ or "", argv, budgets=(50, 300), repeats=(1, 3))
    report = harness.Report("snapshots", options)
    for megabytes in (10, 100) if options.quick else (10, 100, 500):
        command = [sys.executable, str(SCRIPT), "--mb", str(megabytes), *(["--steps", "12"] if options.quick else [])]
        runs = []
        for _ in range(options.repeats):
            done = subprocess.run(
                command, env=launchers.base_environment(), stdout=subprocess.PIPE, check=True, timeout=300
            )
            runs.append(json.loads(done.stdout))
        report.add_all(describe(runs))
    report.finish()


if __name__ == "__main__":
    main()
