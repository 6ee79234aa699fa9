"""Shared by all commands: cluster options, output formats, and exit codes for errors."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
import yaml
from click.shell_completion import CompletionItem
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from elasticjob_operator import api
from elasticjob_operator.client import Client, ClientError, Job, JobFailedError, WaitTimeoutError
from elasticjob_operator.client.errors import ConflictError, UnreachableError
from elasticjob_operator.text import printable

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

FAILED: Final = 1
USAGE: Final = 2
_COMPLETION_SECONDS: Final = 3.0
_WIDE_ENOUGH: Final = 250


@dataclass(frozen=True)
class Target:
    """Which cluster and namespace a command means."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None

    def client(self) -> Client:
        return Client(kubeconfig=self.kubeconfig, context=self.context, namespace=self.namespace)


class Failure(click.ClickException):
    """The command is valid, but its result is a failure (exit code 1)."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Misuse(click.ClickException):
    """The command is not valid (exit code 2)."""

    exit_code = USAGE

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def target_options(function: F) -> F:
    """-n, --context and --kubeconfig, at every command as with kubectl. What stands at the group is the default."""

    def keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[f"elasticjob.{parameter.name}"] = value

    options = (
        click.option("-n", "--namespace", callback=keep, expose_value=False, help="Default: the context's namespace."),
        click.option("--context", callback=keep, expose_value=False, help="A context of the kubeconfig."),
        click.option("--kubeconfig", callback=keep, expose_value=False, help="Default: KUBECONFIG, ~/.kube/config."),
    )
    for option in options:
        function = option(function)
    return function


def output_option(*formats: str) -> Callable[[F], F]:
    return click.option("-o", "--output", type=click.Choice(formats), help="Default: human-readable text.")


def current_target() -> Target:
    meta = click.get_current_context().meta
    return Target(*(meta.get(f"elasticjob.{name}") for name in ("kubeconfig", "context", "namespace")))


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
            yield segment if ours else segment._replace(text=printable(segment.text))


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
    """The object without the server's bookkeeping of who set which field."""
    metadata = {k: v for k, v in (raw.get("metadata") or {}).items() if k != "managedFields"}
    return {**raw, "metadata": metadata}


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
            return [job.name for job in await asyncio.wait_for(client.list(), _COMPLETION_SECONDS)]

    try:
        found = asyncio.run(names())
    except (ClientError, TimeoutError):
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def job_argument(function: F) -> F:
    return click.argument("name", shell_complete=complete_job)(function)


def quiet_pipe() -> None:
    """After a broken pipe (`| head`): nothing more can be written, and Python must not complain at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
