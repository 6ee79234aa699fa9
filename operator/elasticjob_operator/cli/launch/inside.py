"""Commands that look into a job's pods by rank: exec, debug, cp."""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeVar

import click

from elasticjob_operator.cli import common
from elasticjob_operator.cli.chaos import NONE_FOUND
from elasticjob_operator.cli.common import target_options, with_client
from elasticjob_operator.client import Client, Pod
from elasticjob_operator.client.execute import STDOUT, stream_in_pod
from elasticjob_operator.client.rules import choose_pods
from elasticjob_operator.text import printable

F = TypeVar("F", bound=Callable[..., Any])
_NO_STACKS: Final = 4
_NO_TAR: Final = 5
_MUST_STAY_FREE: Final = 2**30  # bytes of the temporary directory
_MOST_HEADER: Final = 2**20  # bytes that an archive may have about one file
_MOST_LEVELS: Final = 200  # of folders: Python calls itself for each that it makes or removes
_MOST_TOLD: Final = 256  # characters of a name
# The rank's process if its environment says RANK=$1, else all workers of the pod with the UID $2: a worker that was
# forked warm has the environment of its fork server there. py-spy shows them where the image has it, else the stacks
# that a worker writes to a file on SIGUSR2. Without that file it has no handler, and the signal would kill it.
_DEBUG_SCRIPT: Final = """
ranked= workers= shown=
for file in $(grep -lzx "ELASTICJOB_POD_UID=$2" /proc/[0-9]*/environ 2>/dev/null); do
  pid=${file#/proc/}; pid=${pid%/environ}
  [ "$pid" = "$$" ] && continue
  if grep -qzx "RANK=$1" "$file" 2>/dev/null; then ranked="$ranked $pid"; fi
  if ls -l "/proc/$pid/fd" 2>/dev/null | grep -q "/stacks-$pid[.]txt"; then workers="$workers $pid"; fi
done
[ -n "$ranked$workers" ] || exit 3
for pid in ${ranked:-$workers}; do
  if command -v py-spy >/dev/null 2>&1; then
    echo "process $pid"
    py-spy dump --pid "$pid" || exit 6
    shown=1
    continue
  fi
  file=
  for link in /proc/"$pid"/fd/*; do
    case "$(readlink "$link")" in */stacks-"$pid".txt) file=$(readlink "$link");; esac
  done
  [ -n "$file" ] && [ -f "$file" ] || continue
  before=$(wc -c < "$file")
  kill -USR2 "$pid" || continue
  size=$before
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    sleep 0.1
    now=$(wc -c < "$file")
    [ "$now" -gt "$before" ] && [ "$now" = "$size" ] && break
    size=$now
  done
  echo "process $pid"
  tail -c +$((before + 1)) "$file"
  shown=1
done
[ -n "$shown" ] || exit 4
"""
TAR_SCRIPT: Final = """
[ -e "$1" ] || { echo "$1: no such file or folder" >&2; exit 1; }
folder=$(dirname -- "$1"); name=$(basename -- "$1")
if command -v tar >/dev/null 2>&1; then exec tar -C "$folder" -chf - -- "$name"; fi
python=$(command -v python3 || command -v python) || exit 5
exec "$python" -c 'import os, sys, tarfile
os.chdir(sys.argv[1])
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", dereference=True) as archive: archive.add(sys.argv[2])' \\
  "$folder" "$name"
"""


def rank_option(function: F) -> F:
    return click.option("-r", "--rank", type=click.IntRange(min=0), default=0, show_default=True)(function)


async def _choose_pod(client: Client, name: str, rank: int) -> Pod:
    return choose_pods(await client.get(name), await client.pods(name), rank, patient=False)[0]


