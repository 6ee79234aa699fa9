"""The result of a check: a value, its table, its JSON. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"


@dataclass(frozen=True)
class Finding:
    """One check and its result. A failure has a remedy."""

    check: str
    status: str
    detail: str
    remedy: str = ""
    rank: int | None = None  # the rank that reported it, in a check of the whole job


def worst_status(findings: Sequence[Finding]) -> str:
    """fail if anything failed, else warn if there is a warning, else ok."""
    statuses = {finding.status for finding in findings}
    return FAIL if FAIL in statuses else WARN if WARN in statuses else OK


def find_exit_code(findings: Sequence[Finding]) -> int:
    """1 if anything failed; warnings do not count."""
    return int(worst_status(findings) == FAIL)


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    return {"status": worst_status(findings), "findings": [asdict(finding) for finding in findings]}


def render_table(findings: Sequence[Finding]) -> str:
    """A table for people; each remedy is below its finding."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        where = f"[rank {finding.rank}] " if finding.rank is not None else ""
        lines.append(f"{finding.status:<5} {finding.check:<{width}}  {where}{finding.detail}")
        if finding.remedy and finding.status in (WARN, FAIL):
            lines.append(f"{'':<5} {'':<{width}}  -> {finding.remedy}")
    counts = [f"{sum(finding.status == status for finding in findings)} {status}" for status in (OK, WARN, FAIL, SKIP)]
    return "\n".join([*lines, ", ".join(counts)])
