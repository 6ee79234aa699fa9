"""The hub's address and certificate, and when it starts to listen.

The leader creates and renews the certificate; other replicas read it, and wait until it exists. They also listen, to
tell agents that they are not the leader, but never write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from elasticjob_operator.errors import UsageError
from elasticjob_operator.hub import certificate_secret, certificates
from elasticjob_operator.hub.server import Hub
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.supervise import insist
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import path_of
from elasticjob_operator.run.options import Options

logger = logging.getLogger(__name__)

WAIT_SECONDS = 1.0  # between a follower's checks for the leader's certificate


class Serving:
    """Makes the hub listen with a valid certificate. `on_trust` is called with the CAs that agents must trust (PEM)."""

    def __init__(self, options: Options, api: Api, hub: Hub, on_trust: Callable[[str], None]) -> None:
        self._options = options
        self._api = api
        self._hub = hub
        self._on_trust = on_trust
        self._trust = b""
        self._refreshing = asyncio.Lock()
        self.port = 0  # 0 as long as it does not listen
        self.service: Mapping[str, Any] = MappingProxyType({"spec": MappingProxyType({"selector": "none"})})
        self._address = ""
        self._service_port = 0

    async def prepare(self) -> None:
        """Find the address, and listen if there is a certificate already."""
        await self._find_service()
        if self._options.tls_secret:
            await insist(self.refresh)
        else:
            await self._listen(None)

    async def refresh(self) -> None:
        """Update the certificate: as the leader, create or renew it; otherwise read the leader's.

        Raises ApiError, and UsageError if the Secret cannot be used.
        """
        if not self._options.tls_secret:
            return
        place = (self._options.operator_namespace, self._options.tls_secret)
        async with self._refreshing:
            try:
                if self._api.leadership.is_held:
                    now = datetime.fromtimestamp(self._api.clock(), UTC)
                    bundle = await certificate_secret.ensure_certificates(self._api, *place, self._sans(), now)
                else:
                    found = await certificate_secret.read_certificates(self._api, *place)
                    if found is None:
                        logger.debug("secret %s/%s does not exist yet; waiting for the leader to create it", *place)
                        return
                    bundle = found
            except certificate_secret.UnusableSecretError as error:
                raise UsageError(str(error)) from None
            await self._use(bundle)

    async def keep_fresh(self) -> None:
        """Refresh the certificate periodically. Existing connections survive its renewal."""
        while self._options.tls_secret:
            await asyncio.sleep(self._options.certificate_check_seconds if self.port else WAIT_SECONDS)
            try:
                await self.refresh()
            except (ApiError, UsageError) as error:
                logger.warning("could not check the hub's certificate: %s", error)

    async def _use(self, bundle: certificates.Bundle) -> None:
        context = certificates.server_context(bundle)
        if self.port:
            self._hub.use_certificate(context)
        else:
            await self._listen(context)
        if bundle.trust != self._trust:
            self._trust = bundle.trust
            self._on_trust(bundle.trust.decode())

    async def _listen(self, context: Any) -> None:
        self.port = await self._hub.start(self._options.hub_host, self._options.hub_port, context)
        logger.info("the hub listens on %s:%d; agents connect to %s", self._options.hub_host, self.port, self.url)

    # Where it is.

    @property
    def url(self) -> str:
        """The URL for agents."""
        if self._options.hub_url:
            url = self._options.hub_url
            return url.replace(":0", f":{self.port}") if url.endswith(":0") else url
        scheme = "wss" if self._options.tls_secret else "ws"
        host = self._address or "127.0.0.1"
        port = self._service_port or self.port
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def _service_name(self) -> tuple[str, str]:
        namespace, _, name = self._options.hub_service.rpartition("/")
        return namespace or self._options.operator_namespace, name

    async def _find_service(self) -> None:
        """Find the Service's cluster IP: workers may have no cluster DNS."""
        if not self._options.hub_service:
            return
        namespace, name = self._service_name()
        service = await insist(lambda: self._api.request("GET", path_of("v1", "services", namespace, name)))
        self.service = service
        self._address = service["spec"].get("clusterIP", "")
        ports = service["spec"]["ports"]
        self._service_port = next((p["port"] for p in ports if p.get("name") == "hub"), ports[0]["port"])
        if self._address in ("", "None"):
            raise UsageError(f"service {namespace}/{name} has no cluster IP, which agents need to reach the hub")

    def _sans(self) -> list[str]:
        found = ["localhost", "127.0.0.1"]
        host = self._options.hub_url.partition("://")[2].rpartition(":")[0].strip("[]")
        if self._options.hub_service:
            namespace, name = self._service_name()
            found += [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]
        return [*found, *(h for h in (self._address, host) if h and h not in found)]
