"""Shell completion: of `kubectl-elasticjob` by click, of `kubectl elasticjob` by the way kubectl asks its plugins."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

_KUBECTL: str = """#!/bin/sh
# Put this file on PATH as kubectl_complete-elasticjob and make it executable: kubectl asks it.
exec kubectl-elasticjob __complete "$@"
"""
_NO_FILES = 4  # what kubectl understands: do not offer file names


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish", "kubectl"]))
def completion(shell: str) -> None:
    """Print a completion script.

    For kubectl-elasticjob: eval "$(kubectl elasticjob completion bash)". For `kubectl elasticjob`: save the output of
    `completion kubectl` as kubectl_complete-elasticjob on PATH.
    """
    if shell == "kubectl":
        click.echo(_KUBECTL, nl=False)
        return
    root = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(root, {}, "kubectl-elasticjob", "_KUBECTL_ELASTICJOB_COMPLETE").source())


@click.command("__complete", hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def complete_for_kubectl(words: tuple[str, ...]) -> None:
    """Candidates for the last word, one a line, as kubectl wants them of a plugin."""
    root = click.get_current_context().find_root().command
    *before, incomplete = words or ("",)
    finder = ShellComplete(root, {}, "kubectl-elasticjob", "")
    for item in finder.get_completions(list(before), incomplete):
        click.echo(f"{item.value}\t{item.help}" if item.help else str(item.value))
    click.echo(f":{_NO_FILES}")
