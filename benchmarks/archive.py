"""The archive of checkpoints, in a directory (`file://`): see `scripts/archive_cost.py`.

A step of training is compared with one of the same job without an archive, what is sent with what has changed, and the
restore of 1 GiB with a plain copy. The numbers of a store such as S3 are those of its network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks import harness, launchers

_WITHOUT = "the same job without an archive"


def describe_training(runs: Sequence[Mapping[str, float]]) -> list[harness.Result]:
    def read(key: str) -> list[float]:
        return [one[key] for one in runs]

    return [
        harness.Result("archive", "a step", read("step"), _WITHOUT, read("stepWithout")),
        harness.Result("archive", "CPU of the agent in a step", read("cpu"), _WITHOUT, read("cpuWithout")),
        harness.Result("archive", "sent", read("sent"), "what has changed", read("changed"), "bytes"),
    ]


def describe_restore(runs: Sequence[Mapping[str, float]]) -> harness.Result:
    restores, copies = [one["restore"] for one in runs], [one["copy"] for one in runs]
    return harness.Result("archive", f"restore {runs[0]['mb']} MiB", restores, "a plain copy", copies)


def main(argv: Sequence[str] | None = None) -> None:
    options = harness.parse_options("archive", __doc__ or "", argv, budgets=(60, 400), repeats=(1, 3))
    report = harness.Report("archive", options)
    blocks = ("--blocks", "1" if options.quick else "6")
    report.add_all(describe_training([_run("train", *blocks) for _ in range(options.repeats)]))
    size = ("--mb", "128" if options.quick else "1024")
    report.add(describe_restore([_run("restore", *size) for _ in range(options.repeats)]))
    report.finish()


def _run(*words: str) -> Mapping[str, float]:
    found: Mapping[str, float] = launchers.run_script("archive_cost.py", *words)[-1]
    return found


if __name__ == "__main__":
    main()
