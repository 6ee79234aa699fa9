"""The hang reports in the logs of a job's pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from elasticjob_operator import numerals
from elasticjob_operator.text import cut

_BEGIN: Final = re.compile(r"elasticjob: hang report of generation (?P<generation>[0-9]{1,16}): (?P<summary>.*)")
_END: Final = "elasticjob: end of the hang report"
_LONGEST_SUMMARY: Final = 4096  # characters: a pod may write as much as it likes ...
_LONGEST_REPORT: Final = 256 * 1024  # ... and a job may have thousands


@dataclass(frozen=True)
class HangReport:
    """What one agent found when its world hung: the stacks and the last collectives of its ranks."""

    generation: int
    summary: str
    text: str


class Finder:
    """Reads the log of one pod, of which it keeps the last report, or the last one of this generation.

    One whose end is missing counts as it is.
    """

    def __init__(self, generation: int | None = None) -> None:
        self._generation = generation
        self._found: HangReport | None = None
        self._begun: HangReport | None = None
        self._inside: list[str] = []
        self._left = 0  # bytes that the report may still have

    def read(self, line: str) -> None:
        begin = _BEGIN.search(line)
        if begin or (self._begun is not None and (_END in line or len(line) > self._left)):
            self._found, self._begun = self.report, None
        if begin:
            generation = numerals.read_count(begin["generation"]) or 0
            self._begun = HangReport(generation, cut(begin["summary"], _LONGEST_SUMMARY), "")
            self._inside, self._left = [], _LONGEST_REPORT
        elif self._begun is not None:
            self._inside.append(line)
            self._left -= len(line) + 1

    @property
    def report(self) -> HangReport | None:
        """What was found so far."""
        if self._begun is None or self._generation not in (None, self._begun.generation):
            return self._found
        return replace(self._begun, text="\n".join(self._inside).rstrip())


def choose_last(finders: Mapping[str, Finder]) -> dict[str, HangReport]:
    """The reports of one world by pod: of the last one that has any."""
    found = {pod: finder.report for pod, finder in sorted(finders.items())}
    last = max((report.generation for report in found.values() if report), default=0)
    return {pod: report for pod, report in found.items() if report and report.generation == last}


def find_report(lines: Iterable[str], generation: int | None = None) -> HangReport | None:
    """The report in a log, as a `Finder` has it."""
    finder = Finder(generation)
    for line in lines:
        finder.read(line)
    return finder.report
