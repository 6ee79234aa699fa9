"""`elasticjob verify`: whether a script trains the same in worlds of several sizes, and after kills.

It runs the script in one world after another on this machine, and compares the digests that virtual ranks write of each
phase of each step. A script without virtual ranks is compared by the losses that it reports.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from elasticjob import env
from elasticjob.diagnose.verify_compare import Comparison, Curve, compare, read_curve
from elasticjob.diagnose.verify_worlds import Lines, WorldFailedError, Worlds, count_steps, plan_kills
from elasticjob.launch.fork_server import ForkServer


def run(
    server: ForkServer, name: str, command: Sequence[str], folder: Path, size: int, kills: int, args: argparse.Namespace
) -> Curve:
    """Run the script in a world of this size until it has made enough steps, and read what it wrote."""
    plan = plan_kills(args.seed, size, args.steps, kills)
    trace = folder / "trace"
    trace.mkdir(parents=True)
    lines = Lines(trace)
    with Worlds(
        server, command, folder, lambda: count_steps(lines.read()), args.timeout, {env.TRACE: str(trace)}
    ) as worlds:
        worlds.start(size)
        for step, rank, after in plan:
            if worlds.wait_for(step) and not worlds.is_ending:
                worlds.change(after, kill=[rank])
        worlds.wait_for(args.steps)
    return read_curve(name, lines.read(), worlds.restarts)


@contextlib.contextmanager
def start_server(command: Sequence[str]) -> Iterator[ForkServer]:
    """What starts the processes: the imports of the script are made once, and what they print is not shown."""
    server = ForkServer()
    sys.stderr.flush()
    shown = os.dup(2)
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 2)
        try:
            server.fork(command)
        finally:
            os.dup2(shown, 2)
            os.close(shown)
    try:
        yield server
    finally:
        server.close()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="elasticjob verify",
        description="Does this script train the same in worlds of several sizes, and after kills?",
        epilog="{dir} in an argument of the script is replaced by a new folder for each run: --checkpoint-dir {dir}",
    )
    parser.add_argument("--sizes", default="1,2,4", help="the sizes of the worlds (default: 1,2,4)")
    parser.add_argument("--steps", type=int, default=50, help="how many steps to compare (default: 50)")
    parser.add_argument("--kills", type=int, default=2, help="in one further run, in a world of the largest size")
    parser.add_argument("--seed", type=int, default=0, help="chooses the ranks to kill")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="relative, for reported losses (default: 0.001)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds without a step (default: 120)")
    parser.add_argument("--json", action="store_true", help="one JSON object a run")
    parser.add_argument("script", help="followed by its own arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[int]]:
    """The options, and the sizes. Exits with code 2 for invalid ones."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    try:
        sizes = [int(one) for one in args.sizes.split(",")]
    except ValueError:
        parser.error(f"--sizes {args.sizes}: numbers with commas between them, such as 1,2,4")
    if not sizes or min(sizes) < 1 or args.steps < 1 or args.kills < 0:
        parser.error("--sizes and --steps must be at least 1, and --kills at least 0")
    if not Path(args.script).is_file():
        parser.error(f"{args.script} is not a file")
    return args, sizes


def main(arguments: Sequence[str]) -> int:
    """Run all worlds, print what was found, and return the exit code: 1 if a run differs or fails."""
    args, sizes = parse(arguments)
    command = [str(Path(args.script).resolve()), *(one for one in args.arguments if one != "--")]
    runs = [(f"world of {size}", size, 0) for size in sizes]
    if args.kills:
        runs.append((f"world of {max(sizes)} with {args.kills} kills", max(sizes), args.kills))
    comparisons: list[Comparison] = []
    first: Curve | None = None
    with start_server(command) as server, tempfile.TemporaryDirectory(prefix="elasticjob-verify-") as name:
        for number, (what, size, kills) in enumerate(runs):
            folder = Path(name, str(number))
            try:
                curve = run(server, what, command, folder, size, kills, args)
            except WorldFailedError as error:
                output = (folder / "output").read_text(errors="replace").strip()[-1500:]
                comparisons.append(Comparison(what, "different", f"failed: {error}. Its output ends with:\n{output}"))
            else:
                if first is None:
                    first = curve
                    comparisons.append(Comparison(what, "equal", "what the others are compared with", curve.complete))
                else:
                    comparisons.append(compare(first, curve, args.tolerance, args.steps))
            _say(comparisons[-1], args.json)
            if first is None:
                break
    return int(any(one.verdict in ("different", "unknown") for one in comparisons))


def _say(one: Comparison, as_json: bool) -> None:
    text = json.dumps(asdict(one)) if as_json else f"{one.verdict:10} {one.run}: {one.text}"
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
