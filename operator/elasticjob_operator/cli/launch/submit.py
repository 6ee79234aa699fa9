"""`submit`: start a job from a script or a folder of this machine, from a script in an image, or from a manifest."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from elasticjob_operator import api
from elasticjob_operator.api import bounds
from elasticjob_operator.cli import common
from elasticjob_operator.cli.change import read_manifest
from elasticjob_operator.cli.common import output_option, target_options, with_client
from elasticjob_operator.cli.launch.following import come_back, follow_job
from elasticjob_operator.client import Client, ClientError, Job, build_manifest, rules
from elasticjob_operator.launch.attach import Shipment, attach, default_name
from elasticjob_operator.launch.bundle import Bundle, read_code, with_requirements
from elasticjob_operator.launch.send import send
from elasticjob_operator.launch.source import find_source

F = TypeVar("F", bound=Callable[..., Any])
_IMAGE_VARIABLE: Final = "ELASTICJOB_IMAGE"


def code_options(function: F) -> F:
    """How files of this machine become the code of a job."""
    options = (
        click.option("--code", type=click.Path(exists=True), help="The folder to send with the script."),
        click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave these files out; repeatable."),
        click.option(
            "--requirements",
            type=click.Path(exists=True, dir_okay=False),
            help="What pip installs first. Default: requirements.txt of the folder that is sent.",
        ),
        click.option(
            "-e", "--env", "variables", multiple=True, metavar="KEY=VALUE", help="For the script; repeatable."
        ),
        click.option("--name", help="Default: the script's name and four random letters."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@target_options
@click.option("-f", "--file", "path", type=click.Path(allow_dash=True), help="A manifest instead of a script.")
@click.option("--image", envvar=_IMAGE_VARIABLE, help=f"The image that the script runs in. [env: {_IMAGE_VARIABLE}]")
@click.option("--template", help="An ElasticJobTemplate, for what the other options leave out.")
@click.option("--replicas", type=click.IntRange(min=1), help="Requested pods.")
@click.option("--min", "low", type=click.IntRange(min=1), help="Train with no fewer pods.")
@click.option("--max", "high", type=click.IntRange(min=1), help="Never have more pods.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, help="GPUs of each pod (nvidia.com/gpu).")
@click.option("--nproc", help="Worker processes of each pod: auto, cpu, gpu or a number.")
@code_options
@click.option("--in-image", is_flag=True, help="Send nothing: the script is in the image.")
@click.option("--follow", is_flag=True, help="Print the logs until the job has finished; exit code 1 if it failed.")
@click.option("--dry-run", is_flag=True, help="Check and print the YAML, and send nothing.")
@output_option("json", "yaml", "name")
def submit(
    script: str | None,
    arguments: tuple[str, ...],
    path: str | None,
    name: str | None,
    image: str | None,
    template: str | None,
    replicas: int | None,
    low: int | None,
    high: int | None,
    gpus: int,
    nproc: str | None,
    code: str | None,
    exclude: tuple[str, ...],
    requirements: str | None,
    variables: tuple[str, ...],
    in_image: bool,
    follow: bool,
    dry_run: bool,
    output: str | None,
) -> int | None:
    """Start a job from a SCRIPT, or from a manifest.

    kubectl elasticjob submit train.py --image my/training:1 --min 1 --max 4 -- --epochs 10

    A SCRIPT that exists here is sent with the job (and so is a folder, or --code); any other is looked for in the
    image. torchrun runs it. A name without .py is run as it is: `submit -- python -m pkg`.
    """
    if in_image and (code or requirements):
        raise click.UsageError("--in-image sends nothing: leave it out, or leave out --code and --requirements")
    if path is not None:
        if script:
            raise click.UsageError("specify a script or --file, not both")
        if template:
            raise click.UsageError("--template: is for a script: name it in the manifest (spec.templateRef)")
        manifest = read_manifest(path, name)
        bundle = checked(lambda: read_code(Path(code), exclude)) if code else None
    else:
        if not script:
            raise click.UsageError("specify a script, or a manifest with --file")
        if not image and not template:
            raise click.UsageError(
                f"--image: is required without --template: the image that the script runs in (or set {_IMAGE_VARIABLE})"
            )
        source = checked(lambda: find_source(script, code, exclude, in_image=in_image))
        bundle = source.bundle
        if bundle is None and not in_image and script.endswith(".py"):
            common.warn(f"{script}: is no file here, so that the image must have it")
        manifest = checked(
            lambda: build_manifest(
                name or default_name(source.name, secrets.token_hex(2)),
                image,
                [*source.command, *arguments],
                template=template,
                replicas=replicas,
                min_replicas=low,
                max_replicas=high,
                gpus=gpus,
                nproc=nproc,
                env=parse_variables(variables),
            )
        )
    shipment = pack(manifest, bundle, requirements)
    _warn_if_large(shipment.manifest.get("spec"))
    if dry_run:
        _print_dry_run(shipment, output)
        return None
    return _send(shipment, bundle, output, follow=follow)


def _warn_if_large(spec: object) -> None:
    """An operator refuses such a job, unless its administrator has raised the limit."""
    advice = "move large texts into a file, or have the limit of the operator raised (operator.maxTemplateBytes)"
    template = spec.get("template") if isinstance(spec, dict) else None
    excess = bounds.find_excess(template, bounds.Limits().template_bytes, advice)
    if excess:
        common.warn(f"spec.template: {excess}")


def pack(manifest: dict[str, Any], bundle: Bundle | None, requirements: str | None) -> Shipment:
    """The manifest with its code. Raises Misuse."""
    if bundle is None:
        if requirements:
            raise click.UsageError("--requirements: is for code that is sent: name a script of this machine, or --code")
        return Shipment(manifest)
    return checked(lambda: attach(manifest, with_requirements(bundle, Path(requirements)) if requirements else bundle))


T = TypeVar("T")


def checked(make: Callable[[], T]) -> T:
    """What this makes. Raises Misuse."""
    try:
        return make()
    except (api.InvalidJobError, ClientError) as error:
        raise common.Misuse(str(error)) from None


def _print_dry_run(shipment: Shipment, output: str | None) -> None:
    checked(lambda: rules.check_manifest(shipment.manifest))
    parts = [shipment.manifest, *([shipment.config_map] if shipment.config_map else [])]
    if output == "json":
        value = {"apiVersion": "v1", "kind": "List", "items": parts} if len(parts) > 1 else parts[0]
        common.echo(common.dump(value, "json"))
    else:
        common.echo("\n---\n".join(common.dump(part, "yaml") for part in parts))


def _send(shipment: Shipment, bundle: Bundle | None, output: str | None, *, follow: bool) -> int | None:
    target = common.current_target()

    async def work(client: Client) -> Job:
        return await send(client, shipment, target.namespace)

    job = with_client(work)
    sent = f" with {bundle.describe()}" if bundle is not None else ""
    common.report_change(job, output, f"elasticjob {job.name} created{sent}; kubectl elasticjob watch {job.name}")
    if not follow:
        return None
    try:
        done = with_client(lambda client: follow_job(client, job.name, job.namespace))
    except KeyboardInterrupt:
        common.warn(come_back(job.name, target))
        raise
    return common.FAILED if done.status.is_true("Failed") else 0


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
