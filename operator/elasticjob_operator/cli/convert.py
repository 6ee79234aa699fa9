"""`convert`: other operators' jobs in, ElasticJobs out, warnings to stderr."""

from __future__ import annotations

import click

from elasticjob_operator.api import names
from elasticjob_operator.cli import common
from elasticjob_operator.cli.change import read_documents
from elasticjob_operator.convert import Conversion, ConversionError, convert, is_convertible


@click.command("convert")
@click.option("-f", "--file", "path", required=True, type=click.Path(allow_dash=True), help="A file, or - for stdin.")
@click.option("--strict", is_flag=True, help="A warning is an error: exit code 1.")
@common.output_option("json", "yaml")
def convert_command(path: str, strict: bool, output: str | None) -> None:
    """Turn a PyTorchJob, TrainJob or another project's ElasticJob into an ElasticJob.

    The result goes to stdout, a warning for each thing without a counterpart to stderr. Other documents in the file
    are passed over.
    """
    results: list[Conversion] = []
    for document in read_documents(path):
        if not is_convertible(document):
            if document.get("apiVersion") == names.API_VERSION:
                common.warn(f"warning: {document.get('kind')} is an {names.KIND} of this project already: left out")
            else:
                common.warn(f"warning: {document.get('kind')} of {document.get('apiVersion')} is not known: left out")
            continue
        try:
            results.append(convert(document))
        except ConversionError as error:
            raise common.Misuse(f"{path}: {error}") from None
    if not results:
        raise common.Misuse(
            f"{path}: holds no job to convert: PyTorchJob, TrainJob, or the ElasticJob of TorchElastic or DLRover"
        )
    for result in results:
        for warning in result.warnings:
            common.warn(f"warning: {result.manifest['metadata'].get('name', '')}: {warning}")
    separator = "\n---\n" if output != "json" else "\n"
    common.say(separator.join(common.dump(r.manifest, output or "yaml") for r in results))
    if strict and any(r.warnings for r in results):
        raise common.Failure("there were warnings, and --strict was given")
