"""What the model assumes: CPU and bytes of each message and request.

CPU seconds are of one core of the machine that docs/performance.md names. Those of the hub follow from its results at
one size, and are checked at the others; one write to the API server is fitted to the results of the control plane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.hub import frames, limits

FITTED_AT = 1000  # agents
TLS_BYTES, PACKET_BYTES = 22, 52  # of a TLS 1.3 record, and of a packet's TCP and IP headers with timestamps
HANDSHAKE_BYTES = 5_000  # both directions: certificates, tickets, the upgrade, hello and welcome
MESSAGES_OF_FORMING = 2  # an agent of the benchmark hears world, and says running
MESSAGES_OF_A_CHANGE = 4  # an agent of the benchmark hears regroup and world, and says ready and running
MESSAGES_OF_A_REAL_CHANGE = 5  # a real one says stopping as well


@dataclass(frozen=True)
class Constants:
    """Seconds are CPU time of one core, unless stated otherwise."""

    handshake: float  # of the hub: TLS, request, hello, welcome
    message: float  # of the hub: one frame sent or received, in a burst
    ping: float  # of the hub: a ping and its pong, alone
    agent_bytes: float  # memory of the hub for an agent that has heard of two worlds
    look: float = 3e-7  # of the hub: whether a connection is silent or slow, at each sweep
    write: float = 1.42e-3  # of the API server: one write and what follows from it (etcd, watches)
    listed: float = 1.9e-4  # of operator and API server together: a pod in the list of a start (10,000 pods: 1.9 s)
    pod: float = 1.1e-3  # of the operator: a pod's whole life (1 x 1000: 1.1 s)
    job: float = 5.0e-3  # of the operator: a job's whole life besides its pods (1000 x 1: 6.1 s); half until its pods
    latency: float = 2.5e-4  # seconds of a message on its way
    bandwidth: float = 1.25e9  # bytes a second of the hub's network: 10 Gbit/s
    api_cores: int = 1  # the measured write is that of a machine where the API server has about one core


def fit(hub: Mapping[tuple[str, int], float], agents: int = FITTED_AT) -> Constants:
    """The constants that follow from what was measured with this number of agents: see `measured.HUB_ROWS`."""
    heartbeats = hub["heartbeats", agents] - Constants.look * count_looks(agents)
    return Constants(
        handshake=hub["connect", agents] / agents,
        message=(hub["form", agents] + hub["change", agents]) / agents / (MESSAGES_OF_FORMING + MESSAGES_OF_A_CHANGE),
        ping=heartbeats / count_pings(agents),
        agent_bytes=hub["memory", agents],
    )


def count_pings(agents: int) -> float:
    """Pings a second on one hub. The operator knows how many agents there will be when it greets the first one."""
    return agents / limits.heartbeat_seconds(agents, limits.HubSettings())


def count_looks(agents: int) -> float:
    """Looks at a connection a second, on one hub."""
    return agents / limits.HubSettings().sweep_seconds


def count_member_bytes() -> float:
    """Bytes of one member in the status of its job."""

    def measure(count: int) -> int:
        members = [
            api.Member(pod=f"training-worker-{rank}", uid="0" * 36, rank=rank, address=f"10.12.{rank}.123", nproc=8)
            for rank in range(100, 100 + count)
        ]
        return len(api.RendezvousStatus(members=members).model_dump_json(by_alias=True, exclude_none=True))

    return (measure(11) - measure(1)) / 10


def frame_bytes() -> dict[str, int]:
    """Bytes of each frame of a regroup on the wire, from the operator's own encoder."""
    store = wire.Store(address="10.0.0.1", port=40_000)
    members = tuple(wire.Member(pod="w", rank=rank, address="10.0.0.1", nproc=8) for rank in range(8))
    world = wire.World(generation=2, rank=7, members=members, store=store)
    regroup = wire.Regroup(generation=1, reason="lost")
    encoder = frames.DirectiveEncoder()
    sizes = {"regroup": len(encoder.encode(regroup)), "world": len(encoder.encode(world, sizes=True))}
    for phase in (wire.AgentPhase.STOPPING, wire.AgentPhase.READY, wire.AgentPhase.RUNNING):
        state = wire.AgentState(phase=phase, generation=2, store=store if phase == "ready" else None)
        sizes[phase.value] = len(wire.State(state=state).model_dump_json(by_alias=True, exclude_none=True))
    return {name: size + 4 + TLS_BYTES + PACKET_BYTES for name, size in sizes.items()}
