"""Every elastic launcher that installs from PyPI, at its defaults and at its best, against ElasticJob: one command.

Events (time to the first step of every rank, and the pause), goodput and repeated steps under random kills, and what a
rescale costs in bytes of the control plane and writes to the API server. Systems take turns. `OUT/scoreboard.json` has
everything, also of a run that was ended early; the Markdown and the plot are made from it, at the end or with
`--render`. Peers other than torchrun take part once `python -m benchmarks.peers install` was run.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import cases, harness, peers, plots
from benchmarks.launchers.catalogue import CONTESTANTS, Contestant
from benchmarks.processes import install_clean_up
from benchmarks.scoreboard import measuring, page
from benchmarks.scoreboard.cells import Board

LEFT_OUT = ("cold", "tuned")  # other settings of systems that take part: to be named
QUICK_CASES = ("start 2 below max", "SIGKILL follower", "grow 2 to 3")
BUDGETS = (500.0, 3 * 3600.0)  # an event may run over it by its time limit
PARTS = ("events", "goodput", "costs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [one.name for one in CONTESTANTS]
    parser.add_argument("--systems", nargs="*", choices=names, help=f"default: all but {', '.join(LEFT_OUT)}")
    parser.add_argument("--cases", nargs="*", choices=[case.name for case in cases.EVERY], help="only these events")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS, help="only these parts")
    parser.add_argument("--through", choices=("hub", "cluster"), default="hub", help="what ours runs behind")
    parser.add_argument("--minutes", type=float, help="length of a goodput series (default: 10; quick: 1)")
    parser.add_argument(
        "--kill-every", type=float, nargs="*", help="seconds between two kills (default: 60 20; quick: 20)"
    )
    parser.add_argument("--seed", type=int, help="of the order and the kills (default: printed)")
    parser.add_argument("--render", type=Path, metavar="FILE", help="measure nothing: write page and plot of this file")


def choose(options: harness.Options) -> list[Contestant]:
    """The systems of this run, as its options name them."""
    named = options.extra.systems
    chosen = [one for one in CONTESTANTS if (one.name in named if named else one.name not in LEFT_OUT)]
    if options.extra.through == "hub":
        return chosen
    return [replace(one, make=one.on_cluster) if one.on_cluster else one for one in chosen]


def write(board: Board, out: Path, name: str) -> None:
    """The page and the plot."""
    (out / f"{name}.md").write_text(page.render_board(board) + "\n")
    plots.draw_board(out / f"{name}.png", board)
    harness.say(f"{out}: {name}.json, {name}.md, {name}.png")


def name_files(parts: Sequence[str]) -> str:
    """The files of a run of some parts have names of their own: all three kinds of runs can be kept."""
    return "scoreboard" if set(parts) == set(PARTS) else f"scoreboard-{'-'.join(sorted(parts))}"


def main(argv: Sequence[str] | None = None) -> None:
    install_clean_up()
    options = harness.parse_options(
        "scoreboard", __doc__ or "", argv, budgets=BUDGETS, repeats=(1, 3), add_arguments=add_arguments
    )
    extra, quick = options.extra, options.quick
    options.out.mkdir(parents=True, exist_ok=True)
    if extra.render:
        write(Board.load(json.loads(extra.render.read_text())), options.out, extra.render.stem)
        return
    seed = extra.seed if extra.seed is not None else random.SystemRandom().randrange(10**6)
    harness.say(f"seed {seed}: repeat with --seed {seed}")
    name = name_files(extra.only)
    board = Board(harness.describe_machine(), harness.find_today(), seed, quick, command=options.command)
    chosen = choose(options)
    missing = set(peers.find_missing(sorted({one.package for one in chosen if one.package})))
    run = measuring.Measuring(board, options.out / f"{name}.json", options.deadline, chosen)
    named = extra.cases or (QUICK_CASES if quick else [case.name for case in cases.EVERY])
    run.run(
        sorted((case for case in cases.EVERY if case.name in named), key=lambda case: list(named).index(case.name)),
        missing=missing,
        parts=extra.only,
        repeats=options.repeats,
        minutes=extra.minutes or (1.0 if quick else 10.0),
        kill_every=extra.kill_every or ([20.0] if quick else [60.0, 20.0]),
    )
    write(run.board, options.out, name)
    options.finish(f"{name}.json", "goodput-*.png" if name == "scoreboard-goodput" else f"{name}.png")


if __name__ == "__main__":
    main()
