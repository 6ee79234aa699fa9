"""The bounds that keep one agent, or an unauthenticated client, from costing the hub more than its share.

Pure: time comes in as an argument, nothing here touches a socket.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob_operator.api import wire


@dataclass(frozen=True, slots=True)
class HubSettings:
    """What the hub allows. All times are seconds."""

    hello_seconds: float = 5.0  # for the request's head, the TLS handshake and the hello, each
    authenticate_seconds: float = 10.0
    heartbeat_min: float = 1.0
    heartbeat_max: float = 5.0
    connections_per_heartbeat_second: float = 500.0  # beyond this many, agents ping less often
    timeout_min: float = 5.0
    timeout_heartbeats: float = 5.0
    sweep_seconds: float = 0.5
    progress_wake_seconds: float = 1.0
    max_message_bytes: int = wire.MAX_MESSAGE_BYTES
    messages_per_second: float = 20.0
    message_burst: float = 100.0
    connects_per_second: float = 1.0  # per pod; an agent that flaps faster than this hears 429
    connect_burst: float = 10.0
    message_bytes_per_token: int = 4096  # a long message counts as so many more
    note_kib_per_second: float = 0.5  # what one pod may write into our log; a job may eight times as much
    note_kib_burst: float = 64.0
    failures_per_second: float = 1.0  # per address; one whose tokens fail more often hears 429 unasked
    failure_burst: float = 20.0
    max_pending_sockets: int = 1024  # sockets that have not yet sent a whole request
    max_unauthenticated: int = 512  # requests whose token is being checked
    max_pending: int = 512  # agents that have not yet said hello
    max_connections: int = 20_000
    agent_greed: float = 9.0  # one namespace alone may have nine tenths of the agents; see `admission`
    max_buffer_bytes: int = 256 * 1024  # unsent bytes of one connection before it has to wait
    slow_seconds: float = 10.0  # unsent bytes for this long: the peer does not read
    close_seconds: float = 1.0  # how long a peer has to answer a close


def heartbeat_seconds(connections: int, settings: HubSettings) -> float:
    """How often an agent should ping: every second where there are few, less often among thousands."""
    wanted = connections / settings.connections_per_heartbeat_second
    return min(settings.heartbeat_max, max(settings.heartbeat_min, wanted))


def timeout_seconds(heartbeat: float, settings: HubSettings) -> float:
    """Silence for this long is a loss."""
    return max(settings.timeout_min, heartbeat * settings.timeout_heartbeats)
