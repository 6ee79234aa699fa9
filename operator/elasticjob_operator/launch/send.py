"""Creates a job with its code: first the job, which owns the ConfigMap, then the ConfigMap.

The pods wait for the ConfigMap. What would refuse it (a missing right, a quota) is asked before the job exists, and a
job whose code cannot be sent after all is deleted again.
"""

from __future__ import annotations

import contextlib
from typing import Any

from elasticjob_operator.client import Client, ClientError, Job
from elasticjob_operator.launch.attach import Shipment, owned_by
from elasticjob_operator.rest.request import Request, path_of


async def send(client: Client, shipment: Shipment, namespace: str | None = None) -> Job:
    """Create the job and its ConfigMap. Raises ClientError or api.InvalidJobError; then neither exists."""
    manifest, code = shipment.manifest, shipment.config_map
    if code is None:
        return await client.submit(manifest, namespace)
    space = namespace or manifest["metadata"].get("namespace") or client.namespace
    await _create(client, code, space, dry_run=True)
    job = await client.submit(manifest, space)
    try:
        await _create(client, owned_by(code, job.name, job.uid), space)
    except BaseException:  # Ctrl-C, too, must not leave a job that waits for its code for ever
        with contextlib.suppress(ClientError):
            await client.delete(job.name, space)
        raise
    return job


async def _create(client: Client, body: dict[str, Any], namespace: str, *, dry_run: bool = False) -> None:
    what = f"create configmap {body['metadata']['name']}, the code of the job"
    query = (("dryRun", "All"),) if dry_run else ()
    await client.connection.ask(Request("POST", path_of("v1", "configmaps", namespace), what, query, body))
