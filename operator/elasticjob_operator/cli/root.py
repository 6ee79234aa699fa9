"""The command group and its exit codes. A command is imported when it is called: most need a part of the packages."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Final, NamedTuple

import click

from elasticjob_operator.cli import options

_NAME: str = "kubectl elasticjob"
_COMPLETE_VARIABLE = "_KUBECTL_ELASTICJOB_COMPLETE"


class _Place(NamedTuple):
    """Where a command is, and what the group's help says of it, so that help imports none. Empty: it is hidden."""

    module: str
    name: str
    help: str


COMMANDS: Final = {
    "list": _Place("read", "list_command", "List the jobs of a namespace."),
    "describe": _Place(
        "read", "describe", "Show one job: conditions, members by rank and node, the last failure, events."
    ),
    "watch": _Place("read", "watch", "Show a live view: phase, progress, loss, members by rank and node, generations."),
    "wait": _Place("read", "wait", "Wait for a condition: Running, Complete, Failed, Suspended, Degraded or Finished."),
    "top": _Place(
        "read",
        "top",
        "Show progress and goodput of jobs; with a NAME, the resource usage of its pods (needs a metrics server).",
    ),
    "events": _Place("read", "events", "Show the events of a job and its pods, oldest first."),
    "checkpoints": _Place(
        "launch.checkpoints",
        "checkpoints",
        "Show where the checkpoints of a job are; pull one out of its archive, push one for a new job, or prune it.",
    ),
    "nodes": _Place(
        "read", "nodes", "Show the nodes on which pods of jobs were lost, and whether new pods avoid them."
    ),
    "diagnose": _Place(
        "logs",
        "diagnose",
        "Show the last hang: the rank that holds up the others, and the stack and last collective of every rank.",
    ),
    "logs": _Place("logs", "logs", "The logs of all ranks."),
    "submit": _Place("launch.submit", "submit", "Start a job from a SCRIPT, or from a manifest."),
    "local": _Place(
        "launch.local", "local", "Run a SCRIPT on this machine, on a real API server, with pods as processes."
    ),
    "update": _Place("launch.update", "update", "Change the code of a job that runs, without new pods."),
    "scale": _Place("change", "scale", "Set the number of pods."),
    "suspend": _Place("change", "suspend", "Save a checkpoint and delete the pods, but keep the job."),
    "resume": _Place("change", "resume", "Resume a suspended job from its last checkpoint."),
    "delete": _Place("change", "delete", "Delete jobs and their pods."),
    "exec": _Place(
        "launch.inside", "exec_command", "Run a COMMAND in the pod of a rank; the exit code is that of the command."
    ),
    "debug": _Place(
        "launch.inside",
        "debug",
        "Show where a rank is: py-spy dump if the image has py-spy, else the stack of its main thread.",
    ),
    "cp": _Place("launch.inside", "cp", "Copy a file or folder out of the pod of a rank."),
    "dashboard": _Place(
        "dashboard",
        "dashboard",
        "Serve a web page about the jobs: live, with plots, logs and buttons, on this machine only.",
    ),
    "chaos": _Place("chaos", "chaos", "Kill a rank, a pod or all pods on a node, to see that the job continues."),
    "report": _Place(
        "report",
        "report",
        "Write one self-contained HTML file: world size and throughput over time, rescales, loss.",
    ),
    "convert": _Place(
        "convert",
        "convert_command",
        "Convert a job of another operator, a Slurm script or a TorchX application to an ElasticJob.",
    ),
    "rules": _Place(
        "rules", "rules", "Try the rules of a job (spec.health.rules) on a training that is known already."
    ),
    "completion": _Place("completion", "completion", "Print a completion script."),
    "__complete": _Place("completion", "complete_for_kubectl", ""),
}


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        load = getattr(ctx, "obj", None) or importlib.import_module  # without a context, too
        found = getattr(load(f"elasticjob_operator.cli.{place.module}"), place.name)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in sorted(COMMANDS) if COMMANDS[name].help])


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@options.target_options
def cli() -> None:
    """Show and control ElasticJobs: PyTorch training that keeps going while its pods come and go."""


def run(arguments: Sequence[str], load: Callable[[str], ModuleType] = importlib.import_module) -> int:
    """Run one command line, whose module `load` imports; return the exit code."""
    try:
        code = cli.main(
            list(arguments), prog_name=_NAME, complete_var=_COMPLETE_VARIABLE, standalone_mode=False, obj=load
        )
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0 if not arguments else options.USAGE
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            error.show()
        else:
            click.echo(f"error: {error.format_message()}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        options.quiet_pipe()
        return 0
    return code if isinstance(code, int) else 0
