"""Training scripts as people write them, drawn from a seed: each must train the same while its world changes.

`scripts_features` are the habits that are combined, `scripts_text` writes a script, `scripts_worlds` runs it alone
and disturbed, as a restart and as a session, and `scripts_judge` compares what is left behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from chaos.curve import run_worlds
from chaos.trials import Report


def run(seed: int, scripts: int, agents: int = 5, each: Sequence[str] = (), side_by_side: int = 1) -> Report:
    """Scripts of consecutive seeds, each fifth with real agents; `--only scripts --scripts 1 --seed N` repeats one.

    `each`: one plain script with each of these features, instead.
    """
    report, began, lock = Report("scripts", seed), time.monotonic(), threading.Lock()

    def work(first: int) -> None:
        arguments = ["--seed", str(seed + first), "--scripts", str(scripts - first), "--agents", str(agents)]
        arguments += ["--each", *each] if each else ["--every", str(side_by_side)]
        for found in run_worlds(*arguments, module="chaos.scripts_worlds"):
            wrong = [f"{found['script']}: {one}" for one in found["violations"]]
            took = f"{found['seconds']:5.1f} s"
            told = f"{'WRONG' if wrong else 'ok':5} {took} {found['script']}; {', '.join(found['forms'])}"
            with lock:
                report.histories += 1
                report.faults += sum(len(done) for done in found["done"].values())
                report.violations += wrong
                print("\n".join([told, *wrong]), flush=True)

    places = 1 if each else max(1, min(side_by_side, scripts))
    with ThreadPoolExecutor(places) as pool:
        list(pool.map(work, range(places)))  # which raises what they raise
    report.seconds = time.monotonic() - began
    print(report.line(), flush=True)
    return report
