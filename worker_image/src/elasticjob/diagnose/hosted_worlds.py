"""Worlds of processes on this machine: their store, and the variables by which a rank finds it."""

from __future__ import annotations

from typing import Any


class HostedWorld:
    """A world of `size` ranks whose store this process holds, as an agent does in a pod.

    So its port is in use from the moment that it is chosen, and no other process can take it before rank 0 has started.
    """

    def __init__(self, size: int) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # a second: only for those who need a world

        self.size = size
        self._store: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def place(self, rank: int) -> dict[str, str]:
        """The environment variables of a rank, as torchrun sets them."""
        found = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self._store.port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        return {name: str(value) for name, value in found.items()}
