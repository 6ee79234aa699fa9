"""How many files this process may have open, and what that is enough for.

A container starts with a soft limit of 1,024 more often than not, and a hard limit far above it. Each agent is a
socket, so the operator takes what it may have and divides it: what is left for agents after everything else is how many
it can carry, and it says so.
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
    """How the open files are divided."""

    files: int
    agents: int
    pending_sockets: int  # sockets of the hub that have not yet sent a whole request
    unauthenticated: int  # requests whose token is being checked
    pending: int  # agents that have not yet said hello
    http: int  # sockets of the port for health and metrics

    def limit(self, settings: limits.HubSettings) -> limits.HubSettings:
        """The settings with no bound above its share."""
        return replace(
            settings,
            max_connections=min(settings.max_connections, self.agents),
            max_pending_sockets=min(settings.max_pending_sockets, self.pending_sockets),
            max_unauthenticated=min(settings.max_unauthenticated, self.unauthenticated),
            max_pending=min(settings.max_pending, self.pending),
        )


def divide(files: int, parallel: int) -> Shares:
    """The shares of so many files where `parallel` requests to the API server may be under way. Pure."""
    pending_sockets = _between(16, files // 10, 1024)
    unauthenticated = pending = _between(8, files // 20, 512)
    http = _between(8, files // 16, 64)
    closing = files // 20  # connections that are over and whose peer has not answered yet
    taken = _OWN_FILES + parallel + pending_sockets + unauthenticated + pending + http + closing
    return Shares(files, max(1, files - taken), pending_sockets, unauthenticated, pending, http)


def _between(least: int, wanted: int, most: int) -> int:
    return max(least, min(wanted, most))


def raise_soft_limit() -> int:
    """Raises the soft limit of open files to the hard one; returns what holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else max(soft, 1 << 20)
    if soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d: %s", soft, error)
            return soft
    return max(soft, most)


def take_all(parallel: int, settings: limits.HubSettings) -> tuple[Shares, limits.HubSettings]:
    """Raises the limit, divides what there is, says once what it is enough for, and bounds the hub's settings by it."""
    shares = divide(raise_soft_limit(), parallel)
    bounded = shares.limit(settings)
    becoming = bounded.max_pending_sockets + bounded.max_unauthenticated + bounded.max_pending
    said = (
        f"{shares.files} files may be open: room for {bounded.max_connections} agents,"
        f" {becoming} that are about to become some,"
        f" and {shares.http} connections for health and metrics"
    )
    if bounded.max_connections < _FEW_AGENTS:
        logger.warning("%s; to carry more, raise the hard limit of open files (RLIMIT_NOFILE) of the container", said)
    else:
        logger.info("%s", said)
    return shares, bounded
