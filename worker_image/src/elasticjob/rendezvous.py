"""The entry point `torchrun.handlers: elasticjob`, which makes an unmodified `torchrun` a member of an ElasticJob.

torch loads it in the middle of importing its own elastic package, in every torchrun on the machine. So nothing of
torch is imported here: the handler itself is in `handler`, and is loaded when a job asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def create_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What torch registers under the name of the backend."""
    return open_handler


def open_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler of this pod, from its environment."""
    from elasticjob import handler

    return handler.open_handler(params)