@click.command("exec", context_settings={"ignore_unknown_options": True})
@common.job_argument
@rank_option
@click.option("-i", "-t", "-it", "interactive", is_flag=True, help="With a terminal; needs kubectl.")
@target_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(name: str, rank: int, interactive: bool, command: tuple[str, ...]) -> int:
    """Run a COMMAND in the pod of a rank; the exit code is that of the command.

    Its output arrives as it is, with whatever a terminal obeys.

    kubectl elasticjob exec digits --rank 3 -- nvidia-smi
    """
    target = common.current_target()
    if interactive:
        pod = with_client(lambda client: _choose_pod(client, name, rank))
        _become_kubectl(target, pod, command)

    async def work(client: Client) -> int:
        pod = await _choose_pod(client, name, rank)
        return await stream(client, pod, list(command), sys.stdout.buffer, sys.stderr.buffer)

    return with_client(work)


def _become_kubectl(target: common.Target, pod: Pod, command: tuple[str, ...]) -> None:
    """Replace this process by kubectl, which knows terminals."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise common.Misuse("-it: needs kubectl on PATH: install it, or leave -it out")
    flags = [("--kubeconfig", target.kubeconfig), ("--context", target.context)]
    given = [word for flag, value in flags if value for word in (flag, value)]
    space = str(pod.raw["metadata"].get("namespace") or "default")
    words = [*given, "exec", "-it", "-n", space, pod.name, "-c", pod.trainer, "--", *command]
    os.execv(kubectl, [kubectl, *words])  # noqa: S606 - the user's own command


class Said:
    """What a pod says, as text for a terminal: the pod's author must not command the terminal of who looks into it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may arrive in two pieces

    def write(self, data: bytes) -> None:
        self._file.write(printable(self._decoder.decode(data)).encode())

    def flush(self) -> None:
        self._file.flush()


class _Archive:
    """An archive of unknown size, in a temporary file that leaves room for others."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        if shutil.disk_usage(tempfile.gettempdir()).free < _MUST_STAY_FREE:
            raise common.Failure(f"{tempfile.gettempdir()}: is almost full: set TMPDIR to a folder with more room")
        self._file.write(data)

    def flush(self) -> None:
        """It is read when all of it has arrived."""


class _Sink(Protocol):
    def write(self, data: bytes) -> object: ...
    def flush(self) -> object: ...


async def stream(client: Client, pod: Pod, command: list[str], out: _Sink, err: _Sink) -> int:
    def write(channel: int, data: bytes) -> None:
        sink = out if channel == STDOUT else err
        sink.write(data)
        sink.flush()

    return await stream_in_pod(client.connection, client.namespace, pod, command, write)


@click.command()
@common.job_argument
@rank_option
@target_options
def debug(name: str, rank: int) -> None:
    """Show where a rank is: py-spy dump if the image has py-spy, else the stack of its main thread.

    The rank goes on training. Where the processes of a pod cannot be told apart, all of them are shown.
    """

    async def work(client: Client) -> None:
        pod = await _choose_pod(client, name, rank)
        command = ["sh", "-c", _DEBUG_SCRIPT, "sh", str(rank), pod.uid]
        code = await stream(client, pod, command, Said(sys.stdout.buffer), Said(sys.stderr.buffer))
        if code == NONE_FOUND:
            raise common.Failure(f"rank {rank} of {name}: pod {pod.name} has no worker process now")
        if code == _NO_STACKS:
            raise common.Failure(
                f"rank {rank} of {name}: its stacks cannot be read: install py-spy in the image, or let the script "
                "report its steps (elasticjob.report)"
            )
        if code:
            raise common.Failure(f"rank {rank} of {name}: ended with exit code {code}: py-spy may need CAP_SYS_PTRACE")

    with_client(work)


@click.command()
@click.argument("source", metavar="NAME:PATH")
@click.argument("target", type=click.Path(), default=".")
@rank_option
@target_options
def cp(source: str, target: str, rank: int) -> None:
    """Copy a file or folder out of the pod of a rank.

    kubectl elasticjob cp digits:/checkpoints/last.pt .

    TARGET is a folder that exists, or the new name.
    """
    name, colon, path = source.partition(":")
    if not (name and colon and path.strip("/")):
        raise click.UsageError(f"{source}: must be NAME:PATH, as in digits:/checkpoints/last.pt")
    destination = Path(target)
    if not destination.is_dir() and not destination.absolute().parent.is_dir():
        raise common.Misuse(f"{target}: its folder does not exist: create it first")

    async def work(client: Client) -> None:
        pod = await _choose_pod(client, name, rank)
        command = ["sh", "-c", TAR_SCRIPT, "sh", path]
        common.echo(str(await copy_out(client, pod, command, source, Path(path).name, destination)))

    with_client(work)


async def copy_out(client: Client, pod: Pod, command: list[str], source: str, name: str, target: Path) -> Path:
    """Unpack what a command in a pod writes with TAR_SCRIPT; return where. `source` is what the user calls it."""
    with tempfile.TemporaryFile() as archive:
        code = await stream(client, pod, command, _Archive(archive), Said(sys.stderr.buffer))
        if code == _NO_TAR:
            raise common.Failure(f"{source}: the image has neither tar nor Python")
        if code:
            raise common.Failure(f"{source}: was not copied: exit code {code} in pod {pod.name}")
        archive.seek(0)
        return unpack(archive, name, target)


class _Headers:
    """An archive of somebody else, in which only the contents of files are long: headers are read into memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.tell, self.seek = file.tell, file.seek
        self.end_file()

    def begin_file(self) -> None:
        """What is read from now on is the content of a file."""
        self._left = sys.maxsize

    def end_file(self) -> None:
        self._left = _MOST_HEADER

    def read(self, size: int) -> bytes:
        if size > self._left:
            raise tarfile.ReadError(f"a header of {size} bytes")
        self._left -= size
        return self._file.read(size)


