"""`logs`: the logs of all ranks, each line prefixed with the ranks of its pod. `diagnose`: the hang reports in them."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Final

import click
from rich.text import Text

from elasticjob_operator.cli import common
from elasticjob_operator.cli.common import target_options, with_client
from elasticjob_operator.client import Client, Line, diagnosis
from elasticjob_operator.client.logs import Window, find_window
from elasticjob_operator.view import details, words

_MOST_COLOURS: Final = 1000  # of a line; those of one with more are not looked at
_MOST_TABS: Final = 1000  # of a line; those of one with more are spaces: to find the place of one takes as long
# What a terminal obeys: a colour, which is the first group if its numbers are short ones; other commands; titles and
# links with their end; the rest, of two or three letters; or an ESC alone. To look for an end takes no longer than the
# way to the next ESC.
_COMMAND: Final = re.compile(
    r"\x1b(?:\[([0-9;]{0,64})m|\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])?"
)


@click.command()
@common.job_argument
@target_options
@click.option("-r", "--rank", type=click.IntRange(min=0), help="Only the pod that runs this rank.")
@click.option("-f", "--follow", is_flag=True, help="Follow until the job has finished, including pods that join.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last N lines of each pod.")
@click.option("-p", "--previous", is_flag=True, help="Show the last failure: traceback and end of the log.")
@click.option("-g", "--generation", type=click.IntRange(min=1), help="Only what was written while this world was.")
@click.option("--timestamps", is_flag=True)
@click.option("--no-prefix", is_flag=True, help="Do not prefix lines with ranks.")
def logs(
    name: str,
    rank: int | None,
    follow: bool,
    tail: int | None,
    previous: bool,
    generation: int | None,
    timestamps: bool,
    no_prefix: bool,
) -> None:
    """The logs of all ranks. With several pods, each line begins with the ranks of its pod."""
    if previous and (follow or timestamps or {rank, generation, tail} != {None}):
        raise click.UsageError(
            "--previous shows the last failure of the job, as its status has it:"
            " leave out --follow, --rank, --generation, --tail and --timestamps"
        )
    if generation is not None and (follow or rank is not None or tail is not None):
        raise click.UsageError(
            "--generation shows what the pods of the job have written in one world, in which they had other ranks:"
            " leave out --follow, --rank and --tail"
        )

    async def work(client: Client) -> None:
        if previous:
            await _show_failure(client, name)
            return
        window = None if generation is None else await _find_window(client, name, generation)
        out, silent = common.console(), True
        async for line in client.logs(name, rank=rank, follow=follow, tail=tail, window=window):
            told = line if window is None or window.until is None else replace(line, ranks=range(0))  # they were others
            text = line_text(told, prefix=not no_prefix and rank is None, timestamps=timestamps)
            out.print(text, soft_wrap=True)
            silent = False
        if silent and generation is not None:
            common.warn(f"no pod of {name} has a log of generation {generation} any more")
        elif silent and not await client.pods(name):
            common.warn(f"{name} has no pods, so there are no logs; --previous shows the last failure")

    with_client(work)


@click.command()
@common.job_argument
@target_options
@click.option("-g", "--generation", type=click.IntRange(min=1), help="Of this generation. Default: the last report.")
def diagnose(name: str, generation: int | None) -> None:
    """Show the last hang: the rank that holds up the others, and the stack and last collective of every rank."""

    async def work(client: Client) -> None:
        job = await client.get(name)
        found = await _find_reports(client, name, generation)
        told = job.status.diagnosis
        if told is not None:
            common.show(details.diagnosis(told, time.time()))
        if not found and told is None:
            raise common.Misuse(f"job {name} has not hung, or the logs of its pods no longer tell")
        for pod, report in found.items():
            common.echo(f"\n=== {pod}, generation {report.generation}: {report.summary}\n{report.text}")
        if not found:
            common.warn("no pod of the job has a report in its log any more: they were replaced since")

    with_client(work)


async def _find_window(client: Client, name: str, generation: int) -> Window:
    job = await client.get(name)
    window = find_window(job, generation)
    if window is None:
        known = [world.generation for world in job.status.timeline]
        told = f"generations {min(known)} to {max(known)}" if known else "none"
        raise common.Misuse(f"status.timeline has no generation {generation} of job {name}: it has {told}")
    return window


async def _find_reports(client: Client, name: str, generation: int | None) -> dict[str, diagnosis.HangReport]:
    """By pod. Nothing else is kept of the logs."""
    finders: dict[str, diagnosis.Finder] = {}
    async for line in client.logs(name):
        finders.setdefault(line.pod, diagnosis.Finder(generation)).read(line.text)
    return diagnosis.choose_last(finders)


async def _show_failure(client: Client, name: str) -> None:
    job = await client.get(name)
    if job.status.last_failure is None:
        raise common.Misuse(f"job {name} has had no failure, so there is no previous log")
    common.show(details.failure(job.status.last_failure, time.time()))


def line_text(line: Line, *, prefix: bool, timestamps: bool) -> Text:
    """One line as it is shown. The colour belongs to the pod's first rank, so that it stays."""
    text = Text()
    if prefix:
        label = words.ranks(line.ranks)
        style = words.RANK_STYLES[line.ranks.start % len(words.RANK_STYLES)] if line.ranks else "dim"
        text.append(f"[{label if line.ranks else line.pod}] ", style=style)
    if timestamps and line.time:
        text.append(f"{line.time} ", style="dim")
    return text.append_text(_colours_of(line.text))


def _colours_of(line: str) -> Text:
    """The line as it ends up where a progress bar wrote it over and over, with its colours but without its links.

    Only colours with short numbers are decoded: rich reads numbers of any length, and looks for the end of each link in
    all of the line.
    """
    line = line.rstrip("\r").rpartition("\r")[2]
    if line.count("\t") > _MOST_TABS:
        line = line.replace("\t", " ")
    if not 0 < line.count("\x1b") <= _MOST_COLOURS:
        return Text(line)
    return Text.from_ansi(_COMMAND.sub(_keep_colour, line))


def _keep_colour(command: re.Match[str]) -> str:
    """What is in the place of a command to a terminal. An ESC alone must not come before what follows the next one."""
    if command[1] is not None:
        return command[0]
    return "\N{REPLACEMENT CHARACTER}" if command[0] == "\x1b" else ""
