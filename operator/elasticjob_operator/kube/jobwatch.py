"""Runs kopf's watch of the ElasticJobs, and restarts it when kopf gives up.

kopf stops if the API server answers a watch with an error such as 410 Gone, or rejects a token twice. Then the jobs are
listed, because kopf would not report those deleted meanwhile, and kopf is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import kopf

from elasticjob_operator.api import names
from elasticjob_operator.backoff import find_pause, spread
from elasticjob_operator.kube import handlers
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.listing import Listing
from elasticjob_operator.kube.supervise import insist
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import path_of
from elasticjob_operator.turn import Turn

logger = logging.getLogger(__name__)


class JobWatch:
    """Keeps the jobs of these namespaces in the cache; no namespaces means the whole cluster."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        identity: str,
        namespaces: tuple[str, ...],
        stopped: asyncio.Event,
        intake: Intake,
    ) -> None:
        self._api = api
        self._intake = intake
        self._cache = cache
        self._identity = identity
        self._namespaces = namespaces
        self._stopped = stopped
        self._logins = 0

    async def run(self) -> None:
        """Run until stopped, or until kopf ends on a signal."""
        while await self._run_kopf():
            await asyncio.sleep(1.0)
            await self.catch_up()

    async def catch_up(self) -> None:
        """Bring the cache in step with the jobs that exist; also needed before the first pass."""
        for namespace in self._namespaces or ("",):
            before = [(key, job.uid) for key, (job, _) in self._cache.jobs.items() if namespace in ("", key[0])]
            present = await self._take_all(namespace)
            for key, uid in before:
                if uid not in present:
                    self._cache.drop_job(key, uid)

    async def _take_all(self, namespace: str) -> set[str]:
        """Enter every job of this namespace, or of all; return the UIDs of the existing jobs."""
        failures = 0
        while True:
            present: set[str] = set()
            turn = Turn()
            try:
                listing = Listing(self._api, path_of(names.API_VERSION, names.PLURAL, namespace), self._intake)
                async with contextlib.aclosing(listing.pages()) as pages:
                    async for page in pages:
                        present.update(item["metadata"]["uid"] for item in page.present)
                        for item in page.items:
                            self._take({"apiVersion": names.API_VERSION, "kind": names.KIND, **item})
                            await turn.pause()
                return present
            except ApiError as error:
                failures += 1
                pause = spread(find_pause(failures, most=10.0, asked=error.retry_after))
                logger.warning("cannot list the jobs: %s; retrying in %.1f s", error, pause)
                await asyncio.sleep(pause)

    def _take(self, raw: dict[str, Any]) -> None:
        self._intake.take(names.PLURAL, raw, lambda: self._cache.put_job(raw))

    async def _run_kopf(self) -> bool:
        """Run kopf; return whether to run it again."""
        try:
            await kopf.operator(
                registry=handlers.build_registry(self._cache, self._intake, self._credentials),
                settings=handlers.build_settings(),
                standalone=True,
                identity=self._identity,  # type: ignore[arg-type] # the default needs a user name
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=self._stopped,
            )
        except Exception as error:
            if self._stopped.is_set():
                raise
            logger.warning("the watch of the jobs ended (%s); restarting it", error)
            return True
        return False

    async def _credentials(self) -> kopf.ConnectionInfo:
        """Our credentials for kopf; called again whenever the API server rejects them.

        A token may have expired before the next one is available. kopf does not retry the same token and would stop, so
        this waits for a new one; each result differs from the ones before.
        """
        self._logins += 1
        if self._logins > 1:
            path = path_of(names.API_VERSION, names.PLURAL, (self._namespaces or ("",))[0])
            await insist(lambda: self._api.request("GET", path, query={"limit": "1"}), refusals=())
        configuration = self._api.client.configuration
        bearer = (await configuration.auth_settings()).get("BearerToken")
        token = str(bearer["value"]).partition(" ")[2] if bearer else None
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme="Bearer" if token else None,
            token=token,
            priority=self._logins,
        )
