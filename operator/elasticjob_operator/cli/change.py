"""Commands that change a job: submit, scale, suspend, resume, delete."""

from __future__ import annotations

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Any, Final

import click
import yaml

from elasticjob_operator import api
from elasticjob_operator.api import bounds
from elasticjob_operator.cli import common
from elasticjob_operator.cli.common import output_option, target_options, with_client
from elasticjob_operator.client import Client, ClientError, Job, build_manifest, rules

_IMAGE_VARIABLE: Final = "ELASTICJOB_IMAGE"
MOST_VALUES: Final = 100_000  # in one document of a file


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@target_options
@click.option("-f", "--file", "path", type=click.Path(allow_dash=True), help="A manifest instead of a script.")
@click.option("--name", help="Default: the script's name and four random letters.")
@click.option("--image", envvar=_IMAGE_VARIABLE, help=f"The image that holds the script. [env: {_IMAGE_VARIABLE}]")
@click.option("--replicas", type=click.IntRange(min=1), help="Requested pods.")
@click.option("--min", "low", type=click.IntRange(min=1), help="Train with no fewer pods.")
@click.option("--max", "high", type=click.IntRange(min=1), help="Never have more pods.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, help="GPUs of each pod (nvidia.com/gpu).")
@click.option("--nproc", help="Worker processes of each pod: auto, cpu, gpu or a number.")
@click.option("-e", "--env", "variables", multiple=True, metavar="KEY=VALUE", help="For the script; repeatable.")
@click.option("--dry-run", is_flag=True, help="Check and print the YAML, and send nothing.")
@output_option("json", "yaml", "name")
def submit(
    script: str | None,
    arguments: tuple[str, ...],
    path: str | None,
    name: str | None,
    image: str | None,
    replicas: int | None,
    low: int | None,
    high: int | None,
    gpus: int,
    nproc: str | None,
    variables: tuple[str, ...],
    dry_run: bool,
    output: str | None,
) -> None:
    """Start a job from a SCRIPT in an image, or from a manifest.

    kubectl elasticjob submit train.py --image my/training:1 --min 1 --max 4 -- --epochs 10

    The script is run by torchrun. A name without .py is run as it is: `submit -- python -m pkg`.
    """
    if path is not None:
        if script:
            raise click.UsageError("specify a script or --file, not both")
        manifest = read_manifest(path, name)
    else:
        if not script:
            raise click.UsageError("specify a script, or a manifest with --file")
        if not image:
            raise click.UsageError(f"--image: is required: the image that holds the script (or set {_IMAGE_VARIABLE})")
        manifest = _build(
            name or default_name(script, secrets.token_hex(2)),
            image,
            command_of(script, arguments),
            replicas=replicas,
            min_replicas=low,
            max_replicas=high,
            gpus=gpus,
            nproc=nproc,
            env=parse_variables(variables),
        )
    if dry_run:
        try:
            rules.check_manifest(manifest)
        except (api.InvalidJobError, ClientError) as error:
            raise common.Misuse(str(error)) from None
        common.echo(common.dump(manifest, "json" if output == "json" else "yaml"))
        return

    async def work(client: Client) -> Job:
        return await client.submit(manifest, common.current_target().namespace)

    job = with_client(work)
    common.report_change(job, output, f"elasticjob {job.name} created; kubectl elasticjob watch {job.name}")


def _build(name: str, image: str, command: list[str], **options: Any) -> dict[str, Any]:
    try:
        return build_manifest(name, image, command, **options)
    except api.InvalidJobError as error:
        raise common.Misuse(str(error)) from None


def command_of(script: str, arguments: tuple[str, ...]) -> list[str]:
    """The container's command: torchrun for a Python file; anything else is run as given."""
    return [*(("torchrun",) if script.endswith(".py") else ()), script, *arguments]


def default_name(script: str, suffix: str) -> str:
    """A name that Kubernetes takes, from a script's: `Train_v2.py` → `train-v2-3f9a`."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:40].rstrip("-")
    return f"{stem or 'job'}-{suffix}"


def parse_variables(variables: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE pairs; a KEY alone takes its value from the caller's environment, as docker does."""
    found: dict[str, str] = {}
    for pair in variables:
        key, equals, value = pair.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", key):
            raise click.UsageError(f"--env {pair}: must be KEY=VALUE")
        if not equals and key not in os.environ:
            raise click.UsageError(f"--env {key}: is not set in this environment: use {key}=VALUE")
        found[key] = value if equals else os.environ[key]
    return found


def read_manifest(path: str, name: str | None) -> dict[str, Any]:
    """Read the single ElasticJob in a file. Raises Misuse if there is more than one document."""
    documents = read_documents(path)
    if len(documents) != 1:
        raise common.Misuse(f"{path}: has {len(documents)} documents: submit takes one ElasticJob")
    manifest = documents[0]
    if name:
        manifest["metadata"] = {**(manifest.get("metadata") or {}), "name": name}
    return manifest


def read_file(path: str) -> str:
    """The text of a file, or stdin (`-`). Raises Misuse if it cannot be read."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise common.Misuse(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_documents(path: str) -> list[dict[str, Any]]:
    """Read the YAML or JSON objects in a file, or from stdin (`-`). Raises Misuse if they cannot be read."""
    return parse_documents(read_file(path), path)


def parse_documents(text: str, path: str) -> list[dict[str, Any]]:
    """The YAML or JSON objects in the text of a file. Raises Misuse if they cannot be read."""
    try:
        documents = [d for d in yaml.safe_load_all(text) if d is not None]
        sizes = [bounds.measure(document, MOST_VALUES) for document in documents]
    except yaml.YAMLError as error:
        raise common.Misuse(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise common.Misuse(f"{path}: is nested too deeply to be parsed") from None
    for size in sizes:
        if size.values > MOST_VALUES:
            raise common.Misuse(
                f"{path}: has more than {MOST_VALUES} values after expanding aliases (*name): "
                "remove what is not needed, or split the file"
            )
        if size.depth > bounds.MOST_DEPTH:
            raise common.Misuse(f"{path}: is nested {size.depth} levels deep; the limit is {bounds.MOST_DEPTH}")
    if any(not isinstance(d, dict) for d in documents):
        raise common.Misuse(f"{path}: has a document that is not an object: use the YAML of a job")
    return documents


AUTO: Final = 0


class _Size(click.ParamType[int]):
    """A number of pods, or `auto`."""

    name = "replicas|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "auto":
            return AUTO
        return click.IntRange(min=1).convert(value, param, ctx)


@click.command()
@common.job_argument
@click.argument("replicas", type=_Size(), required=False)
@click.option("--replicas", "option", type=click.IntRange(min=1), help="As with kubectl scale.")
@target_options
@output_option("json", "yaml", "name")
def scale(name: str, replicas: int | None, option: int | None, output: str | None) -> None:
    """Set the number of pods. Training continues while pods join, or those with the highest index leave.

    A job that shares a pool (scaling.mode Goodput) keeps this number until `scale NAME auto` gives it back to the pool.
    """
    wanted = replicas if replicas is not None else option
    if wanted is None:
        raise click.UsageError("specify the number of replicas, or auto")

    async def work(client: Client) -> Job:
        return await (client.scale(name, wanted) if wanted else client.release(name))

    done = "is scaled by the pool again" if wanted == AUTO else f"scaled to {wanted}"
    common.report_change(with_client(work), output, f"elasticjob {name} {done}")


@click.command()
@common.job_argument
@target_options
@output_option("json", "yaml", "name")
def suspend(name: str, output: str | None) -> None:
    """Save a checkpoint and delete the pods, but keep the job."""

    async def work(client: Client) -> Job:
        return await client.suspend(name)

    common.report_change(with_client(work), output, f"elasticjob {name} is being suspended")


@click.command()
@common.job_argument
@target_options
@output_option("json", "yaml", "name")
def resume(name: str, output: str | None) -> None:
    """Resume a suspended job from its last checkpoint."""

    async def work(client: Client) -> Job:
        return await client.resume(name)

    common.report_change(with_client(work), output, f"elasticjob {name} is being resumed")


@click.command()
@click.argument("jobs", nargs=-1, required=True, shell_complete=common.complete_job)
@target_options
def delete(jobs: tuple[str, ...]) -> None:
    """Delete jobs and their pods."""

    async def work(client: Client) -> None:
        for name in jobs:
            await client.delete(name)
            common.echo(f"elasticjob {name} deleted")

    with_client(work)