def unpack(archive: IO[bytes], name: str, target: Path) -> Path:
    """Unpack an archive of one file or folder to `target`, or into it; return where. Raises Failure.

    The pod's owner wrote the archive, and not the user: nothing may land anywhere else.
    """
    final = target / name if target.is_dir() else target
    if final.exists() and not final.is_file():
        raise common.Misuse(f"{final}: exists: choose another name")
    with tempfile.TemporaryDirectory(prefix=".elasticjob-cp-", dir=final.absolute().parent) as folder:
        try:
            headers = _Headers(archive)
            with tarfile.open(fileobj=headers, mode="r:") as members:  # type: ignore[call-overload]  # it reads no more
                for member in members:
                    if member.issym():  # tar has written what it leads to; and not each Python stays below the folder
                        raise tarfile.ReadError(f"{member.name[:_MOST_TOLD]!r} is a link")
                    if member.islnk() and not os.path.lexists(f"{folder}/{member.linkname}"):  # Python would look on
                        told = f"{member.name[:_MOST_TOLD]!r} is another name of {member.linkname[:_MOST_TOLD]!r}"
                        raise tarfile.ReadError(f"{told}, which has not come before")
                    if (levels := member.name.count("/")) > _MOST_LEVELS:
                        raise common.Failure(
                            f"{member.name[:_MOST_TOLD]}: is {levels} levels deep, and the limit is {_MOST_LEVELS}: "
                            "copy a folder below it"
                        )
                    headers.begin_file()
                    members.extract(member, folder, filter="data")
                    headers.end_file()
                    members.members.clear()  # it would keep all of them
            (Path(folder) / name).rename(final)
        except (tarfile.TarError, EOFError, ValueError, ArithmeticError) as error:  # of numbers, Python's own errors
            raise common.Failure(f"{name}: what the pod sent is no archive of it: {error}") from None
        except OSError as error:
            with contextlib.suppress(OSError):
                shutil.rmtree(Path(folder) / name)
            raise common.Failure(f"{final}: cannot be written: {error.strerror or error}") from None
    return final
