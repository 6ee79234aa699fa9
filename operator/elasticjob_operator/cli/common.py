"""Shared by the commands: the client with its errors, output formats, and completion."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import click
import yaml
from click.shell_completion import CompletionItem
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from elasticjob_operator import api
from elasticjob_operator.api import bounds
from elasticjob_operator.cli.options import (
    FAILED,
    USAGE,
    Failure,
    Misuse,
    Target,
    current_target,
    output_option,
    target_options,
)
from elasticjob_operator.client import Client, ClientError, Job, JobFailedError, WaitTimeoutError
from elasticjob_operator.client.errors import ConflictError, UnreachableError
from elasticjob_operator.client.model import brief
from elasticjob_operator.text import printable

__all__ = [
    "FAILED",
    "USAGE",
    "Failure",
    "Misuse",
    "SafeConsole",
    "Target",
    "clean",
    "complete_job",
    "console",
    "current_target",
    "dump",
    "dump_jobs",
    "echo",
    "job_argument",
    "note",
    "output_option",
    "report_change",
    "show",
    "target_options",
    "warn",
    "with_client",
]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_COMPLETION_SECONDS: Final = 3.0
_WIDE_ENOUGH: Final = 250


def with_client(work: Callable[[Client], Awaitable[T]]) -> T:
    """Run the work with an open client. Errors become one line and an exit code."""
    target = current_target()

    async def inside() -> T:
        async with target.client() as client:
            return await work(client)

    try:
        return asyncio.run(inside())
    except api.InvalidJobError as error:
        raise Misuse(str(error)) from None
    except (JobFailedError, WaitTimeoutError, UnreachableError, ConflictError) as error:
        raise Failure(str(error)) from None
    except ClientError as error:
        raise Misuse(str(error)) from None


# --- output ----------------------------------------------------------------------------------------------


class SafeConsole(Console):
    """A console for text that others wrote: no markup, no emoji codes, no control characters but our own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            ours = segment.control is not None  # cursor movements of the live view
            text = segment.text if ours else printable(segment.text)
            yield segment if text is segment.text else segment._replace(text=text)


def console(*, stderr: bool = False) -> Console:
    """Colours only on a terminal; in a pipe no line is cut or wrapped at a width that nobody has."""
    out = SafeConsole(stderr=stderr, soft_wrap=False)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out = SafeConsole(stderr=stderr, width=_WIDE_ENOUGH)
    return out


def show(renderable: RenderableType) -> None:
    """Prints without the spaces that pad a table's last column."""
    out = console()
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as captured:
        out.print(renderable)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def echo(text: str) -> None:
    click.echo(printable(text))


def note(text: str) -> None:
    """Tell what is going on, on stderr, so that stdout has only what the command is for."""
    click.secho(printable(text), dim=True, err=True)


def warn(text: str) -> None:
    click.secho(printable(text), fg="yellow", err=True)


def dump(value: Any, output: str) -> str:
    if output == "json":
        return json.dumps(value, indent=2)
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True).rstrip()


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: a list of numbers, such as exit codes, stands in a line."""


def _represent_list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    numbers = bool(value) and all(isinstance(item, (int, float)) for item in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=numbers)


_Dumper.add_representer(list, _represent_list)


def dump_jobs(jobs: Sequence[Job], output: str) -> str:
    return dump({"apiVersion": "v1", "kind": "List", "items": [clean(job.raw) for job in jobs]}, output)


def clean(raw: dict[str, Any]) -> dict[str, Any]:
    """The object without the server's bookkeeping of who set which field, and what is too deep to be written."""
    metadata = {k: v for k, v in (raw.get("metadata") or {}).items() if k != "managedFields"}
    shown = {**raw, "metadata": metadata}
    for part in [part for part, value in shown.items() if bounds.is_too_deep(value)]:
        where = f"{metadata.get('namespace')}/{metadata.get('name')}"
        warn(f"{where}: its {part} is nested more than {bounds.MOST_DEPTH} levels deep, and is left out")
        del shown[part]
    return shown


def report_change(job: Job, output: str | None, text: str) -> None:
    if output == "name":
        echo(f"elasticjob.elasticjob.dev/{job.name}")
    elif output:
        echo(dump(clean(job.raw), output))
    else:
        echo(text)


# --- completion ------------------------------------------------------------------------------------------


def complete_job(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of jobs. A shell that completes must never show an error, so that there are none then."""

    async def names() -> list[str]:
        meta = context.meta
        target = Target(*(meta.get(f"elasticjob.{name}") for name in ("kubeconfig", "context", "namespace")))
        async with target.client() as client:
            async with asyncio.timeout(_COMPLETION_SECONDS):
                return [job.name for job in await client.list(from_cache=True, keep=brief)]

    try:
        found = asyncio.run(names())
    except (ClientError, TimeoutError):
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def job_argument(function: F) -> F:
    return click.argument("name", shell_complete=complete_job)(function)
