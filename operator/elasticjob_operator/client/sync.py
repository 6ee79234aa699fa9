"""The synchronous client: each call runs on an event loop in a separate thread.

A thread instead of `asyncio.run`, so that it also works while another loop runs (in a notebook).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from elasticjob_operator.client.jobs import Client
from elasticjob_operator.client.logs import Line, Window
from elasticjob_operator.client.model import Change, Happenings, Job, Jobs, Pods

T = TypeVar("T")


class SyncClient:
    """`Client` for synchronous code, with the same methods and errors. Use it as a context manager."""

    def __init__(
        self, *, kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None
    ) -> None:
        self._client = Client(kubeconfig=kubeconfig, context=context, namespace=namespace)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="elasticjob-client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._client.__aexit__(None, None, None))
        finally:
            self._stop()

    @property
    def namespace(self) -> str:
        return self._client.namespace

    def get(self, name: str, namespace: str | None = None) -> Job:
        return self._run(self._client.get(name, namespace))

    def list(
        self,
        namespace: str | None = None,
        *,
        all_namespaces: bool = False,
        selector: str | None = None,
        from_cache: bool = False,
    ) -> Jobs:
        found = self._client.list(namespace, all_namespaces=all_namespaces, selector=selector, from_cache=from_cache)
        return self._run(found)

    def pods(self, name: str, namespace: str | None = None) -> Pods:
        return self._run(self._client.pods(name, namespace))

    def events(self, name: str, namespace: str | None = None) -> Happenings:
        return self._run(self._client.events(name, namespace))

    def submit(self, manifest: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False) -> Job:
        return self._run(self._client.submit(manifest, namespace, dry_run=dry_run))

    def scale(self, name: str, replicas: int, namespace: str | None = None) -> Job:
        return self._run(self._client.scale(name, replicas, namespace))

    def release(self, name: str, namespace: str | None = None) -> Job:
        return self._run(self._client.release(name, namespace))

    def suspend(self, name: str, namespace: str | None = None) -> Job:
        return self._run(self._client.suspend(name, namespace))

    def resume(self, name: str, namespace: str | None = None) -> Job:
        return self._run(self._client.resume(name, namespace))

    def delete(self, name: str, namespace: str | None = None) -> None:
        self._run(self._client.delete(name, namespace))

    def wait(
        self, name: str, condition: str = "Complete", namespace: str | None = None, *, timeout: float | None = None
    ) -> Job:
        return self._run(self._client.wait(name, condition, namespace, timeout=timeout))

    def watch(self, name: str | None = None, namespace: str | None = None) -> Iterator[Change]:
        return self._iterate(self._client.watch(name, namespace))

    def logs(
        self,
        name: str,
        namespace: str | None = None,
        *,
        rank: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        window: Window | None = None,
    ) -> Iterator[Line]:
        lines = self._client.logs(name, namespace, rank=rank, follow=follow, tail=tail, window=window)
        return self._iterate(lines)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client is not open: use it as `with SyncClient() as client:`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # on Ctrl-C, do not continue in the background
            raise

    def _iterate(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        async def step() -> tuple[bool, T | None]:
            try:
                return True, await anext(source)
            except StopAsyncIteration:
                return False, None

        async def close() -> None:
            await source.aclose()

        try:
            while True:
                more, item = self._run(step())
                if not more:
                    return
                yield item  # type: ignore[misc]
        finally:
            self._run(close())

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
