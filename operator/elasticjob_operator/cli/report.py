"""`report`: an HTML report about a job; with --follow, it records the status until the job has finished."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import Final

import click

from elasticjob_operator.cli import common
from elasticjob_operator.cli.common import target_options, with_client
from elasticjob_operator.client import Client, Happening, Job
from elasticjob_operator.client import history as past
from elasticjob_operator.html_report import Facts, render
from elasticjob_operator.view import details

_SAMPLE_SECONDS: Final = 5.0


@click.command()
@click.argument("name", required=False, shell_complete=common.complete_job)
@target_options
@click.option("--html", type=click.Path(dir_okay=False), help="Output file. Default: NAME-report.html.")
@click.option("--follow", is_flag=True, help="Record until the job has finished (or Ctrl-C), then write.")
@click.option("--duration", type=click.FloatRange(min=0), help="Record for at most this many seconds.")
@click.option("--record", type=click.Path(dir_okay=False), help="Add the samples to this file, one JSON object a line.")
@click.option("--from", "source", type=click.Path(dir_okay=False), help="Also use the samples of a recording.")
def report(
    name: str | None, html: str | None, follow: bool, duration: float | None, record: str | None, source: str | None
) -> None:
    """Write one self-contained HTML file: world size and throughput over time, rescales, loss.

    Without a recording it contains the current status, the reports that it remembers, and what the events still show.
    Without a NAME, it is built from a recording alone and needs no cluster.
    """
    if name is None and source is None:
        raise click.UsageError("specify the NAME of a job, or a recording with --from")
    if name is None and (follow or record):
        raise click.UsageError("--follow and --record need the NAME of a job")
    samples = _read(source) if source else []
    if name is None:
        page = _render_recording(Path(str(source)).stem, samples)
    else:
        recorder = Recorder(name, samples, Path(record) if record else None)
        job, events = with_client(lambda c: recorder.run(c, follow=follow or duration is not None, duration=duration))
        page = _render_job(job, recorder.samples, events)
    target = Path(html or f"{name or Path(str(source)).stem}-report.html")
    try:
        target.write_text(page)
    except OSError as error:
        raise common.Misuse(f"--html {target}: cannot be written: {error.strerror}") from None
    common.echo(str(target))


class Recorder:
    """Takes a sample at every change of the job, and now and then without one."""

    def __init__(self, name: str, samples: list[past.Sample], record: Path | None) -> None:
        self.samples = samples
        self._name = name
        self._record = record

    async def run(self, client: Client, *, follow: bool, duration: float | None) -> tuple[Job, list[Happening]]:
        job = await client.get(self._name)
        self._keep(job)
        events = await client.events(self._name)
        if follow and not job.status.finished:
            try:
                async with asyncio.timeout(duration):
                    job = await self._follow(client, job)
            except (TimeoutError, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError):  # Ctrl-C: what was recorded is shown
                    current = asyncio.current_task()
                    assert current is not None
                    current.uncancel()
            job = await client.get(self._name)
            self._keep(job)
            events = sorted({*events, *await client.events(self._name)}, key=lambda e: e.time or 0.0)
        return job, events

    async def _follow(self, client: Client, job: Job) -> Job:
        changes = client.watch(self._name)
        step = asyncio.ensure_future(anext(changes))
        try:
            while not job.status.finished:
                await asyncio.wait([step], timeout=_SAMPLE_SECONDS)
                if step.done():
                    change = step.result()
                    job = change.job
                    if change.type == "DELETED":
                        return job
                    step = asyncio.ensure_future(anext(changes))
                self._keep(job)
            return job
        finally:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
            await changes.aclose()

    def _keep(self, job: Job) -> None:
        before = self.samples[-1] if self.samples else None
        sample = past.take_sample(job, time.time(), before)
        if not past.is_news(before, sample):
            return
        self.samples.append(sample)
        if self._record is not None:
            try:
                with self._record.open("a") as file:
                    file.write(past.format_sample(sample) + "\n")
            except OSError as error:
                raise common.Misuse(f"--record {self._record}: cannot be written: {error.strerror}") from None


def _read(source: str) -> list[past.Sample]:
    try:
        return past.read_recording(Path(source).read_text())
    except OSError as error:
        raise common.Misuse(f"--from {source}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise common.Misuse(f"--from {source}: {error}") from None


def _render_job(job: Job, samples: list[past.Sample], events: list[Happening]) -> str:
    failure = ""
    if job.status.last_failure is not None:
        text = io.StringIO()
        common.SafeConsole(file=text, width=120).print(details.failure(job.status.last_failure, time.time()))
        failure = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
    facts = Facts(job.name, job.namespace, job.phase, time.time(), failure)
    worlds, reports = past.list_worlds(job.status), past.list_reports(job.status)
    return render(facts, past.build_history(samples, events, job.created, worlds, reports), samples[-1])


def _render_recording(title: str, samples: list[past.Sample]) -> str:
    if not samples:
        raise common.Misuse("--from: the recording is empty")
    facts = Facts(title, "", samples[-1].phase, samples[-1].time)
    return render(facts, past.build_history(samples, []), samples[-1])
