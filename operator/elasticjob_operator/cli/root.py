"""The command group and its exit codes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from elasticjob_operator.cli import change, chaos, common, completion, convert, dashboard, logs, read, report
from elasticjob_operator.cli.launch import inside, local, submit

_NAME: str = "kubectl elasticjob"
_COMPLETE_VARIABLE = "_KUBECTL_ELASTICJOB_COMPLETE"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@common.target_options
def cli() -> None:
    """Show and control ElasticJobs: PyTorch training that keeps going while its pods come and go."""


for command in (
    *(read.list_command, read.describe, read.watch, read.wait, read.top, read.events, read.nodes, logs.diagnose),
    *(logs.logs, submit.submit, local.local, change.scale, change.suspend, change.resume, change.delete),
    *(inside.exec_command, inside.debug, inside.cp),
    *(dashboard.dashboard, chaos.chaos, report.report, convert.convert_command),
    *(completion.completion, completion.complete_for_kubectl),
):
    cli.add_command(command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return the exit code."""
    try:
        code = cli.main(list(arguments), prog_name=_NAME, complete_var=_COMPLETE_VARIABLE, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0 if not arguments else common.USAGE
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            error.show()
        else:
            click.echo(f"error: {error.format_message()}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        common.quiet_pipe()
        return 0
    return code if isinstance(code, int) else 0
