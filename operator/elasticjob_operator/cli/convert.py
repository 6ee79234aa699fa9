"""`convert`: converts other operators' jobs to ElasticJobs, with warnings on stderr."""

from __future__ import annotations

from typing import Any

import click

from elasticjob_operator.api import names
from elasticjob_operator.cli import common
from elasticjob_operator.cli.change import parse_documents, read_file
from elasticjob_operator.convert import Conversion, ConversionError, convert, is_convertible, read_text


@click.command("convert")
@click.option("-f", "--file", "path", required=True, type=click.Path(allow_dash=True), help="A file, or - for stdin.")
@click.option("--strict", is_flag=True, help="Treat warnings as errors: exit code 1.")
@common.output_option("json", "yaml")
def convert_command(path: str, strict: bool, output: str | None) -> None:
    """Convert a job of another operator, a Slurm script or a TorchX application to an ElasticJob.

    Kinds: PyTorchJob, TrainJob, MPIJob, RayJob, and the ElasticJob of TorchElastic and DLRover. The result goes to
    stdout, and a warning for each setting without a counterpart to stderr. Other documents in the file are skipped.
    """
    results: list[Conversion] = []
    for document in _read(path):
        if not is_convertible(document):
            if document.get("apiVersion") == names.API_VERSION:
                common.warn(f"warning: {document.get('kind')} is already an {names.KIND} of this project: skipped")
            else:
                common.warn(
                    f"warning: {document.get('kind')} of {document.get('apiVersion')} is not supported: skipped"
                )
            continue
        try:
            results.append(convert(document))
        except ConversionError as error:
            raise common.Misuse(f"{path}: {error}") from None
    if not results:
        raise common.Misuse(
            f"{path}: contains no job to convert: PyTorchJob, TrainJob, MPIJob, RayJob, the ElasticJob of TorchElastic "
            "or DLRover, a TorchX application, or a Slurm batch script"
        )
    for result in results:
        for warning in result.warnings:
            common.warn(f"warning: {result.manifest['metadata'].get('name', '')}: {warning}")
    separator = "\n---\n" if output != "json" else "\n"
    common.echo(separator.join(common.dump(r.manifest, output or "yaml") for r in results))
    if strict and any(r.warnings for r in results):
        raise common.Failure("there were warnings, and --strict was given")


def _read(path: str) -> list[dict[str, Any]]:
    text = read_file(path)
    try:
        document = read_text(text)
    except ConversionError as error:
        raise common.Misuse(f"{path}: {error}") from None
    return parse_documents(text, path) if document is None else [document]
