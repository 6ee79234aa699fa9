"""Training scripts as people write them, drawn from a seed: each must train the same while its world changes.

`scripts_features` are the habits that are combined, `scripts_text` writes a script, `scripts_worlds` runs it alone
and disturbed, as a restart and as a session, and `scripts_judge` compares what is left behind. `scripts_streams` runs
several scripts at a time: one mostly waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from chaos.curve import run_worlds
from chaos.trials import Report

PER_CORE = 3  # scripts at a time, which wait for each other, for sleeps and for the ends of processes


def choose_side_by_side(wanted: int | None) -> int:
    return wanted or PER_CORE * (os.cpu_count() or 1)


def run(
    seed: int,
    scripts: int,
    agents: int = 5,
    each: Sequence[str] = (),
    side_by_side: int = 1,
    first: int = 0,
    minutes: float | None = None,
    steps: int | None = None,
) -> Report:
    """Scripts of consecutive seeds, each fifth with real agents; `--only scripts --scripts 1 --seed N` repeats one.

    `each`: one plain script with each of these features, instead. `first`: how many of the scripts were run earlier.
    `steps` of each script, if there are to be others than usual. After so many `minutes` no further script is begun,
    and the last line says with which one to go on.
    """
    report, began = Report("scripts", seed), time.monotonic()
    arguments = ["--seed", str(seed + first), "--scripts", str(scripts - first), "--agents", str(agents)]
    arguments += ["--streams", str(max(1, side_by_side))]
    arguments += ["--each", *each] if each else []
    arguments += ["--minutes", str(minutes)] if minutes is not None else []
    arguments += ["--steps", str(steps)] if steps is not None else []
    for found in run_worlds(*arguments, module="chaos.scripts_worlds"):
        wrong = [f"{found['script']}: {one}" for one in found["violations"]]
        told = (
            f"{'WRONG' if wrong else 'ok':5} {found['seconds']:5.1f} s {found['script']}; {', '.join(found['forms'])}"
        )
        report.histories += 1
        report.faults += sum(len(done) for done in found["done"].values())
        report.violations += wrong
        print("\n".join([told, *wrong]), flush=True)
    report.seconds = time.monotonic() - began
    if not each:
        report.more = {"from": first, "next": first + report.histories, "of": scripts}
    print(report.line(), flush=True)
    return report
