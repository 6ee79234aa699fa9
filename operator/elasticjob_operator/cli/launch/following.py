"""Follows a job in a terminal: its log lines on stdout, its changes on stderr, until it has finished."""

from __future__ import annotations

import asyncio
import enum
import shlex
import time
from dataclasses import replace

from elasticjob_operator.cli import common
from elasticjob_operator.cli.logs import line_text
from elasticjob_operator.client import Client, Job, NotFoundError
from elasticjob_operator.view import details
from elasticjob_operator.view.steps import Steps


class Shown(enum.Enum):
    """Which lines of a job are printed."""

    ALL = enum.auto()  # those of all ranks, with their ranks
    FIRST = enum.auto()  # those of rank 0, as they are
    BRIEF = enum.auto()  # those of rank 0, where steps written as JSON become a line a second


async def follow_job(client: Client, name: str, namespace: str | None = None, *, shown: Shown = Shown.ALL) -> Job:
    """Print until the job has finished; return it then. Raises NotFoundError if it is deleted.

    Where not all lines were shown, the failure of a job that failed is.
    """
    printing = (
        _print_lines(client, name, namespace) if shown is Shown.ALL else _print_first(client, name, namespace, shown)
    )
    lines = asyncio.create_task(printing)
    try:
        job = await _print_changes(client, name, namespace)
        await lines  # the last lines: they end with the job
        if shown is not Shown.ALL and job.status.is_true("Failed") and job.status.last_failure is not None:
            common.console(stderr=True).print(details.failure(job.status.last_failure, time.time()))
        return job
    finally:
        lines.cancel()
        await asyncio.gather(lines, return_exceptions=True)


async def _print_lines(client: Client, name: str, namespace: str | None) -> None:
    out = common.console()
    async for line in client.logs(name, namespace, follow=True):
        out.print(line_text(line, prefix=True, timestamps=False), soft_wrap=True)


async def _print_first(client: Client, name: str, namespace: str | None, shown: Shown) -> None:
    """Lines of pods without a rank are shown on stderr: they say why a worker does not start."""
    out, err, steps = common.console(), common.console(stderr=True), Steps()
    async for line in client.logs(name, namespace, follow=True):
        if not line.ranks:
            err.print(line_text(line, prefix=True, timestamps=False), style="dim", soft_wrap=True)
        elif 0 in line.ranks:
            texts = [line.text] if shown is Shown.FIRST else steps.feed(line.text, time.monotonic())
            for text in texts:
                out.print(line_text(replace(line, text=text), prefix=False, timestamps=False), soft_wrap=True)
    for text in steps.flush():
        out.print(text, soft_wrap=True)


async def _print_changes(client: Client, name: str, namespace: str | None) -> Job:
    err = common.console(stderr=True)
    before: Job | None = None
    changes = client.watch(name, namespace)
    try:
        async for change in changes:
            if change.type == "DELETED":
                raise NotFoundError(f"job {name} was deleted")
            told = details.change_line(change.job, before)
            if told:
                err.print(told, style="dim", soft_wrap=True)
            before = change.job
            if before.status.finished:
                return before
        raise AssertionError("a watch does not end")
    finally:
        await changes.aclose()


def come_back(name: str, target: common.Target) -> str:
    """What to tell a user who leaves a job that goes on."""
    flags = [("-n", target.namespace), ("--context", target.context), ("--kubeconfig", target.kubeconfig)]
    given = "".join(f" {flag} {shlex.quote(value)}" for flag, value in flags if value)
    command = f"kubectl elasticjob{given}"
    return f"{name} goes on. To come back: {command} logs -f {name}; to end it: {command} delete {name}"
