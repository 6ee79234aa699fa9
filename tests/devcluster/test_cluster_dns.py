"""The DNS of clusters with container nodes: which names it knows, and that a resolver understands it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import dns.asyncquery
import dns.message
import dns.rcode
import pytest

from elasticjob_devcluster.containerd.dns import ClusterDns, ServiceName, find_addresses, parse_name

PLACE = "/api/v1/namespaces/team"
OBJECTS: dict[str, Any] = {
    f"{PLACE}/services/hub": {"spec": {"clusterIP": "10.96.0.7"}},
    f"{PLACE}/services/pods": {"spec": {"clusterIP": "None"}},
    f"{PLACE}/endpoints/pods": {
        "subsets": [
            {
                "addresses": [{"ip": "100.65.7.2", "hostname": "worker-0"}, {"ip": "100.65.7.3"}],
                "notReadyAddresses": [{"ip": "100.65.7.4", "hostname": "worker-1"}],
            }
        ]
    },
    f"{PLACE}/services/empty": {"spec": {"clusterIP": "None"}},
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("hub.team.svc.cluster.local.", ServiceName("team", "hub"), id="service"),
        pytest.param("W.pods.team.svc.cluster.local", ServiceName("team", "pods", "w"), id="pod, any case"),
        pytest.param("hub.team", None, id="relative: the resolver's search list completes it"),
        pytest.param("team.svc.cluster.local", None, id="namespace only"),
        pytest.param("a.b.hub.team.svc.cluster.local", None, id="too deep"),
        pytest.param(".hub.team.svc.cluster.local", None, id="empty label"),
        pytest.param("hub/../pods.team.svc.cluster.local", None, id="no name of an object"),
        pytest.param("example.com", None, id="outside"),
    ],
)
def test_names(name: str, expected: ServiceName | None) -> None:
    assert parse_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(ServiceName("team", "hub"), ["10.96.0.7"], id="address of the Service"),
        pytest.param(ServiceName("team", "pods"), ["100.65.7.2", "100.65.7.3"], id="headless: those that are ready"),
        pytest.param(ServiceName("team", "pods", "worker-0"), ["100.65.7.2"], id="one pod"),
        pytest.param(ServiceName("team", "pods", "worker-1"), None, id="a pod that is not ready"),
        pytest.param(ServiceName("team", "empty"), [], id="without endpoints"),
        pytest.param(ServiceName("team", "other"), None, id="no Service"),
        pytest.param(ServiceName("other", "hub"), None, id="no namespace"),
    ],
)
def test_addresses(name: ServiceName, expected: list[str] | None) -> None:
    assert find_addresses(name, OBJECTS.get) == expected


async def ask(port: int, name: str, kind: str = "A") -> tuple[str, list[str]]:
    query = dns.message.make_query(name, kind)
    reply = await dns.asyncquery.udp(query, "127.0.0.1", port=port, timeout=20)
    found = [item.to_text() for rrset in reply.answer for item in rrset]
    return dns.rcode.to_text(reply.rcode()), found


@pytest.mark.timeout(60)
def test_a_resolver_understands_it_and_rubbish_does_not_end_it() -> None:
    async def story() -> list[tuple[str, list[str]]]:
        server = ClusterDns(OBJECTS.get)
        await server.start("127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        rubbish, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=("127.0.0.1", server.port)
        )
        try:
            rubbish.sendto(b"\x00\x01rubbish")
            pod = "worker-0.pods.team.svc.cluster.local."
            return [
                await ask(server.port, pod),
                await ask(server.port, pod, "AAAA"),
                await ask(server.port, "nobody.pods.team.svc.cluster.local."),
            ]
        finally:
            rubbish.close()
            await server.stop()

    assert asyncio.run(story()) == [("NOERROR", ["100.65.7.2"]), ("NOERROR", []), ("NXDOMAIN", [])]


@pytest.mark.timeout(60)
def test_the_questions_of_one_pod_do_not_pile_up() -> None:
    answers = threading.Event()

    def read(path: str) -> dict[str, Any] | None:
        answers.wait(30)
        return OBJECTS.get(path)

    async def story() -> None:
        server = ClusterDns(read)
        question = dns.message.make_query("hub.team.svc.cluster.local.", "A").to_wire()
        for _ in range(1000):
            server.datagram_received(question, ("100.65.7.2", 5353))
        assert server.waiting <= 64
        before = server.waiting
        server.datagram_received(question, ("100.65.7.3", 5353))
        assert server.waiting == before + 1, "another pod is heard"
        answers.set()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        server.datagram_received(question, ("100.65.7.2", 5353))
        assert server.waiting == 1, "and so is the same one, once it has its answers"
        await server.stop()

    asyncio.run(story())
