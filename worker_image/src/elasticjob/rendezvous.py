"""The entry point `torchrun.handlers: elasticjob`, which makes an unmodified `torchrun` a member of an ElasticJob.

torch loads it in the middle of importing its own elastic package, in every torchrun on the machine. So nothing of
torch is imported here: the handler itself is in `handler`, and is loaded when a job asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticjob import env

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def create_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What torch registers under the name of the backend."""
    return open_handler


def open_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler of this pod, from its environment."""
    from elasticjob import handler

    return handler.open_handler(params)


def register() -> None:
    """Tell torch of the backend by hand: before 2.6 it does not look for entry points. To do so twice is harmless."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(env.BACKEND, open_handler)
