"""One worker's place in a world: everything needed to create the process group.

It arrives as a message from the agent, or in the variables that torch sets for a worker, and is a single value from
then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from elasticjob.env import GENERATION, REPEATS, RESTORE_BEFORE


@dataclass(frozen=True)
class Place:
    generation: int
    rank: int
    world_size: int
    address: str  # address of the world's store
    port: int
    group_rank: int = 0  # the pod's rank among all pods
    group_world_size: int = 1
    restarts: int = 0
    repeats: int = 0  # of these, in a row with the same error
    before: int | None = None  # only checkpoints of earlier steps are to be restored

    def as_message(self) -> dict[str, Any]:
        return {"type": "world", **asdict(self)}

    def as_environ(self) -> dict[str, str]:
        """The environment variables that describe this place to a script."""
        return {
            "RANK": str(self.rank),
            "ROLE_RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "GROUP_RANK": str(self.group_rank),
            "GROUP_WORLD_SIZE": str(self.group_world_size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
            GENERATION: str(self.generation),
            REPEATS: str(self.repeats),
            RESTORE_BEFORE: "" if self.before is None else str(self.before),
        }


def from_message(message: Mapping[str, Any]) -> Place:
    """Parse a message from the agent. Raises TypeError if a field without a default is missing."""
    return Place(**{name: message[name] for name in Place.__dataclass_fields__ if name in message})


def from_environ(environ: Mapping[str, str]) -> Place | None:
    """The world in which the agent started this process; None if it was started before there was a world."""
    generation = int(environ.get(GENERATION, "0") or 0)
    if generation == 0:
        return None
    return Place(
        generation=generation,
        rank=int(environ["RANK"]),
        world_size=int(environ["WORLD_SIZE"]),
        address=environ["MASTER_ADDR"],
        port=int(environ["MASTER_PORT"]),
        group_rank=int(environ.get("GROUP_RANK", "0")),
        group_world_size=int(environ.get("GROUP_WORLD_SIZE", "1")),
        restarts=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        repeats=int(environ.get(REPEATS, "0")),
        before=int(environ[RESTORE_BEFORE]) if environ.get(RESTORE_BEFORE) else None,
    )
