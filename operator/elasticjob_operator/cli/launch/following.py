"""Follows a job in a terminal: its log lines on stdout, its changes on stderr, until it has finished."""

from __future__ import annotations

import asyncio
import shlex

from elasticjob_operator.cli import common
from elasticjob_operator.cli.logs import line_text
from elasticjob_operator.client import Client, Job, NotFoundError
from elasticjob_operator.view import details


async def follow_job(client: Client, name: str, namespace: str | None = None) -> Job:
    """Print until the job has finished; return it then. Raises NotFoundError if it is deleted."""
    lines = asyncio.create_task(_print_lines(client, name, namespace))
    try:
        job = await _print_changes(client, name, namespace)
        await lines  # the last lines: they end with the job
        return job
    finally:
        lines.cancel()
        await asyncio.gather(lines, return_exceptions=True)


async def _print_lines(client: Client, name: str, namespace: str | None) -> None:
    out = common.console()
    async for line in client.logs(name, namespace, follow=True):
        out.print(line_text(line, prefix=True, timestamps=False), soft_wrap=True)


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
