"""The frameworks that have an adapter, and the oldest version of each. Imports none of them."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

from elasticjob.errors import ElasticJobError


class FrameworkTooOldError(ElasticJobError, ImportError):
    """The installed framework is older than its adapter supports, or is not installed."""


@dataclass(frozen=True)
class Stack:
    """One framework. Versions before `least` are refused; it is a bound, and not a tested version."""

    package: str  # its distribution
    modules: tuple[str, ...]  # what a script imports
    least: tuple[int, int]
    adapter: str
    use: str  # the line in the user's script


STACKS = (
    Stack(
        "transformers", ("transformers", "trl"), (4, 43), "elasticjob.integrations.transformers",
        "Trainer(callbacks=[ElasticJobCallback()])",
    ),
    Stack(
        "accelerate", ("accelerate",), (0, 33), "elasticjob.integrations.accelerate",
        "Checkpoints(accelerator, folder)",
    ),
    Stack(
        "lightning", ("lightning", "pytorch_lightning"), (2, 4), "elasticjob.integrations.lightning",
        "Trainer(**elastic_arguments(), callbacks=[ElasticJobCallback(folder)])",
    ),
)  # fmt: skip


def read_version(package: str) -> str | None:
    """The installed version; None if the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_too_old(version: str, least: tuple[int, int]) -> bool:
    """Whether `2.10.0.dev1` is older than (2, 4). A version that cannot be read is not."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) < least


def find_problem(stack: Stack, version: str | None) -> str | None:
    """Why the adapter cannot be used with this version, with the remedy; None if it can."""
    least = ".".join(str(part) for part in stack.least)
    remedy = f"pip install '{stack.package}>={least}'"
    if version is None:
        return f"{stack.adapter} needs {stack.package}, which is not installed: {remedy}"
    if is_too_old(version, stack.least):
        return f"{stack.adapter} needs {stack.package} {least} or newer, and {version} is installed: {remedy}"
    return None


def require(package: str) -> None:
    """Raise FrameworkTooOldError unless this framework is installed, and new enough for its adapter."""
    stack = next(one for one in STACKS if one.package == package)
    problem = find_problem(stack, read_version(package))
    if problem is not None:
        raise FrameworkTooOldError(problem)
