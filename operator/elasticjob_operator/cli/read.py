"""Commands that only read: list, describe, watch, wait, top, events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from typing import Final

import click
from rich.console import RenderableType
from rich.live import Live

from elasticjob_operator.cli import common
from elasticjob_operator.cli.common import output_option, target_options, with_client
from elasticjob_operator.client import Client, ClientError, Happening, Job, NotFoundError, Pod
from elasticjob_operator.client import history as past
from elasticjob_operator.client.model import brief, whole
from elasticjob_operator.client.rules import is_met
from elasticjob_operator.history import faulty_nodes
from elasticjob_operator.history.faulty_nodes import NodeRecord
from elasticjob_operator.view import details, tables

_POD_SECONDS: Final = 2.0
_REFRESH_SECONDS: Final = 0.5
_MOST_WEIGHT: Final = 1000  # of the samples that a live view shows


@click.command("list")
@target_options
@click.option("-A", "--all-namespaces", is_flag=True)
@click.option("-l", "--selector", help="A label selector.")
@output_option("wide", "json", "yaml", "name")
def list_command(all_namespaces: bool, selector: str | None, output: str | None) -> None:
    """List the jobs of a namespace."""

    async def work(client: Client) -> list[Job]:
        # A table is for people, who cannot tell milliseconds; a program may rely on what it has just done.
        is_table = output in (None, "wide")
        keep = whole if output in ("json", "yaml") else brief
        return await client.list(all_namespaces=all_namespaces, selector=selector, from_cache=is_table, keep=keep)

    jobs = with_client(work)
    if output in ("json", "yaml"):
        common.echo(common.dump_jobs(jobs, output))
    elif output == "name":
        common.echo("\n".join(f"elasticjob.elasticjob.dev/{job.name}" for job in jobs))
    elif not jobs:
        common.echo("no ElasticJobs found; -A looks in all namespaces")
    else:
        common.show(tables.list_jobs(jobs, time.time(), namespaces=all_namespaces, wide=output == "wide"))


@click.command()
@common.job_argument
@target_options
@output_option("json", "yaml")
def describe(name: str, output: str | None) -> None:
    """Show one job: conditions, members by rank and node, the last failure, events."""

    async def work(client: Client) -> None:
        job = await client.get(name)
        if output:
            common.echo(common.dump(common.clean(job.raw), output))
            return
        pods, events = await asyncio.gather(client.pods(name), client.events(name))
        common.show(details.describe(job, pods, events, time.time()))

    with_client(work)


@click.command()
@common.job_argument
@target_options
@output_option("json", "yaml")
def events(name: str, output: str | None) -> None:
    """Show the events of a job and its pods, oldest first."""

    async def work(client: Client) -> None:
        await client.get(name)  # an unknown name is an error, not a job without events
        found = await client.events(name)
        if output:
            common.echo(common.dump([asdict(event) for event in found], output))
        elif not found:
            common.echo("no events; the API server keeps them for an hour")
        else:
            common.show(tables.list_events(found, time.time()))

    with_client(work)


@click.command()
@click.argument("name", required=False, shell_complete=common.complete_job)
@target_options
def top(name: str | None) -> None:
    """Show progress and goodput of jobs; with a NAME, the resource usage of its pods (needs a metrics server)."""

    async def work(client: Client) -> None:
        if name is None:
            jobs, sizes = await asyncio.gather(client.list(from_cache=True, keep=brief), client.sizes())
            common.show(tables.list_top(jobs, time.time(), sizes))
            return
        job, pods, usage, sizes = await asyncio.gather(
            client.get(name), client.pods(name), client.pod_metrics(name), client.sizes(name)
        )
        common.show(tables.list_top([job], time.time(), sizes))
        common.echo("")
        common.show(tables.list_members(job, pods, usage=usage))
        if usage is None:
            common.warn("no CPU and memory: this cluster has no metrics server, or you may not read pod metrics")

    with_client(work)


@click.command()
@target_options
@click.option(
    "-A", "--all-namespaces", is_flag=True, help="Of the jobs of all namespaces, as the operator counts them."
)
@output_option("json", "yaml")
def nodes(all_namespaces: bool, output: str | None) -> None:
    """Show the nodes on which pods of jobs were lost, and whether new pods avoid them."""

    async def work(client: Client) -> tuple[NodeRecord, ...]:
        jobs = await client.list(all_namespaces=all_namespaces, from_cache=not output, keep=brief)
        told = [
            (f"{j.namespace}/{j.name}", j.status.node_faults)
            for j in jobs
            if j.status.node_faults and not j.is_elsewhere
        ]
        return faulty_nodes.remember(told, time.time())

    found = with_client(work)
    if output:
        common.echo(common.dump([asdict(one) | {"avoided": one.is_faulty} for one in found], output))
    elif not found:
        common.echo("no job has lost a pod to its node lately" + ("" if all_namespaces else "; -A asks all namespaces"))
    else:
        common.show(tables.list_nodes(found, time.time()))


@click.command()
@common.job_argument
@target_options
@click.option("--for", "condition", default="Complete", show_default=True, help="A condition, or Finished.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds. Default: no limit.")
def wait(name: str, condition: str, timeout: float | None) -> None:
    """Wait for a condition: Running, Complete, Failed, Suspended, Degraded or Finished."""

    async def work(client: Client) -> Job:
        return await client.wait(name, condition, timeout=timeout)

    job = with_client(work)
    common.echo(f"elasticjob {job.name}: {condition} ({job.phase})")


@click.command()
@common.job_argument
@target_options
@click.option("--for", "condition", help="Stop when this condition holds. Default: when the job has finished.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Stop after this many seconds, with exit code 1.")
def watch(name: str, condition: str | None, timeout: float | None) -> None:
    """Show a live view: phase, progress, loss, members by rank and node, generations.

    In a pipe, print a line for every change. Exit code 1 if the job failed.
    """

    async def work(client: Client) -> Job | None:
        async with asyncio.timeout(timeout):
            return await Watcher(client, name, condition or "Finished").run()

    try:
        job = with_client(work)
    except TimeoutError:
        raise common.Failure(f"watch of {name}: no {condition or 'end'} within {timeout:g} s") from None
    if job is None:
        raise common.Failure(f"job {name} was deleted")
    if condition is None and job.status.is_true("Failed"):
        failed = job.status.condition("Failed")
        raise common.Failure(f"job {name} failed: {failed.reason}: {failed.message}" if failed else f"{name} failed")


class Watcher:
    """The job's changes on a screen or, without a terminal, as lines."""

    def __init__(self, client: Client, name: str, condition: str) -> None:
        self._client = client
        self._name = name
        self._condition = condition
        self._job: Job | None = None
        self._pods: list[Pod] = []
        self._samples: list[past.Sample] = []
        self._out = common.console()

    async def run(self) -> Job | None:
        self._job = await self._client.get(self._name)
        return await (self._on_screen() if self._out.is_terminal else self._as_lines())

    async def _as_lines(self) -> Job | None:
        before: Job | None = None
        async with contextlib.aclosing(self._client.watch(self._name)) as changes:
            async for change in changes:
                if change.type == "DELETED":
                    return None
                line = details.change_line(change.job, before)
                if line:
                    common.echo(line)
                before = change.job
                if is_met(change.job, self._condition):
                    return change.job
        return before

    async def _on_screen(self) -> Job | None:
        events = await self._client.events(self._name)
        tasks = [asyncio.create_task(self._follow_job()), asyncio.create_task(self._follow_pods())]
        try:
            with Live(console=self._out, auto_refresh=False, transient=False) as screen:
                while not tasks[0].done():
                    screen.update(self._view(events), refresh=True)
                    await asyncio.wait(tasks[:1], timeout=_REFRESH_SECONDS)
                screen.update(self._view(events), refresh=True)
            return await tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _view(self, events: list[Happening]) -> RenderableType:
        assert self._job is not None
        worlds, reports = past.list_worlds(self._job.status), past.list_reports(self._job.status)
        found = past.build_history(self._samples, events, timeline=worlds, reports=reports)
        return details.live(self._job, self._pods, found, time.time(), rows=self._out.height)

    async def _follow_job(self) -> Job | None:
        async with contextlib.aclosing(self._client.watch(self._name)) as changes:
            async for change in changes:
                if change.type == "DELETED":
                    return None
                self._job = change.job
                self._keep(change.job)
                if is_met(change.job, self._condition):
                    return change.job
        return self._job

    def _keep(self, job: Job) -> None:
        before = self._samples[-1] if self._samples else None
        sample = past.take_sample(job, time.time(), before)
        if not past.is_news(before, sample):
            return  # somebody may change an annotation a hundred times a second
        self._samples.append(sample)
        if len(self._samples) > 2 * _MOST_WEIGHT:
            self._samples = past.thin(self._samples, _MOST_WEIGHT)

    async def _follow_pods(self) -> None:
        """Pods are looked at now and then: the world itself comes with the job."""
        while True:
            with contextlib.suppress(NotFoundError):
                try:
                    self._pods = await self._client.pods(self._name)
                except ClientError as error:
                    self._out.log(str(error))
            await asyncio.sleep(_POD_SECONDS)
