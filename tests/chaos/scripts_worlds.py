"""Runs generated scripts in worlds without agents: real processes, groups and kills, cheaply.

Each script runs undisturbed in a world of two, and then in each of its forms while ranks are killed, come and go. The
processes are forked with their imports made, and `Worlds` of `elasticjob verify` starts, kills and calls them.

python -m chaos.scripts_worlds --seed N --scripts M prints a JSON object for each script.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import chaos.endings  # noqa: F401 - before what registers functions at exit: its own is to be the last one
from chaos import huge_pages, scripts_agents, scripts_judge
from chaos.curve_worlds import act
from chaos.scripts_features import RESTART
from chaos.scripts_judge import Run
from chaos.scripts_streams import Answer, Order, work_through
from chaos.scripts_text import HEADER, STEPS, Script, draw, draw_with
from chaos.sessions import Event, make_schedule
from elasticjob.diagnose.verify import start_server
from elasticjob.diagnose.verify_worlds import Lines, WorldFailedError, Worlds
from elasticjob.launch import process
from elasticjob.launch.fork_server import ForkServer
from elasticjob.torchcompat import forking

PATIENCE = 60.0  # seconds without a step, on a busy machine
WRONG = 3
LARGEST = 3
Events = tuple[tuple[int, float, Event], ...]


def plan(seed: int, changes: int, steps: int = STEPS) -> tuple[int, Events]:
    """The first size, and events: before each, so many steps are made, and so many seconds pass. Pure."""
    chance = random.Random(seed)
    size = chance.randint(1, LARGEST)
    schedule = make_schedule(seed, changes, size, LARGEST)
    if chance.random() < 0.5:
        schedule.insert(chance.randrange(changes + 1), Event("suspend" if seed % 2 else "kill-all"))
    at = sorted(chance.sample(range(1, steps - 4), len(schedule)))
    return size, tuple((step, chance.uniform(0.0, 0.04), event) for step, event in zip(at, schedule, strict=True))


def run(
    server: ForkServer, text: str, folder: Path, size: int, events: Events, done: list[str], steps: int = STEPS
) -> Run:
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(text)
    lines = Lines(folder / "out")

    def count() -> int:
        return max((line["step"] for line in lines.read() if "step" in line), default=0)

    result = Run()
    with Worlds(server, (str(script), str(folder / "out"), str(folder / "saved")), folder, count, PATIENCE) as worlds:
        try:
            worlds.start(size)
            for step, delay, event in events:
                if worlds.wait_for(step) and not worlds.is_ending:
                    time.sleep(delay)
                    done.append(f"{event} at {step}")
                    act(worlds, Event("kill-all") if event.kind == "suspend" else event)  # agents give it its grace
            worlds.wait_for(steps + 1)  # they end by themselves
        except WorldFailedError as failure:
            said = (folder / "output").read_text(errors="replace")[-4000:]
            result.error = f"{failure}\n{said}"
    result.lines = lines.read()
    result.finals = scripts_judge.read_finals(folder / "out")
    result.files = sorted(str(path.relative_to(folder)) for path in (folder / "saved").rglob("*"))
    result.newest = scripts_judge.read_newest(folder / "saved")
    return result


def check(
    server: ForkServer, script: Script, folder: Path, changes: int, start: scripts_agents.Start | None
) -> dict[str, object]:
    """Run a script in all its forms, and say what was wrong. `start`: how pods of its agents start, if it has any."""
    folder.mkdir(parents=True)
    wrong: list[str] = []
    done: dict[str, list[str]] = {}
    reference = run(server, script.texts[RESTART], folder / "reference", 2, (), [], script.steps)
    if reference.error is not None:
        wrong.append(f"undisturbed: {reference.error}")
    else:
        wrong += [f"undisturbed: {one}" for one in scripts_judge.compare(reference, reference, script.steps, 0.0)]
    for form, text in script.texts.items() if not wrong else ():
        size, events = plan(script.seed, changes, script.steps)
        told = done.setdefault(form, [])
        if start is not None:
            found = scripts_agents.run(
                text, folder / form, size, events, told, start, script.steps, is_session=form != RESTART
            )
        else:
            found = run(server, text, folder / form, size, events, told, script.steps)
        differences = scripts_judge.compare(found, reference, script.steps, script.tolerance)
        differences += scripts_judge.check_suspends(found, script.steps, script.every, script.is_told, script.tolerance)
        wrong += [f"{form} from {size}, {done[form]}: {one}" for one in differences[:6]]
    return {"seed": script.seed, "script": str(script), "forms": list(script.texts), "done": done, "violations": wrong}


def choose_start(seed: int, agents: int, header: Path) -> scripts_agents.Start | None:
    """How a script's pods are started: each `agents`th script has some, and of ten such, two make imports themselves.

    Pure. An import of torch's distributed parts in each agent takes longer than the training.
    """
    if agents <= 0 or seed % agents:
        return None
    kinds = {0: scripts_agents.Start(), 5: scripts_agents.Start(warm=False)}
    return kinds.get(seed // agents % 10, scripts_agents.Start(header=header))


def list_orders(args: argparse.Namespace) -> list[Order]:
    if args.each:
        return [{"seed": args.seed, "with": name} for name in args.each]
    return [{"seed": seed} for seed in args.only or range(args.seed, args.seed + args.scripts)]


def draw_orders(args: argparse.Namespace) -> Iterator[Order]:
    """The scripts to run, until the time is over."""
    ends = math.inf if args.minutes is None else time.monotonic() + 60 * args.minutes
    for number, order in enumerate(list_orders(args)):
        if time.monotonic() > ends:
            return
        yield order | {"number": number}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.scripts_worlds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scripts", type=int, default=500)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each script")
    parser.add_argument("--changes", type=int, default=3)
    parser.add_argument("--only", type=int, nargs="*", help="these seeds instead")
    parser.add_argument("--each", nargs="*", default=(), help="one plain script with each of these features, instead")
    parser.add_argument("--agents", type=int, default=0, metavar="N", help="every Nth seed under real agents")
    parser.add_argument("--streams", type=int, default=1, metavar="N", help="scripts at a time")
    parser.add_argument("--minutes", type=float, help="begin no script after so long")
    parser.add_argument("--keep", type=Path, help="a folder for the scripts and what they wrote")
    args = parser.parse_args(argv)
    failed, owner, folder = False, os.getpid(), Path(tempfile.mkdtemp(prefix="scripts-"))
    header = folder / "header.py"

    def make(stack: ExitStack) -> Callable[[Order], Answer]:
        server = stack.enter_context(start_server([str(header)]))

        def work(order: Order) -> Answer:
            began = time.monotonic()
            seed = order["seed"]
            script = draw_with(seed, order["with"], args.steps) if "with" in order else draw(seed, args.steps)
            place = (args.keep or folder) / f"{order['number']}-{script.seed}"
            found = check(server, script, place, args.changes, choose_start(script.seed, args.agents, header))
            return found | {"seconds": round(time.monotonic() - began, 1)}

        return work

    try:
        header.write_text(HEADER + "import fsspec.core\n")  # as the first save does, in each process
        process.pause_collection()
        runpy.run_path(str(header))  # here, for all streams
        forking.import_compiler()
        process.freeze()
        process.resume_collection()
        huge_pages.collapse()
        orders = list_orders(args)
        if any(choose_start(order["seed"], args.agents, header) for order in orders):
            scripts_agents.prepare(header)
        for found in work_through(draw_orders(args), min(args.streams, len(orders)), make):
            failed = failed or bool(found["violations"])
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    finally:
        if os.getpid() == owner:  # and not a process that was forked here, and has ended
            shutil.rmtree(folder, ignore_errors=True)
    return WRONG if failed else 0


if __name__ == "__main__":
    sys.exit(main())
