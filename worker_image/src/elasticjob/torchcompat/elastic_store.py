"""The store keys that torch's elastic agent uses to query ranks and for its exit barrier."""

from __future__ import annotations

import inspect

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

ROLE_INFO = "torchelastic/role_info/"  # + the rank of an agent: its description of itself
ASSIGNED = "torchelastic/assigned_ranks/"  # + the rank of an agent: the ranks of its workers
TERMINAL = "torchelastic/agent/terminal_state"  # the exit barrier
_API = "torch.distributed.elastic.agent.server.api"


def knows_rank_keys() -> bool:
    """Whether torch's agent queries ranks with the keys above, so that the world can answer them."""
    return RANKS.holds()


def _look_for_ranks() -> bool:
    source = inspect.getsource(probe.find(f"{_API}.SimpleElasticAgent._assign_worker_ranks"))
    return ROLE_INFO in source and ASSIGNED in source


def _look_for_barrier() -> bool:
    found = probe.find(f"{_API}._TERMINAL_STATE_SYNC_ID")
    return isinstance(found, str) and found.startswith(TERMINAL)


RANKS = Probe(
    "ranks come from the operator's world, and workers of a session start before there is one",
    (f"{_API}.SimpleElasticAgent._assign_worker_ranks",),
    "the agents ask each other for ranks, and wait 300 s for one that is dead; sessions are restarted at each change",
    _look_for_ranks,
)
PROBES = (
    RANKS,
    Probe(
        "an agent that is done does not wait for a member that is lost",
        (f"{_API}._TERMINAL_STATE_SYNC_ID",),
        "it waits for up to 300 s",
        _look_for_barrier,
    ),
)
