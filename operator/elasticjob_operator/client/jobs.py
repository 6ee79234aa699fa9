"""The asynchronous client: one method for each operation on a job.

Each method sends one or two requests; the operator does the rest. `wait` and `watch` survive a closed connection and an
expired watch history.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from elasticjob_operator.api import names
from elasticjob_operator.client import connection as transport
from elasticjob_operator.client import errors, logs, rules
from elasticjob_operator.client.connection import Connection
from elasticjob_operator.client.execute import run_in_pod
from elasticjob_operator.client.history import Point, read_sizes
from elasticjob_operator.client.listing import list_all, stream_changes
from elasticjob_operator.client.model import Change, Happenings, Job, Jobs, Pod, Pods, Words, cut_pod, whole
from elasticjob_operator.rest.request import MERGE_PATCH, Request, path_of

_PAUSE: Final = 1.0


class Client:
    """A connection to one cluster and, by default, one namespace. Use it as a context manager. Methods raise
    ClientError.
    """

    def __init__(
        self, *, kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None
    ) -> None:
        self._wanted = (kubeconfig, context, namespace)
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        kubeconfig, context, namespace = self._wanted
        self._connection = await transport.connect(kubeconfig, context, namespace)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise errors.ClientError("the client is not open: use it as `async with Client() as client:`")
        return self._connection

    @property
    def namespace(self) -> str:
        return self.connection.namespace

    # --- reading ---------------------------------------------------------------------------------------------

    async def get(self, name: str, namespace: str | None = None) -> Job:
        return Job.parse(await self.connection.ask(Request("GET", self._job(name, namespace), f"get job {name}")))

    async def list(
        self,
        namespace: str | None = None,
        *,
        all_namespaces: bool = False,
        selector: str | None = None,
        from_cache: bool = False,
        keep: Callable[[Job], Job] = whole,
    ) -> Jobs:
        """`keep` makes of each job what is kept of it. `from_cache`: what the API server has in memory. It answers
        several times as fast, and may not know the very last changes.
        """
        path = self._jobs(namespace, all_namespaces)
        found, _ = await list_all(
            self.connection,
            path,
            "list jobs",
            selector,
            from_cache=from_cache,
            take=lambda raw: keep(Job.parse(raw)),
        )
        return found

    async def pods(self, name: str, namespace: str | None = None) -> Pods:
        """The job's pods, by index."""
        path = path_of("v1", "pods", self._space(namespace))
        found, _ = await list_all(self.connection, path, f"list pods of {name}", names.selector(name), take=cut_pod)
        return sorted((Pod(raw) for raw in found), key=lambda p: (p.index is None, p.index or 0, p.name))

    async def events(self, name: str, namespace: str | None = None) -> Happenings:
        """The newest events of the job and its pods, 2,000 of each, oldest first, none of an earlier job of its name.

        The API server keeps events for an hour by default.
        """
        path = path_of("v1", "events", self._space(namespace))
        newest = rules.NewestEvents(name)
        await list_all(self.connection, path, f"list events of {name}", take=newest.take)
        try:
            job: Job | None = await self.get(name, namespace)
        except errors.NotFoundError:
            job = None  # deleted; only its events remain
        return rules.choose_events(newest.found, name, job)

    async def sizes(self, name: str | None = None, namespace: str | None = None) -> dict[str, tuple[Point, ...]] | None:
        """The world sizes of every job (or of one) over time, by UID, from events; None if they may not be read."""
        fields = f"involvedObject.kind={names.KIND}" + (f",involvedObject.name={name}" if name else "")
        path, newest = path_of("v1", "events", self._space(namespace)), rules.NewestSizes()
        try:
            await list_all(self.connection, path, "list events", more=(("fieldSelector", fields),), take=newest.take)
        except errors.ForbiddenError:
            return None
        return read_sizes(newest.found)

    async def pod_metrics(self, name: str, namespace: str | None = None) -> dict[str, dict[str, str]] | None:
        """The usage of cpu and memory by pod; None if the cluster has no metrics server."""
        path = path_of("metrics.k8s.io/v1beta1", "pods", self._space(namespace))
        try:
            found, _ = await list_all(
                *(self.connection, path, f"metrics of {name}", names.selector(name)),
                take=lambda raw: (raw["metadata"]["name"], rules.sum_usage(raw)),
            )
        except (errors.NotFoundError, errors.ForbiddenError):
            return None
        except errors.ClientError as error:
            if "503" in str(error):  # registered, but not available
                return None
            raise
        return dict(found)

    # --- changing --------------------------------------------------------------------------------------------

    async def submit(self, manifest: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False) -> Job:
        """Create a job. An invalid field is reported before anything is sent."""
        body = dict(manifest)
        rules.check_manifest(body)
        metadata = body.get("metadata") or {}
        space = namespace or metadata.get("namespace")
        body["metadata"] = {**metadata, "namespace": self._space(space)}
        # Kubernetes 1.25 and later then reject unknown fields; older versions ignore the parameter.
        query = (("fieldValidation", "Strict"), *((("dryRun", "All"),) if dry_run else ()))
        what = f"create job {metadata.get('name') or metadata['generateName']}"
        return Job.parse(await self.connection.ask(Request("POST", self._jobs(space), what, query, body)))

    async def scale(self, name: str, replicas: int, namespace: str | None = None) -> Job:
        """Set the number of pods, within the job's bounds."""
        job = await self.get(name, namespace)
        spec = job.spec
        if spec is not None and not spec.min_replicas <= replicas <= spec.max_replicas:
            raise errors.InvalidError(
                f"spec.replicas: {replicas} is outside {spec.min_replicas}..{spec.max_replicas} (elasticPolicy of "
                f"{name}): choose a number in between, or change the bounds first"
            )
        path = f"{self._job(name, namespace)}/scale"
        await self.connection.ask(_merge_patch(path, {"spec": {"replicas": replicas}}, f"scale job {name}"))
        return await self.get(name, namespace)

    async def release(self, name: str, namespace: str | None = None) -> Job:
        """Gives a job that shares a pool back to it, after somebody wrote spec.replicas."""
        job = await self.get(name, namespace)
        if job.spec is not None and not job.spec.is_pooled:
            raise errors.InvalidError(
                f"spec.scaling.mode: of {name} is Manual, so nobody else chooses its size: set it to Goodput first"
            )
        return await self.patch(name, {"spec": {"replicas": None}}, namespace)

    async def suspend(self, name: str, namespace: str | None = None) -> Job:
        """Let the job save a checkpoint and release its pods."""
        return await self._set_suspend(name, namespace, suspend=True)

    async def resume(self, name: str, namespace: str | None = None) -> Job:
        """Let a suspended job continue."""
        return await self._set_suspend(name, namespace, suspend=False)

    async def patch(self, name: str, body: dict[str, Any], namespace: str | None = None) -> Job:
        """Apply a JSON merge patch to the job."""
        path = self._job(name, namespace)
        return Job.parse(await self.connection.ask(_merge_patch(path, body, f"patch job {name}")))

    async def delete(self, name: str, namespace: str | None = None) -> None:
        """Delete the job; the garbage collector deletes its pods."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        await self.connection.ask(Request("DELETE", self._job(name, namespace), f"delete job {name}", (), options))

    async def kill_pod(self, pod: Pod, namespace: str | None = None) -> None:
        """Delete a pod without a grace period, but not its successor, which has another UID."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": pod.uid},
        }
        path = path_of("v1", "pods", self._space(namespace), pod.name)
        await self.connection.ask(Request("DELETE", path, f"kill pod {pod.name}", (), options))

    async def execute(self, pod: Pod, command: Words, namespace: str | None = None) -> tuple[int, str]:
        """Run a command in the trainer container of a pod; return (exit code, output)."""
        return await run_in_pod(self.connection, self._space(namespace), pod, command)

    # --- following -------------------------------------------------------------------------------------------

    async def watch(
        self,
        name: str | None = None,
        namespace: str | None = None,
        *,
        all_namespaces: bool = False,
        seen: dict[str, Job] | None = None,
        listed: Callable[[], object] = lambda: None,
        keep: Callable[[Job], Job] = whole,
    ) -> AsyncGenerator[Change, None]:
        """The current state of every job (or of one), then every change. Never ends by itself.

        `seen`: the jobs that the caller knows, by UID; it is kept up to date, so that a second watch yields only what
        changed since the first. `listed` is called each time all jobs were read. `keep` makes of each job what is kept
        of it: its uid and resourceVersion at least.
        """
        path = self._jobs(namespace, all_namespaces)
        query = (("fieldSelector", f"metadata.name={name}"),) if name else ()
        seen = {} if seen is None else seen
        while True:
            found, version = await list_all(
                self.connection,
                path,
                "watch jobs",
                more=query,
                take=lambda raw: rules.read_job(raw, seen, keep),
            )
            for change in rules.find_differences(seen, found):
                yield change
            listed()
            try:
                async with contextlib.aclosing(stream_changes(self.connection, path, query, version, keep)) as changes:
                    async for change in changes:
                        rules.apply_change(seen, change)
                        yield change
            except (errors.GoneError, errors.UnreachableError):
                await asyncio.sleep(_PAUSE)

    async def wait(
        self, name: str, condition: str = "Complete", namespace: str | None = None, *, timeout: float | None = None
    ) -> Job:
        """Wait until a condition of the job is True; `timeout` is in seconds.

        Raises WaitTimeoutError at the timeout, JobFailedError if the condition can no longer be met, NotFoundError if
        the job is deleted.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        job = await self.get(name, namespace)
        changes = self.watch(name, namespace)
        try:
            while True:
                if rules.is_met(job, condition):
                    return job
                left = None if deadline is None else deadline - time.monotonic()
                async with asyncio.timeout(left):
                    change = await anext(changes)
                if change.type == "DELETED":
                    raise errors.NotFoundError(f"wait for {name}: the job was deleted")
                job = change.job
        except TimeoutError:
            raise errors.WaitTimeoutError(
                f"wait for {name}: no condition {condition}=True within {timeout:g} s; {rules.describe_state(job)}"
            ) from None
        finally:
            await changes.aclose()

    async def logs(
        self,
        name: str,
        namespace: str | None = None,
        *,
        rank: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        window: logs.Window | None = None,
        most: int | None = None,
        longest: int = logs.MOST_LINE,
    ) -> AsyncGenerator[logs.Line, None]:
        """The log lines of all ranks, or of the pod that runs one rank.

        `window`: only what was written then. `most`: of the first so many pods that have a log.
        `longest`: bytes of a line; the end of others is cut.
        """

        async def look() -> tuple[Job | None, Pods]:
            try:
                job: Job | None = await self.get(name, namespace)
            except errors.NotFoundError:
                if first:
                    raise
                job = None
            pods = await self.pods(name, namespace)
            if rank is None or job is None:
                return job, pods if most is None else [pod for pod in pods if pod.started][:most]
            return job, rules.choose_pods(job, pods, rank, patient=follow)

        first = True
        space = self._space(namespace)
        merger = logs.Merger(self.connection, space, look, follow=follow, tail=tail, window=window, longest=longest)
        async with contextlib.aclosing(merger.lines()) as lines:
            async for line in lines:
                first = False
                yield line

    # --- underneath ------------------------------------------------------------------------------------------

    def _space(self, namespace: str | None) -> str:
        return namespace or self.connection.namespace

    def _jobs(self, namespace: str | None, all_namespaces: bool = False) -> str:
        return path_of(names.API_VERSION, names.PLURAL, "" if all_namespaces else self._space(namespace))

    def _job(self, name: str, namespace: str | None) -> str:
        if not name:
            raise errors.InvalidError("name: is required")
        return path_of(names.API_VERSION, names.PLURAL, self._space(namespace), name)

    async def _set_suspend(self, name: str, namespace: str | None, *, suspend: bool) -> Job:
        return await self.patch(name, {"spec": {"runPolicy": {"suspend": suspend}}}, namespace)


def _merge_patch(path: str, body: dict[str, Any], what: str) -> Request:
    return Request("PATCH", path, what, body=body, content_type=MERGE_PATCH)
