"""Sessions: what a step costs more than a plain one, and what many changes of the world leave in a rank.

Steps take turns with plain ones in the same processes (see `scripts/session_cost.py`). Every change but each fifth is
announced; the fifth is a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import harness, launchers
from benchmarks.processes import install_clean_up

SESSIONS = (("ddp", 2), ("fsdp", 2), ("hsdp", 2), ("fsdp", 4), ("hsdp", 4))
NAMES = {"ddp": "DDP", "fsdp": "FSDP2", "hsdp": "FSDP2 with copies (HSDP)"}
REGROUPED = ("ddp", "hsdp")
Found = Mapping[str, Any]


def run(what: str, *options: str) -> list[dict[str, Any]]:
    """The lines of one run of the script."""
    return launchers.run_script("session_cost.py", what, *options, timeout=900)


def describe_steps(name: str, runs: Sequence[Found]) -> list[harness.Result]:
    """A step in a session against a plain one: elapsed, and CPU time of a rank."""
    results = []
    parts = (("Step", ""), ("Main", ", CPU of the main thread"), ("Cpu", ", CPU of all threads"))
    for what, case in parts:
        ours, plain = ([one[f"{side}{what}Us"] / 1e6 for one in runs] for side in ("session", "plain"))
        results.append(harness.Result("sessions", f"{name}: a step{case}", ours, "the plain step", plain))
    return results


def describe_regroups(name: str, looks: Sequence[Found]) -> list[harness.Result]:
    """What a rank has at the beginning, and after so many changes, and how long each took with a step."""
    results = []

    def add(case: str, value: float, kind: harness.Kind) -> None:
        results.append(harness.Result("sessions", case, [value], "none", [], kind))

    for look in looks:
        label = f"{name}, after {look['regroups']} regroups"
        add(f"{label}: threads of a rank", look["threads"], "count")
        add(f"{label}: open files of a rank", look["files"], "count")
        add(f"{label}: sockets of a rank", look["sockets"], "count")
        add(f"{label}: memory of a rank", look["rssMiB"] * 2**20, "bytes")
        if look["regroups"]:
            add(f"{label}: a regroup and a step", look["msEach"] / 1000, "seconds")
    return results


def main(argv: Sequence[str] | None = None) -> None:
    install_clean_up()
    options = harness.parse_options("sessions", __doc__ or "", argv, budgets=(50, 900), repeats=(1, 3))
    report = harness.Report("sessions", options)
    steps, regroups = (500, 100) if options.quick else (3000, 1000)
    for kind, ranks in SESSIONS[:1] if options.quick else SESSIONS:
        if options.has_time():
            size = ("--kind", kind, "--ranks", str(ranks), "--steps", str(steps))
            runs = [run("steps", *size)[0] for _ in range(options.repeats)]
            report.add_all(describe_steps(f"{NAMES[kind]}, {ranks} ranks", runs))
    for kind in REGROUPED:
        if options.has_time():
            often = ("--kind", kind, "--regroups", str(regroups), "--look-every", str(regroups // 2))
            report.add_all(describe_regroups(f"{NAMES[kind]}, 2 ranks", run("regroups", *often)))
    report.finish()


if __name__ == "__main__":
    main()
