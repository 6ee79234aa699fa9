"""The limit of open files, and how it is divided among the operator's connections.

Containers often start with a soft limit of 1,024 and a much higher hard limit. Each agent needs a socket, so the
operator raises the soft limit to the hard one and divides it. What remains after all other uses is the number of agents
that it can serve, which it logs.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass, replace

from elasticjob_operator.hub import limits

logger = logging.getLogger(__name__)

_OWN_FILES = 64  # the interpreter's, the log, the Lease's and the watches' connections
_FEW_AGENTS = 1000


@dataclass(frozen=True, slots=True)
class Shares:
    """The number of open files for each use."""

    files: int
    agents: int
    pending_sockets: int  # hub sockets that have not sent a complete request yet
    unauthenticated: int  # requests whose token is being checked
    pending: int  # agents that have not sent `hello` yet
    http: int  # sockets of the port for health and metrics

    def limit(self, settings: limits.HubSettings) -> limits.HubSettings:
        """The settings with every limit reduced to its share."""
        return replace(
            settings,
            max_connections=min(settings.max_connections, self.agents),
            max_pending_sockets=min(settings.max_pending_sockets, self.pending_sockets),
            max_unauthenticated=min(settings.max_unauthenticated, self.unauthenticated),
            max_pending=min(settings.max_pending, self.pending),
        )


def divide(files: int, parallel: int) -> Shares:
    """Divide `files` open files, with `parallel` requests to the API server in flight. Pure."""
    pending_sockets = _between(16, files // 10, 1024)
    unauthenticated = pending = _between(8, files // 20, 512)
    http = _between(8, files // 16, 64)
    closing = files // 20  # closed connections whose peer has not confirmed yet
    taken = _OWN_FILES + parallel + pending_sockets + unauthenticated + pending + http + closing
    return Shares(files, max(1, files - taken), pending_sockets, unauthenticated, pending, http)


def _between(least: int, wanted: int, most: int) -> int:
    return max(least, min(wanted, most))


def raise_soft_limit() -> int:
    """Raise the soft limit of open files to the hard limit; return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else max(soft, 1 << 20)
    if soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError) as error:
            logger.warning("could not raise the limit of open files from %d: %s", soft, error)
            return soft
    return max(soft, most)


def take_all(parallel: int, settings: limits.HubSettings) -> tuple[Shares, limits.HubSettings]:
    """Raise the limit of open files, divide it, log the result once, and limit the hub's settings accordingly."""
    shares = divide(raise_soft_limit(), parallel)
    bounded = shares.limit(settings)
    becoming = bounded.max_pending_sockets + bounded.max_unauthenticated + bounded.max_pending
    said = (
        f"the limit of {shares.files} open files allows {bounded.max_connections} agents,"
        f" {becoming} connections that are not yet established,"
        f" and {shares.http} connections for health and metrics"
    )
    if bounded.max_connections < _FEW_AGENTS:
        logger.warning("%s; to serve more agents, raise the container's hard limit of open files (RLIMIT_NOFILE)", said)
    else:
        logger.info("%s", said)
    return shares, bounded
