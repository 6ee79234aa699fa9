"""The cluster's DNS, for container nodes: the names of Services and of the pods behind them, and no others.

It listens on the gateway's address. Every answer is read from the API server when somebody asks, so nothing is watched
and nothing is stale. dnspython reads and writes the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from elasticjob_devcluster.api.kube import KubeError

DOMAIN: Final = "cluster.local"
PORT: Final = 53
TTL_SECONDS: Final = 5
MOST_QUESTIONS: Final = 512  # that wait for an answer ...
MOST_OF_ONE: Final = 32  # ... of one address: what is more is lost, and asked again
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_UNANSWERED: Final = (OSError, HTTPException, KubeError, dns.exception.DNSException)

Read = Callable[[str], dict[str, Any] | None]  # an API path → the object, or None if it does not exist


@dataclass(frozen=True)
class ServiceName:
    """`service.namespace.svc.cluster.local`, or that of one pod behind it, with its host name in front."""

    namespace: str
    service: str
    host: str | None = None


def parse_name(name: str) -> ServiceName | None:
    """None if the name is none of a Service or of a pod behind one."""
    labels = name.rstrip(".").lower().split(".")
    if labels[-3:] != ["svc", *DOMAIN.split(".")] or len(labels) not in (5, 6):
        return None
    *host, service, namespace = labels[:-3]
    if not all(_LABEL.fullmatch(label) for label in labels):
        return None  # no object has such a name, and it becomes part of a path
    return ServiceName(namespace, service, host[0] if host else None)


def find_addresses(name: ServiceName, read: Read) -> list[str] | None:
    """The addresses of a name; None if there is no such name."""
    place = f"/api/v1/namespaces/{name.namespace}"
    service = read(f"{place}/services/{name.service}")
    if service is None:
        return None
    address = service["spec"].get("clusterIP")
    if name.host is None and address not in (None, "", "None"):
        return [address]
    endpoints = read(f"{place}/endpoints/{name.service}") or {}
    known = [a for subset in endpoints.get("subsets") or () for a in subset.get("addresses") or ()]
    found = [a["ip"] for a in known if name.host in (None, a.get("hostname"))]
    return found or (None if name.host else [])


def answer(packet: bytes, read: Read) -> bytes:
    """The reply to one question. Raises `DNSException` if the packet is none."""
    query = dns.message.from_wire(packet)
    reply = dns.message.make_response(query)
    reply.flags |= dns.flags.AA
    for question in query.question:
        name = parse_name(question.name.to_text())
        addresses = find_addresses(name, read) if name else None
        if addresses is None:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif addresses and question.rdtype == dns.rdatatype.A:
            reply.answer.append(dns.rrset.from_text_list(question.name, TTL_SECONDS, "IN", "A", addresses))
    return reply.to_wire(max_size=512)


class ClusterDns(asyncio.DatagramProtocol):
    """Serves on UDP. Names that cannot be looked up get no answer; the resolver asks again."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._transport: asyncio.DatagramTransport | None = None
        self._tasks: dict[asyncio.Task[None], str] = {}  # with the address that has asked

    async def start(self, address: str, port: int = PORT) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(address, port))

    async def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._transport is not None, "started"
        port: int = self._transport.get_extra_info("sockname")[1]
        return port

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        address = str(addr[0])
        waiting = list(self._tasks.values())
        if len(waiting) >= MOST_QUESTIONS or waiting.count(address) >= MOST_OF_ONE:
            return
        task = asyncio.create_task(self._answer(data, addr))
        self._tasks[task] = address
        task.add_done_callback(self._tasks.pop)

    @property
    def waiting(self) -> int:
        """How many questions wait for an answer."""
        return len(self._tasks)

    async def _answer(self, data: bytes, peer: tuple[str | Any, int]) -> None:
        with contextlib.suppress(*_UNANSWERED):
            reply = await asyncio.to_thread(answer, data, self._read)
            if self._transport is not None and not self._transport.is_closing():
                self._transport.sendto(reply, peer)
