"""Commands that change a job: scale, suspend, resume, delete; and how a file with a manifest is read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click

from elasticjob_operator.cli import common
from elasticjob_operator.cli.common import output_option, target_options, with_client
from elasticjob_operator.client import Client, Job
from elasticjob_operator.client.documents import DocumentError, load_documents


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
    """The YAML or JSON objects in the text of a file, and those in its lists. Raises Misuse if they cannot be read."""
    try:
        documents = load_documents(text)
    except DocumentError as error:
        raise common.Misuse(f"{path}: {error}") from None
    documents = [one for document in documents for one in _list_items(document)]
    if any(not isinstance(d, dict) for d in documents):
        raise common.Misuse(f"{path}: has a document that is not an object: use the YAML of a job")
    return documents


def _list_items(document: Any) -> list[Any]:
    """What `kubectl get` prints of several objects is a list of them."""
    match document:
        case {"kind": "List", "items": list(items)}:
            return items
    return [document]


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
    """Set the number of pods. Training continues while pods join or leave.

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
