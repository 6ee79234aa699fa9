"""`torchrun` with LMResiliency's rendezvous.

torch calls the entry point of a rendezvous without an argument, and wants its creator back. That of LMResiliency
0.2.0 is the creator itself, so torch 2.13 logs an exception and goes on without it.
"""

from __future__ import annotations

from lm_resiliency.integrations.torchrun import create_rendezvous_handler  # type: ignore[import-not-found]
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.run import main

if __name__ == "__main__":
    rendezvous_handler_registry.register("lm_resiliency", create_rendezvous_handler)
    main()
