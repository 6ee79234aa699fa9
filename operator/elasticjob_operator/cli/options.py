"""What the command line needs before it knows the command: options of all commands, and exit codes for errors.

It imports click alone, so that help and mistakes are told at once; `common` has what needs more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from elasticjob_operator.text import printable

if TYPE_CHECKING:
    from elasticjob_operator.client import Client

F = TypeVar("F", bound=Callable[..., Any])

FAILED: Final = 1
USAGE: Final = 2


@dataclass(frozen=True)
class Target:
    """Which cluster and namespace a command means."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None

    def client(self) -> Client:
        from elasticjob_operator.client import Client

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


def quiet_pipe() -> None:
    """After a broken pipe (`| head`): nothing more can be written, and Python must not complain at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
