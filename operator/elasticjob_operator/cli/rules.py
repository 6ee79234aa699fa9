"""`rules test`: what the rules of a job would have found in a training that is known already."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from elasticjob_operator import api
from elasticjob_operator.cli import common
from elasticjob_operator.cli.change import read_manifest
from elasticjob_operator.cli.common import target_options, with_client
from elasticjob_operator.client import Client, Job
from elasticjob_operator.failures import health_watch, replay
from elasticjob_operator.view.plain import PlainTable


@click.group()
def rules() -> None:
    """Try the rules of a job (spec.health.rules) on a training that is known already."""


@rules.command()
@click.argument("target", shell_complete=common.complete_job)
@click.option("-f", "--file", "manifest", help="The rules of the job in this file. Default: those of the job itself.")
@target_options
def test(target: str, manifest: str | None) -> None:
    """Show what would have fired. TARGET: a job, of which the status keeps reports; or a log: a file, or - for stdin.

    Of a log, each number that a rule reads counts as a report, a second after the one before.
    """
    is_log = target == "-" or Path(target).is_file()
    if is_log and manifest is None:
        raise common.Misuse(f"{target}: a log has no rules of its own: name the manifest with them, -f FILE")
    job = None if is_log else with_client(lambda client: _find(client, target))
    wanted = _rules_of(manifest, job)
    if job is None:
        found = _replay_log(wanted, target)
    else:
        found = replay.replay_reports(wanted, job.status)
        for one in (one for one in job.status.incidents if one.count):
            common.echo(f"{one.rule} has fired {one.count} times, the last time at {one.last_time}: {one.message}")
    if found.fired:
        table = PlainTable("RULE", "WHERE", "WHAT")
        table.columns[-1].no_wrap = False
        for fired in found.fired:
            table.add_row(fired.rule, fired.where, fired.message)
        common.show(table)
    else:
        common.echo("no rule would have fired")
    for name, why in found.untested:
        common.warn(f"{name} is not tested: {why}")


async def _find(client: Client, name: str) -> Job:
    return await client.get(name)


def _rules_of(manifest: str | None, job: Job | None) -> Sequence[api.HealthRule]:
    raw = read_manifest(manifest, None).get("spec") if manifest is not None else job.raw.get("spec") if job else None
    try:
        return health_watch.rules_of(api.parse_spec(raw))
    except api.InvalidJobError as error:
        raise common.Misuse(f"{manifest or 'the job'}: {error}") from None


def _replay_log(wanted: Sequence[api.HealthRule], target: str) -> replay.Replay:
    if target == "-":
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a script may write any bytes
        return replay.replay_lines(wanted, sys.stdin)
    try:
        with Path(target).open(errors="replace") as file:
            return replay.replay_lines(wanted, file)
    except OSError as error:
        raise common.Misuse(f"{target}: cannot be read: {error.strerror}") from None
