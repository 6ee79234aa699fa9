"""A crash at every step: each scenario, with the operator killed before or after its n-th write, or without a reply to
it. The writes are counted in an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.fault_proxy import Do, Fault, Request
from chaos.lab import Lane, Stage
from chaos.stories import STORIES, Ending, tell_disturbed, tell_undisturbed
from chaos.trials import Report, Trial, run_trial, run_trials

MODES = (Do.KILL_BEFORE, Do.KILL_AFTER, Do.DROP_REPLY)


class Once:
    """A fault at the n-th write, which is not repeated when the operator retries."""

    def __init__(self, do: Do, write: int) -> None:
        self.do, self.write, self.made = do, write, False

    def __call__(self, request: Request) -> Fault | None:
        if request.write != self.write or self.made:
            return None
        self.made = True
        return Fault(self.do)


def crash_trial(name: str, ending: Ending, do: Do, write: int) -> Trial:
    def tell(stage: Stage) -> None:
        stage.proxy.rule = Once(do, write)
        tell_disturbed(stage, STORIES[name], ending)

    return Trial(f"{name}/{do.value}/{write}", tell)


def find_endings(lanes: Sequence[Lane], names: Sequence[str]) -> tuple[dict[str, Ending], Report]:
    """The end state of each scenario without a fault."""
    endings: dict[str, Ending] = {}

    def baseline(name: str) -> Trial:
        def tell(stage: Stage) -> None:
            endings[name] = tell_undisturbed(stage, STORIES[name])

        return Trial(f"{name}/undisturbed", tell)

    return endings, run_trials("undisturbed", 0, lanes, [baseline(n) for n in names])


def all_crashes(endings: dict[str, Ending]) -> list[Trial]:
    return [
        crash_trial(name, ending, do, write)
        for name, ending in endings.items()
        for write in range(1, ending.writes + 1)
        for do in MODES
    ]


__all__ = ["all_crashes", "crash_trial", "find_endings", "run_trial"]
