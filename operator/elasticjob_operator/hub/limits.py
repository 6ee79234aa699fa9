"""The limits that keep one agent, or an unauthenticated client, from using more than its share of the hub.

Pure: time is an argument, and nothing here uses a socket.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob_operator.api import wire


@dataclass(frozen=True, slots=True)
class HubSettings:
    """The hub's limits. All times are in seconds."""

    hello_seconds: float = 5.0  # for each of: request headers, TLS handshake, hello
    authenticate_seconds: float = 10.0
    heartbeat_min: float = 1.0
    heartbeat_max: float = 6.0  # 10,000 agents then cost a tenth of a core
    connections_per_heartbeat_second: float = 500.0  # beyond this many, agents ping less often: `admission.Crowd`
    count_seconds: float = 1.0  # until the agents of other namespaces are counted again
    timeout_min: float = 5.0
    reconnects_per_second: float = 1500.0  # a core can do so many: what comes earlier waits, gives up and comes again
    reconnect_max: float = 5.0  # half of the time after which an agent that is not back yet counts as lost
    timeout_heartbeats: float = 4.0
    sweep_seconds: float = 0.5
    late_seconds: float = 1.0  # by which a sweep must be late for the hub to have been held up
    progress_wake_seconds: float = 1.0
    max_message_bytes: int = wire.MAX_MESSAGE_BYTES
    messages_per_second: float = 20.0
    message_burst: float = 100.0
    connects_per_second: float = 1.0  # per pod; an agent that reconnects more often gets 429
    connect_burst: float = 10.0
    message_bytes_per_token: int = 4096  # a long message costs one token per this size
    note_kib_per_second: float = 0.5  # log quota of one pod; a job has eight times as much
    note_kib_burst: float = 64.0
    failures_per_second: float = 1.0  # per address; above it, requests get 429 without a token review
    failure_burst: float = 20.0
    max_pending_sockets: int = 1024  # sockets that have not sent a complete request
    max_unauthenticated: int = 512  # requests whose token is being reviewed
    max_pending: int = 512  # agents that have not sent hello
    max_connections: int = 20_000
    agent_greed: float = 9.0  # one namespace alone may have 90 % of the agents, and of the pending ones: `shares`
    max_buffer_bytes: int = 256 * 1024  # unsent bytes of one connection before it must wait
    slow_seconds: float = 10.0  # in which a peer takes none of its unsent bytes mean that it does not read
    kept_bytes: int = 8 * 1024  # of the last message of each kind of a pod: what is longer shares ...
    max_kept_bytes: int = 24 * 1024 * 1024  # ... so many bytes of all pods, of which one namespace gets half
    max_arriving_bytes: int = 48 * 1024 * 1024  # of messages that have not ended, beyond `kept_bytes`, shared likewise
    max_unread_bytes: int = 24 * 1024 * 1024  # of long worlds that agents have yet to read, shared in the same way
    close_seconds: float = 1.0  # time for a peer to reply to a close frame


def heartbeat_seconds(connections: int, settings: HubSettings) -> float:
    """The agents' ping interval: one second for few agents, longer for thousands."""
    wanted = connections / settings.connections_per_heartbeat_second
    return min(settings.heartbeat_max, max(settings.heartbeat_min, wanted))


def timeout_seconds(heartbeat: float, settings: HubSettings) -> float:
    """Seconds of silence after which an agent is lost."""
    return max(settings.timeout_min, heartbeat * settings.timeout_heartbeats)


def reconnect_seconds(agents: int, settings: HubSettings) -> float:
    """Seconds over which so many agents spread their attempts when all of them have lost the hub."""
    return min(settings.reconnect_max, agents / settings.reconnects_per_second)


def bytes_allowed(settings: HubSettings) -> tuple[float, float]:
    """A pod's bytes per second, and its burst: twice what its messages may have, whose limit is noticed first."""
    size = 2.0 * settings.message_bytes_per_token
    return size * settings.messages_per_second, size * settings.message_burst


def measure_seconds(settings: HubSettings) -> float:
    """Seconds between two looks at the unsent bytes of all connections, so that a slow one is noticed in time."""
    return settings.slow_seconds / 4


def lost_seconds(passed: float, settings: HubSettings) -> float:
    """How long the hub itself did not run, if so much time has passed since its last sweep; 0 if it was hardly late.

    Nobody is silent in that time. What remains is no less than the time between two sweeps, so however often a hub is
    held up, it finds a silent agent within a number of sweeps.
    """
    late = passed - settings.sweep_seconds
    return late if late > settings.late_seconds else 0.0


def answer_seconds(timeout: float) -> float:
    """The time that an agent has to answer when its peers wait. Twice this long a silence is evidence against it.

    With the default timeout that is half a second, and one second of silence.
    """
    return timeout / 10
