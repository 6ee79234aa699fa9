"""Recognises a script that loads no checkpoint: its new process reports the first step again. No I/O here."""

from __future__ import annotations

from typing import Final

_ENOUGH: Final = 10  # steps; a process that made fewer may not have saved yet


class Steps:
    """The steps that the processes of one local rank reported, in their order."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._highest = 0  # of the processes before this one
        self._latest = 0
        self._counts_on = True  # the step never decreased in a living process, as one that is counted by epoch does

    def report(self, pid: int, step: int | None) -> str | None:
        """Note a report. Returns what to log if this process began at the first step after others were further."""
        if step is None:
            return None
        if pid == self._pid:
            self._counts_on = self._counts_on and step >= self._latest
            self._latest = step
            return None
        self._highest = max(self._highest, self._latest)
        self._pid, self._latest = pid, step
        if not self._counts_on or step > 1 or self._highest < _ENOUGH:
            return None
        return (
            f"The script began at step {step} again, after step {self._highest}: it loads no checkpoint, so every "
            "change of the world repeats all steps. Save a checkpoint regularly, and load the newest one at the start: "
            "docs/elastic-scripts.md and docs/frameworks.md show how."
        )
