"""The hang reports in the logs of a job's pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from elasticjob_operator import numerals

_BEGIN: Final = re.compile(r"elasticjob: hang report of generation (?P<generation>[0-9]{1,16}): (?P<summary>.*)")
_END: Final = "elasticjob: end of the hang report"
_MOST_LINES: Final = 5000


@dataclass(frozen=True)
class HangReport:
    """What one agent found when its world hung: the stacks and the last collectives of its ranks."""

    generation: int
    summary: str
    text: str


def find_reports(logs: Mapping[str, Iterable[str]], generation: int | None = None) -> dict[str, HangReport]:
    """The reports of one world by pod: of this generation, or of the last one that has any."""
    found = {pod: report for pod, lines in sorted(logs.items()) if (report := find_report(lines, generation))}
    last = max((report.generation for report in found.values()), default=0)
    return {pod: report for pod, report in found.items() if report.generation == last}


def find_report(lines: Iterable[str], generation: int | None = None) -> HangReport | None:
    """The last report in a log, or the last one of this generation. One whose end is missing counts as it is."""
    found: HangReport | None = None
    begun: HangReport | None = None
    inside: list[str] = []
    for line in lines:
        begin = _BEGIN.search(line)
        if begin or (begun is not None and (_END in line or len(inside) >= _MOST_LINES)):
            found = _close(begun, inside, generation) or found
            begun, inside = None, []
        if begin:
            begun = HangReport(numerals.read_count(begin["generation"]) or 0, begin["summary"], "")
        elif begun is not None:
            inside.append(line)
    return _close(begun, inside, generation) or found


def _close(begun: HangReport | None, inside: list[str], generation: int | None) -> HangReport | None:
    if begun is None or generation not in (None, begun.generation):
        return None
    return HangReport(begun.generation, begun.summary, "\n".join(inside).rstrip())
