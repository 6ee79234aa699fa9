"""Training scripts as people write them, drawn from a seed: each must train the same while its world changes.

`scripts_features` are the habits that are combined, `scripts_text` writes a script, `scripts_worlds` runs it alone
and disturbed, as a restart and as a session, and `scripts_judge` compares what is left behind.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from chaos.curve import run_worlds
from chaos.trials import Report


def run(seed: int, scripts: int, agents: int = 5, each: Sequence[str] = ()) -> Report:
    """Scripts of consecutive seeds, each fifth with real agents; `--only scripts --scripts 1 --seed N` repeats one.

    `each`: one plain script with each of these features, instead.
    """
    report, began = Report("scripts", seed), time.monotonic()
    arguments: tuple[str, ...] = ("--seed", str(seed), "--scripts", str(scripts), "--agents", str(agents))
    if each:
        arguments += ("--each", *each)
    for found in run_worlds(*arguments, module="chaos.scripts_worlds"):
        wrong = [f"{found['script']}: {one}" for one in found["violations"]]
        report.histories += 1
        report.faults += sum(len(done) for done in found["done"].values())
        report.violations += wrong
        took = f"{found['seconds']:5.1f} s"
        told = f"{'WRONG' if wrong else 'ok':5} {took} {found['script']}; {', '.join(found['forms'])}"
        print("\n".join([told, *wrong]), flush=True)
    report.seconds = time.monotonic() - began
    print(report.line(), flush=True)
    return report
