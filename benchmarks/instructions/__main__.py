"""Instructions of what the operator and the runtime do again and again, and of the start of a pod."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import harness
from benchmarks.instructions import counting


def main(argv: Sequence[str] | None = None) -> None:
    options = harness.parse_options("instructions", __doc__ or "", argv, budgets=(240, 240), repeats=(1, 1))
    if not counting.is_available():
        raise SystemExit("valgrind is missing; on Debian: apt-get install valgrind")
    report = harness.Report("instructions", options)
    for module in counting.MODULES:
        rounds = [counting.count(module) for _ in range(options.repeats)]
        for case in rounds[0]:
            counts = [found[case] for found in rounds]
            report.add(harness.Result("instructions", case, counts, "none", [], "count"))
    report.finish()


if __name__ == "__main__":
    main()
