"""Converts jobs of other operators to ElasticJobs. Pure: takes a parsed YAML document, returns a manifest and warnings.

It supports Kubeflow's PyTorchJob, TrainJob and MPIJob, TorchElastic's and DLRover's ElasticJob, KubeRay's RayJob,
TorchX applications and Slurm batch scripts. No field is dropped silently: each one without a counterpart is a warning
that names the field and the remedy. The result is validated; a document that cannot become a valid job raises
`ConversionError`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.convert import dlrover, mpijob, pytorchjob, rayjob, torchelastic, torchx, trainjob
from elasticjob_operator.convert.draft import Conversion, ConversionError, Draft, Warning
from elasticjob_operator.convert.slurm import script as slurm

__all__ = ["Conversion", "ConversionError", "Warning", "convert", "is_convertible", "read_text"]

_KNOWN: Final[Mapping[tuple[str, str], Callable[[Draft], None]]] = {
    ("kubeflow.org", "PyTorchJob"): pytorchjob.fill,
    ("trainer.kubeflow.org", "TrainJob"): trainjob.fill,
    ("elastic.pytorch.org", "ElasticJob"): torchelastic.fill,
    ("elastic.iml.github.io", "ElasticJob"): dlrover.fill,
    ("kubeflow.org", "MPIJob"): mpijob.fill,
    ("ray.io", "RayJob"): rayjob.fill,
    ("torchx", "AppDef"): torchx.fill,
    ("slurm", "BatchScript"): slurm.fill,
}


def read_text(text: str) -> dict[str, Any] | None:
    """The document in a text that is not YAML: a Slurm batch script, or the output of `torchx run --dryrun`.

    None for any other text. Raises ConversionError for one that cannot be read.
    """
    return torchx.read_printed(text) or slurm.read_script(text)  # TorchX prints batch scripts, too


def is_convertible(document: object) -> bool:
    return isinstance(document, dict) and _kind_of(document) in _KNOWN


def convert(document: object) -> Conversion:
    """Convert one document to one ElasticJob. Raises ConversionError."""
    if not isinstance(document, dict):
        raise ConversionError("the document is not an object: give the YAML of a job")
    fill = _KNOWN.get(_kind_of(document))
    if fill is None:
        known = ", ".join(f"{kind} ({group})" for group, kind in _KNOWN)
        raise ConversionError(
            f"{document.get('kind')} of {document.get('apiVersion')} is not known: convert takes {known}"
        )
    draft = Draft(copy.deepcopy(document))
    fill(draft)
    result = draft.finish()
    try:
        api.parse_spec(result.manifest["spec"])
    except api.InvalidJobError as error:
        raise ConversionError(f"{draft.title}: the result is not a valid {names.KIND}: {error}") from None
    return result


def _kind_of(document: dict[Any, Any]) -> tuple[str, str]:
    if torchx.is_application(document):
        return "torchx", "AppDef"
    return str(document.get("apiVersion") or "").partition("/")[0], str(document.get("kind") or "")
