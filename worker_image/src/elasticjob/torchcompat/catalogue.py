"""All private names of torch in use. Probing them imports torch's distributed packages."""

from __future__ import annotations

from elasticjob.torchcompat import (
    ddp,
    elastic_agent,
    elastic_store,
    failures,
    forking,
    groups,
    nccl,
    optimizers,
    queues,
    sharding,
    versions,
    waits,
    workers,
    wrappers,
)
from elasticjob.torchcompat.probe import Probe

PROBES: tuple[Probe, ...] = (
    *groups.PROBES,
    *nccl.PROBES,
    *queues.PROBES,
    *failures.PROBES,
    *ddp.PROBES,
    *sharding.PROBES,
    *elastic_agent.PROBES,
    *elastic_store.PROBES,
    *workers.PROBES,
    *forking.PROBES,
    *versions.PROBES,
    *optimizers.PROBES,
    *wrappers.PROBES,
    *waits.PROBES,
)


def find_missing() -> list[Probe]:
    """The names that this torch does not have, or has in another form."""
    return [one for one in PROBES if not one.holds()]
