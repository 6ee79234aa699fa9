"""`checkpoints`: where those of a job are, and what the runtime's `elasticjob archive` does with its archive.

The program for the stores is the runtime's, which this package does not need: it runs here if it is installed, or in a
pod of the job, where only pods reach the archive.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from elasticjob_operator.api import names
from elasticjob_operator.cli import common
from elasticjob_operator.cli.common import output_option, target_options, with_client
from elasticjob_operator.cli.launch import inside
from elasticjob_operator.client import Client, Job, Pod
from elasticjob_operator.view import tables

_EXTRAS: Final = {"s3": "elasticjob[s3]", "gs": "elasticjob[gcs]", "az": "elasticjob[azure]"}
_RUN: Final = """
archive() {
  if command -v elasticjob >/dev/null 2>&1; then elasticjob archive "$@"; return; fi
  python=$(command -v python3 || command -v python) || { echo "the image has no Python" >&2; return 1; }
  "$python" -m elasticjob archive "$@"
}
"""
_RUN_SCRIPT: Final = _RUN + 'archive "$@"'
_PULL_SCRIPT: Final = f"""{_RUN}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM PIPE
url=$1; shift
archive pull "$url" "$folder/save" "$@" >&2 || exit 1
(set -- "$folder/save"
{inside.TAR_SCRIPT})
"""


@click.command()
@common.job_argument
@click.argument("action", required=False, type=click.Choice(["pull", "push", "prune"]))
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=0), help="pull: the save of this step. push: the step of the folder.")
@click.option("--keep", type=click.IntRange(min=1), help="prune: so many whole saves stay.")
@click.option("--yes", is_flag=True, help="prune: delete; without it, only show what would go.")
@click.option(
    "--credentials",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder with the keys of the archive, like a mounted Secret. Default: your own identity.",
)
@target_options
@output_option("json", "yaml")
def checkpoints(
    name: str,
    action: str | None,
    folder: Path | None,
    step: int | None,
    keep: int | None,
    yes: bool,
    credentials: Path | None,
    output: str | None,
) -> int:
    """Show where the checkpoints of a job are; pull one out of its archive, push one for a new job, or prune it.

    \b
    kubectl elasticjob checkpoints digits
    kubectl elasticjob checkpoints digits pull ./saved --step 1200
    kubectl elasticjob checkpoints digits push ./saved
    kubectl elasticjob checkpoints digits prune --keep 1

    push sends a folder to a new place beside the archive of the job, for checkpoints.from.archive of a new one.

    They run `elasticjob archive` here, or in a pod of the job if only pods reach the archive.
    """
    if action is None:
        if folder is not None or step is not None or keep is not None or yes or credentials is not None:
            raise click.UsageError("name what to do: pull FOLDER, push FOLDER or prune --keep N")
        _show(name, output)
        return 0
    if output:
        raise click.UsageError("-o is for the list of checkpoints alone")
    if (folder is None) != (action == "prune"):
        raise click.UsageError(f"{action}: " + ("needs a FOLDER" if folder is None else "has no FOLDER"))
    if (keep is None) == (action == "prune") or (yes and action != "prune"):
        raise click.UsageError("prune needs --keep N" if action == "prune" else f"{action}: has no --keep and no --yes")
    if step is not None and action == "prune":
        raise click.UsageError("prune: has no --step: it goes by the history of the job")
    if action == "pull" and folder is not None and (folder.exists() or not folder.absolute().parent.is_dir()):
        raise common.Misuse(f"{folder}: name a folder that does not exist, in one that does")
    more = [
        *([] if step is None else ["--step", str(step)]),
        *([] if keep is None else ["--keep", str(keep)]),
        *(["--yes"] if yes else []),
    ]

    async def work(client: Client) -> int | list[str]:
        """The exit code of what ran in a pod, or the command to run here."""
        job = await client.get(name)
        url = find_url(job, push=action == "push")
        if needs_pod(job, url, has_credentials=credentials is not None):
            pods = [] if action == "push" else await client.pods(name)
            pod = next((one for one in pods if one.phase == "Running" and one.started), None)
            if pod is not None:
                return await _run_inside(client, job, pod, url, action, folder, more)
            if url.startswith("file:"):
                raise common.Failure(_explain(job, url, action))
            common.note(
                f"the keys are in the Secret {_find_secret(job)}, "
                + ("which push does not read" if action == "push" else "and no pod of the job runs")
                + ": using your own identity; --credentials FOLDER names other keys"
            )
        places = [] if folder is None else [str(folder.absolute())]
        keys = [] if credentials is None else ["--credentials", str(credentials.absolute())]
        return ["archive", action, url, *places, *more, *keys]

    done = with_client(work)
    if isinstance(done, int):
        return done
    code = _run_here(done)
    if action == "push" and code == 0:
        common.echo(f"A new job begins with it: spec.checkpoints.from.archive: {done[2]}")
    return code


def _show(name: str, output: str | None) -> None:
    async def work(client: Client) -> None:
        job = await client.get(name)
        if output:
            progress, archive = job.status.progress, job.status.archive
            tiers = [] if progress is None else [one.dump() for one in progress.checkpoints]
            common.echo(common.dump({"tiers": tiers, "archive": archive and archive.dump()}, output))
            return
        common.show(tables.list_checkpoints(job, time.time()))
        if job.status.archive is not None:
            common.echo(f"The archive is {job.status.archive.url}")

    with_client(work)


def find_url(job: Job, *, push: bool) -> str:
    """The folder of the job in its archive; to push, a new one beside it, where its credentials hold too."""
    wanted = None if job.spec is None or job.spec.checkpoints is None else job.spec.checkpoints.archive
    if push:
        if wanted is None:
            raise common.Misuse(f"{job.name} has no spec.checkpoints.archive: use `elasticjob archive push URL FOLDER`")
        return names.archive_url(wanted.to, job.namespace, job.name, f"pushed-{uuid.uuid4().hex[:12]}")
    if job.status.archive is not None and job.status.archive.url:
        return job.status.archive.url
    why = "has no spec.checkpoints.archive" if wanted is None else "has archived nothing yet"
    raise common.Failure(f"{job.name} {why}: `kubectl elasticjob checkpoints {job.name}` shows what there is")


def _find_secret(job: Job) -> str | None:
    wanted = None if job.spec is None or job.spec.checkpoints is None else job.spec.checkpoints.archive
    return None if wanted is None else wanted.credentials_secret


def needs_pod(job: Job, url: str, *, has_credentials: bool) -> bool:
    """Whether the archive is on a volume that is not mounted here, or its keys are in a Secret."""
    if url.startswith("file:"):
        return not Path(url.removeprefix("file://")).parent.is_dir()  # that of the job's name, where push makes one too
    return _find_secret(job) is not None and not has_credentials


def _explain(job: Job, url: str, action: str) -> str:
    if action == "push":
        return f"{url} is on a volume of the job: mount it here, or use `elasticjob archive push` in a pod that has it"
    return f"{url} is on a volume of the job, and no pod of it runs: resume {job.name}, or mount the volume here"


async def _run_inside(
    client: Client, job: Job, pod: Pod, url: str, action: str, folder: Path | None, more: Sequence[str]
) -> int:
    """With the keys that the pod has."""
    keys = [] if _find_secret(job) is None else ["--credentials", names.ARCHIVE_PATH]
    common.note(f"in pod {pod.name}")
    if folder is not None:
        command = ["sh", "-c", _PULL_SCRIPT, "sh", url, *more, *keys]
        common.echo(str(await inside.copy_out(client, pod, command, f"the save in {url}", "save", folder)))
        return 0
    command = ["sh", "-c", _RUN_SCRIPT, "sh", action, url, *more, *keys]
    return await inside.stream(client, pod, command, inside.Said(sys.stdout.buffer), inside.Said(sys.stderr.buffer))


def _run_here(words: Sequence[str]) -> int:
    """Run the runtime's command on this machine. Raises Failure with the whole command if it is not installed."""
    if importlib.util.find_spec("elasticjob") is not None:
        program = [sys.executable, "-m", "elasticjob"]
    elif found := shutil.which("elasticjob"):
        program = [found]
    else:
        package = _EXTRAS.get(words[2].partition(":")[0], "elasticjob")
        raise common.Failure(
            f"the runtime of ElasticJob is not installed here: pip install '{package}', and repeat this; or run, "
            f"where it is: {shlex.join(['elasticjob', *words])}"
        )
    return subprocess.run([*program, *words], check=False).returncode
