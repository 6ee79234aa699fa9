"""What a pod pays for the runtime without torch: its start, and what is said of its steps.

The first two are counted in a fresh interpreter, so this module imports nothing: it would not be counted.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` is one of the modules that count
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Final

    Work = Callable[[], object]

STEPS = MESSAGES = 1000


def import_runtime() -> Work:
    return lambda: __import__("elasticjob")


def show_help() -> Work:
    """What the command imports, without the start of the interpreter and the import above."""

    def work() -> None:
        from elasticjob import run

        run.main(["--help"])

    return work


def make_reports() -> Work:
    from elasticjob.channel import progress

    reporter = progress.Reporter(0, None)

    def work() -> None:
        for step in range(STEPS):
            reporter.report(0.25 * step, step, STEPS, {"loss": 0.5})

    work()
    return work


def exchange_messages() -> Work:
    """An agent says its state and its progress, and hears of a world."""
    from elasticjob.protocol import wire

    state = wire.AgentState(wire.READY, 1, wire.Store("10.0.0.1", 40_000), 8, "10.0.0.1")
    progress = wire.Progress(1, 0, 100, 1000, 0.25, metrics={"loss": 0.5})
    world = (
        '{"v":1,"type":"directive","directive":{"action":"world","generation":2,"restarts":0,'
        '"store":{"address":"10.0.0.1","port":40000},"rank":1,"sizes":[[1000,8]]}}'
    )

    def work() -> None:
        for _ in range(MESSAGES):
            wire.state(state)
            wire.progress(progress)
            wire.parse(world)

    work()
    return work


CASES: Final[Mapping[str, Callable[[], Work]]] = {
    "import elasticjob": import_runtime,
    "elasticjob-run --help, after that import": show_help,
    "a script: 1,000 reports": make_reports,
    "an agent: 1,000 times its state, its progress and a world": exchange_messages,
}
