"""The entry point `torchrun.handlers: elasticjob`, which makes an unmodified `torchrun` a member of an ElasticJob.

torch loads it while it imports its own elastic package, in every torchrun on the machine. So this module does not
import torch: the handler itself is in `handler`, and is loaded when a job requests it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticjob import env

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def create_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The function that torch registers under the name of the backend."""
    return open_handler


def open_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler of this pod, configured from its environment.

    If the caller is `torchrun`, this first forks the standby from which workers are forked: a worker returns from that
    call as the user's script, and leaves torchrun with its exit code.
    """
    from elasticjob.launch import fork_server
    from elasticjob.torchcompat import elastic_agent

    server = fork_server.ForkServer()
    if elastic_agent.is_forkable_torchrun() and fork_server.is_wanted(sys.argv[1:], os.environ):
        server.fork(sys.argv[1:])
    from elasticjob.agent import handler

    made = handler.open_handler(params)
    if server.is_forked:
        made.adopt(server)
    return made


def register() -> None:
    """Register the backend with torch: before 2.6 it does not load entry points. Repeated calls are harmless."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(env.BACKEND, open_handler)
