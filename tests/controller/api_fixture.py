"""A small HTTP server in place of the API server, and an `Api` that is connected to it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from elasticjob_operator.kube.client import Api

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def kubeconfig(url: str) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


@contextlib.asynccontextmanager
async def answering(answer: Answer, directory: Path, **options: Any) -> AsyncIterator[Api]:
    """An `Api` with these options, whose server answers every request with this function."""
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = directory / "kubeconfig"
    config.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}")))
    api = await Api.connect(str(config), **options)
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()
