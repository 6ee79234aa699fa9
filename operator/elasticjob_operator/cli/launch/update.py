"""`update`: new code for a job that runs, in the pods that it has."""

from __future__ import annotations

from pathlib import Path

import click

from elasticjob_operator.cli import common
from elasticjob_operator.cli.common import output_option, target_options, with_client
from elasticjob_operator.cli.launch.submit import checked, parse_variables
from elasticjob_operator.client import Client, Job
from elasticjob_operator.launch import update as updating
from elasticjob_operator.launch.bundle import read_code


@click.command()
@common.job_argument
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@target_options
@click.option("--code", type=click.Path(exists=True), help="The file or folder with the new code.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave these files out; repeatable.")
@click.option("-e", "--env", "variables", multiple=True, metavar="KEY=VALUE", help="For the script; repeatable.")
@click.option("--undo", is_flag=True, help="Run again what ran before the last update.")
@output_option("json", "yaml", "name")
def update(
    name: str,
    arguments: tuple[str, ...],
    code: str | None,
    exclude: tuple[str, ...],
    variables: tuple[str, ...],
    undo: bool,
    output: str | None,
) -> None:
    """Change the code of a job that runs, without new pods.

    kubectl elasticjob update NAME --code . -- --lr 0.01

    The scripts save, and go on with the new files from there. If these fail before their first step, the job goes back
    to the files that it had. Variables (-e) and arguments that are not given are those of the manifest.
    """
    if undo == bool(code):
        raise click.UsageError("specify the new code (--code), or --undo")
    if undo and (arguments or variables or exclude):
        raise click.UsageError("--undo takes no arguments, --env or --exclude: an update is taken back as a whole")
    bundle = checked(lambda: read_code(Path(code), exclude)) if code else None
    revision = None
    if bundle is not None:
        revision = updating.Revision(bundle, tuple(arguments) or None, parse_variables(variables))

    async def work(client: Client) -> Job:
        return await (updating.undo(client, name) if revision is None else updating.update(client, name, revision))

    job = with_client(work)
    wanted = job.spec.code if job.spec is not None else None
    number = wanted.revision if wanted is not None else 0
    sent = f" with {bundle.describe()}" if bundle is not None else ""
    common.report_change(
        job,
        output,
        f"elasticjob {name} will run revision {number}{sent}, once its pods have it; kubectl elasticjob watch {name}",
    )
