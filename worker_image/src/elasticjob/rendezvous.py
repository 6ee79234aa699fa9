"""The entry point `torchrun.handlers: elasticjob`, which makes an unmodified `torchrun` a member of an ElasticJob.

torch loads it in the middle of importing its own elastic package, in every torchrun on the machine. So nothing of
torch is imported here: the handler itself is in `handler`, and is loaded when a job asks for it.
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
    """What torch registers under the name of the backend."""
    return open_handler


def open_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler of this pod, from its environment.

    Before anything else here the process is forked from which the workers come, if it is `torchrun` that calls: a
    worker returns from the fork as the user's script, and leaves torchrun by its exit code.
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
    """Tell torch of the backend by hand: before 2.6 it does not look for entry points. To do so twice is harmless."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(env.BACKEND, open_handler)
