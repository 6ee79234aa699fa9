"""`local`: run a script on this machine, as a job on a cluster of its own, with pods as processes."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import time
from pathlib import Path
from typing import Any, Final

import click

from elasticjob_operator import api, numerals
from elasticjob_operator.cli import common
from elasticjob_operator.cli.launch.following import Shown, follow_job
from elasticjob_operator.cli.launch.submit import code_options, pack, parse_variables
from elasticjob_operator.client import Client, ClientError, Job, build_manifest
from elasticjob_operator.launch.attach import Shipment, default_name
from elasticjob_operator.launch.local import (
    IMAGE,
    LocalCluster,
    count_cpus,
    limit_restarts,
    run_in,
    worker_environment,
)
from elasticjob_operator.launch.send import send
from elasticjob_operator.launch.source import find_source

_LOOK_EVERY: Final = 0.5
_LARGEST_CODE: Final = 255


class _Workers(click.ParamType[tuple[int, int]]):
    """A number of workers, or a range `1..4`."""

    name = "N|MIN..MAX"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        first, dots, last = str(value).partition("..")
        low = numerals.read_count(first, 9999) or 0
        high = (numerals.read_count(last, 9999) or 0) if dots else low
        if not 1 <= low <= high:
            self.fail(f"{value!r}: write a number, or a range with the smaller one first, as in 1..4", param, ctx)
        return low, high


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--workers", type=_Workers(), default="1..2", show_default=True, help="Pods, each of them one process.")
@click.option("--cpus", type=click.IntRange(min=1), help="For all workers together. Default: those of this machine.")
@click.option(
    "--retries", type=click.IntRange(min=0), default=0, show_default=True, help="Restarts after a worker failed."
)
@click.option("--all-ranks", is_flag=True, help="Show the lines of all ranks. Default: those of rank 0.")
@common.output_option("json")
@code_options
def local(
    script: str,
    arguments: tuple[str, ...],
    workers: tuple[int, int],
    cpus: int | None,
    retries: int,
    all_ranks: bool,
    output: str | None,
    code: str | None,
    exclude: tuple[str, ...],
    requirements: str | None,
    variables: tuple[str, ...],
    name: str | None,
) -> int:
    """Run a SCRIPT on this machine, on a real API server, with pods as processes.

    kubectl elasticjob local train.py --workers 1..4 -- --epochs 10

    The working directory is the current one, and a script runs where it lies. The exit code is that of the job. Ctrl-C
    ends everything. Steps that the script writes as JSON objects become a line a second; -o json shows them as they
    are.
    """
    low, high = workers
    shown = Shown.ALL if all_ranks else Shown.FIRST if output else Shown.BRIEF
    given = cpus or count_cpus()
    try:
        source = find_source(script, code, exclude, in_place=requirements is None)
        if source.bundle is None and script.endswith(".py") and not Path(script).exists():
            raise common.Misuse(f"{script}: no such file: name a script of this machine")
        manifest = build_manifest(
            name or default_name(source.name, secrets.token_hex(2)),
            IMAGE,
            [*source.command, *arguments],
            min_replicas=low,
            max_replicas=high,
            env={**worker_environment(given, high, os.environ), **parse_variables(variables)},
        )
        limit_restarts(manifest, retries)
        # A command that is no script finds what was sent in its working directory alone.
        if not code or script.endswith(".py"):
            run_in(manifest, Path.cwd())
        shipment = pack(manifest, source.bundle, requirements)
        return _run(shipment, given, shown)
    except (api.InvalidJobError, ClientError) as error:
        raise common.Misuse(str(error)) from None


def _run(shipment: Shipment, cpus: int, shown: Shown) -> int:
    name = shipment.manifest["metadata"]["name"]
    began = time.monotonic()
    common.note("starting an API server on this machine ...")
    with LocalCluster.start(cpus) as cluster:
        common.note(
            f"... took {time.monotonic() - began:.1f} s. To change the job from another terminal:\n"
            f"  export KUBECONFIG={shlex.quote(cluster.kubeconfig)}\n"
            f"  kubectl elasticjob scale {name} N    # or: watch, logs -f, chaos pod {name}"
        )
        try:
            return _exit_code(asyncio.run(_follow(cluster, shipment, shown)))
        except KeyboardInterrupt:
            common.warn(f"{name} ends here: a local job lives as long as its terminal")
            raise


async def _follow(cluster: LocalCluster, shipment: Shipment, shown: Shown) -> Job:
    async with Client(kubeconfig=cluster.kubeconfig, namespace="default") as client:
        job = await send(client, shipment)
        following = asyncio.create_task(follow_job(client, job.name, shown=shown))
        try:
            while not following.done():
                cluster.check()
                await asyncio.wait((following,), timeout=_LOOK_EVERY)
            return await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def _exit_code(job: Job) -> int:
    """0, or that of the process that failed the job."""
    if not job.status.is_true("Failed"):
        return 0
    last = job.status.last_failure
    code = last.exit_code if last is not None else None
    return code if code is not None and 0 < code <= _LARGEST_CODE else common.FAILED
