"""Lists the ElasticJobs, and then runs kopf's watch of them, and restarts it when kopf gives up.

The operator's own list comes first: it is several times as fast as kopf's, which takes five jobs at a time and gives
each a queue and a task. kopf lists all jobs once more before it watches, and again after a gap. It reports what exists,
and not what was deleted before: so after each of its lists, the jobs are compared with what exists.

kopf stops if the API server answers a watch with an error such as 410 Gone, or rejects a token twice. Then the jobs are
listed, and kopf is started again. Nothing else ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import kopf

from elasticjob_operator import turn
from elasticjob_operator.api import names
from elasticjob_operator.backoff import find_pause, spread
from elasticjob_operator.kube import handlers, kopf_session
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.listing import Listing, Raw, Take
from elasticjob_operator.kube.supervise import insist
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.json_stream import Unreadable
from elasticjob_operator.rest.request import JSON, path_of

logger = logging.getLogger(__name__)

QUIET_SECONDS = 1.0  # without a job from a list of kopf's: the list is complete
_KOPF: Final = str(Path(kopf.__file__).parent)


class _NotOfKopf(Collection["asyncio.Task[Any]"]):
    """All tasks that are not kopf's own. When kopf ends, it cancels those that have begun since, whoever began them."""

    def __contains__(self, task: object) -> bool:
        code = getattr(task.get_coro(), "cr_code", None) if isinstance(task, asyncio.Task) else None
        return code is None or not code.co_filename.startswith(_KOPF)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return (task for task in asyncio.all_tasks() if task in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
        self._kopf_lists = asyncio.Event()  # kopf will list the jobs, or has just reported one from a list

    async def run(self) -> None:
        """Run until stopped."""
        while await self._run_kopf():
            await asyncio.sleep(1.0)
            await self.catch_up()

    async def catch_up(self) -> None:
        """Bring the cache in step with the jobs that exist; needed before the first pass, and before `run`."""
        await self._compare(self._take)

    async def compare(self) -> None:
        """Follow kopf's lists: drop the jobs that were deleted before one. Runs until it is cancelled."""
        while True:
            await self._kopf_lists.wait()
            while self._kopf_lists.is_set():  # one page of the list follows the other
                self._kopf_lists.clear()
                await asyncio.sleep(QUIET_SECONDS)
            await self._compare()

    async def _compare(self, take: Take | None = None) -> None:
        """Drop the cached jobs that do not exist, and `take` those that do.

        Without `take`, only their metadata is read: beside kopf's watch, a list could bring back a job whose deletion
        the watch has reported since.
        """
        for namespace in self._namespaces or ("",):
            before = [(key, job.uid) for key, (job, _) in self._cache.jobs.items() if namespace in ("", key[0])]
            present, version = await self._list(namespace, take)
            self._cache.lists.end(names.KIND, namespace, version)
            async for key, uid in turn.one_by_one(before):
                if uid not in present:
                    self._cache.drop_job(key, uid)

    async def _list(self, namespace: str, take: Take | None) -> tuple[set[str], str]:
        """The UIDs of the existing jobs in this namespace, or in all, and the version of the list."""
        path = path_of(names.API_VERSION, names.PLURAL, namespace)
        listing = Listing(self._api, path, self._intake, is_metadata_enough=take is None)
        failures = 0
        while True:
            try:
                listed = await listing.read(take or (lambda item: None))
                return {uid async for uid in turn.one_by_one(listed.present)}, listed.version
            except ApiError as error:
                failures += 1
                pause = spread(find_pause(failures, most=10.0, asked=error.retry_after))
                logger.warning("cannot list the jobs: %s; retrying in %.1f s", error, pause)
                await asyncio.sleep(pause)

    def _take(self, raw: Raw) -> None:
        self._intake.take(names.PLURAL, raw, lambda: self._cache.put_job(raw))

    async def _run_kopf(self) -> bool:
        """Run kopf; return whether to run it again."""
        try:
            tasks = await kopf.spawn_tasks(
                registry=handlers.build_registry(self._cache, self._intake, self._credentials, self._kopf_lists.set),
                settings=handlers.build_settings(),
                standalone=True,
                identity=self._identity,  # type: ignore[arg-type] # the default needs a user name
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=self._stopped,
            )
            self._take_signals()
            await kopf.run_tasks(tasks, ignored=_NotOfKopf())
        except Exception as error:
            if self._stopped.is_set():
                raise
            logger.warning("the watch of the jobs ended (%s); restarting it", error)
            return True
        return False

    def _take_signals(self) -> None:
        """SIGTERM and SIGINT stop the operator, though kopf takes them when it starts.

        On a signal it would end its watch of the jobs and give our tasks five more seconds, in which we still lead.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stopped.set)

    def _skip(self, one: Unreadable) -> None:
        self._intake.skip(names.PLURAL, one.name, "Unreadable", one.why)

    async def _credentials(self) -> kopf.AiohttpSession:
        """A connection for kopf with our credentials; called again whenever the API server rejects them.

        A token may have expired before the next one is available. kopf does not retry the same token and would stop, so
        this waits for a new one; each result differs from the ones before.
        """
        self._logins += 1
        self._kopf_lists.set()
        if self._logins > 1:
            path = path_of(names.API_VERSION, names.PLURAL, (self._namespaces or ("",))[0])
            await insist(lambda: self._api.fetch(path, {"limit": "1"}, JSON), refusals=())
        configuration = self._api.client.configuration
        bearer = (await configuration.auth_settings()).get("BearerToken")
        token = str(bearer["value"]).partition(" ")[2] if bearer else None
        info = kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme="Bearer" if token else None,
            token=token,
        )
        return kopf.AiohttpSession(
            server=info.server,
            priority=self._logins,
            aiohttp_session=kopf_session.open_session(info, self._skip),
        )
