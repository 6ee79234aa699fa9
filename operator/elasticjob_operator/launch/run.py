"""The handle of a job that was launched: wait for it, read it, change it.

Every method opens a connection of its own on a thread of its own, so that it also works in a notebook, whose thread
runs an event loop already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.client import Client, ClientError, Job, JobFailedError, SyncClient, WaitTimeoutError
from elasticjob_operator.client import history as past
from elasticjob_operator.client.errors import InvalidError
from elasticjob_operator.html_report import Facts, render
from elasticjob_operator.launch import update as updating
from elasticjob_operator.launch.function import MARK, read_result
from elasticjob_operator.launch.local import LocalCluster
from elasticjob_operator.launch.target import find_target, run_apart

MOST_LINES: Final = 1000  # lines of a pod in which a result is looked for


class ResultError(ClientError):
    """There is no result; the message says why."""


@dataclass(frozen=True)
class Run:
    """A job that was launched. All methods raise ClientError."""

    name: str
    namespace: str
    kubeconfig: str | None = None
    context: str | None = None
    cluster: LocalCluster | None = field(default=None, repr=False)  # of this machine

    def status(self) -> api.Status:
        """The status of the job, as the operator last wrote it."""
        return self.job().status

    def job(self) -> Job:
        """The whole job, as the API server returns it."""
        with self._client() as client:
            return client.get(self.name)

    def wait(self, timeout: float | None = None, *, progress: bool = True) -> Job:
        """Wait until the job has finished; `timeout` is in seconds. `progress` prints a line for each change.

        Raises JobFailedError with the traceback of the last failure, WaitTimeoutError, or ClientError if the job is
        deleted.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        tell: Callable[[str], object] = print if progress else (lambda line: None)
        before = ""
        while True:
            job = self._wait_a_moment(2.0 if deadline is None else min(2.0, deadline - time.monotonic()))
            line = _describe(job)
            if line != before:
                tell(line)
            before = line
            if job.status.is_true("Failed"):
                raise JobFailedError(_describe_failure(job))
            if job.status.finished:
                return job
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(f"{self.name}: not finished within {timeout:g} s: {line}")

    def _wait_a_moment(self, seconds: float) -> Job:
        if self.cluster is not None:
            self.cluster.check()
        with self._client() as client:
            try:
                return client.wait(self.name, "Finished", timeout=max(0.0, seconds))
            except WaitTimeoutError:
                return client.get(self.name)

    def logs(self, rank: int | None = None, *, follow: bool = False) -> Iterator[str]:
        """The log lines of all ranks, or of the pod of one; with `follow`, until the job has finished."""
        with self._client() as client:
            for line in client.logs(self.name, rank=rank, follow=follow):
                if not line.text.startswith(MARK):
                    yield line.text

    def result(self, timeout: float | None = None) -> Any:
        """What rank 0's function returned, after waiting for the end: JSON of at most 64 KiB.

        Raises ResultError if there is none, and what `wait` raises.
        """
        job = self.wait(timeout, progress=False)
        with self._client() as client:
            lines = sorted(
                client.logs(self.name, rank=0 if job.members else None, tail=MOST_LINES), key=lambda x: x.time or ""
            )
        found = read_result([line.text for line in lines])
        if found is None:
            raise ResultError(
                f"{self.name}: no result in the last {MOST_LINES} lines of its log: only functions have one, it is "
                "deleted with the pods, and other ranks of the pod may have said more than that after it"
            )
        if "value" not in found:
            raise ResultError(f"{self.name}: no result: {found.get('error')}")
        return found["value"]

    def scale(self, workers: int) -> None:
        """Set the number of pods, within the job's bounds."""
        with self._client() as client:
            client.scale(self.name, workers)

    def update(
        self,
        target: Callable[..., Any] | str | Path,
        arguments: Mapping[str, Any] | Sequence[str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        code: str | Path | None = None,
        exclude: Sequence[str] = (),
    ) -> Job:
        """Run other code in the pods that the job has, from a save; they have it within about two minutes.

        `target`, `arguments`, `code` and `exclude` are as in `launch`. A script without `arguments` keeps those that
        the job was launched with; `env` is added to the job's variables. If it fails before its first step, the job
        goes back to the code that it had. Packages stay as they are.
        """
        source, words = find_target(target, arguments or (), code, exclude, in_place=False)
        if source.bundle is None:
            raise InvalidError(f"{target}: is no script, folder or function of this machine")
        keeps = arguments is None or callable(target)
        revision = updating.Revision(source.bundle, None if keeps else tuple(words), env)
        return self._change(lambda client: updating.update(client, self.name, revision))

    def undo(self) -> Job:
        """Run the code again that ran before the last update."""
        return self._change(lambda client: updating.undo(client, self.name))

    def _change(self, work: Callable[[Client], Coroutine[Any, Any, Job]]) -> Job:
        async def change() -> Job:
            async with Client(kubeconfig=self.kubeconfig, context=self.context, namespace=self.namespace) as client:
                return await work(client)

        return run_apart(change)

    def suspend(self) -> None:
        """Save a checkpoint and delete the pods, but keep the job."""
        with self._client() as client:
            client.suspend(self.name)

    def resume(self) -> None:
        """Resume a suspended job."""
        with self._client() as client:
            client.resume(self.name)

    def delete(self) -> None:
        """Delete the job, its pods and its code."""
        with self._client() as client:
            client.delete(self.name)

    def report(self, path: str | Path | None = None) -> Path:
        """Write an HTML file about the job, from its status and events; return its path."""
        with self._client() as client:
            job, events = client.get(self.name), client.events(self.name)
        now = time.time()
        sample = past.take_sample(job, now)
        failure = _describe_failure(job) if job.status.last_failure is not None else ""
        facts = Facts(job.name, job.namespace, job.phase, now, failure)
        target = Path(path or f"{self.name}-report.html")
        found = past.build_history([sample], events, job.created, reports=past.list_reports(job.status))
        target.write_text(render(facts, found, sample))
        return target

    def _client(self) -> SyncClient:
        return SyncClient(kubeconfig=self.kubeconfig, context=self.context, namespace=self.namespace)


def _describe(job: Job) -> str:
    """A job's state in a line: `digits: Running, 3 workers, step 40 of 200`."""
    status = job.status
    parts = [job.phase]
    if status.rendezvous.world_size:
        parts.append(f"{status.rendezvous.world_size} workers")
    if status.progress is not None and status.progress.step is not None:
        total = f" of {status.progress.total_steps}" if status.progress.total_steps else ""
        parts.append(f"step {status.progress.step}{total}")
    return f"{job.name}: {', '.join(parts)}"


def _describe_failure(job: Job) -> str:
    found, last = job.status.condition("Failed"), job.status.last_failure
    parts = [f"{job.name} failed" + (f": {found.reason}: {found.message}" if found is not None else "")]
    if last is not None:
        parts += [text.rstrip() for text in (last.traceback, last.log_tail) if text][:1]
    return "\n".join(parts)
