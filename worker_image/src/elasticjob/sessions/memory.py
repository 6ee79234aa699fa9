"""What a session carries from world to world: model, optimizer, extras and the sampler's place, and how far they are.

On entering a world the ranks compare what they have; where it differs the most advanced whole state is sent to all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from elasticjob.sessions import state, transfer
from elasticjob.sessions.model_state import ModelState


class Memory:
    """The state of one rank. A step is begun, then committed or taken back."""

    def __init__(self, model_state: ModelState, sampler: Any, extras: dict[str, Any]) -> None:
        self.model_state = model_state
        self.sampler = sampler
        self.committed = -1  # the last step that is applied here; -1: none, or a joiner
        self._extras = extras
        self._applied = 0  # how often the optimizer has stepped in this step
        self._usual = 1  # and how often it does in a whole one
        self._clean = True  # no step is applied in part
        self.keep_place()

    def begin(self) -> None:
        self._applied = 0

    def note_applied(self) -> None:
        """The optimizer has stepped."""
        self._applied += 1

    def commit(self) -> None:
        """The step is applied here."""
        self.committed += 1
        self._usual, self._applied = max(self._applied, 1), 0
        self.keep_place()

    def enter_sampler(self, rank: int, world_size: int) -> None:
        """The sampler deals to the ranks of this world from now on."""
        if hasattr(self.sampler, "world_size"):
            self.sampler.rank, self.sampler.world_size = rank, world_size

    def keep_place(self) -> None:
        """What a broken step goes back to."""
        self._position = None if self.sampler is None else self.sampler.state_dict()
        self._random = torch.get_rng_state()

    def take_back(self, generation: int, was_last_batch: bool, was_ready: bool) -> None:
        """The world is gone in the middle of a step: keep the step if it was applied, else go back to its beginning.

        `was_ready`: the gradients were all there, but perhaps not on all ranks. Another rank may have gone on to apply
        the step, so both are kept: what is here before it, and after it.
        """
        if self._applied == self._usual and was_last_batch:
            self.commit()
        elif self._applied:
            self._clean = False  # one of several optimizer steps may be missing
        elif was_ready and self._usual == 1:
            self.model_state.keep(self.committed, generation)
            self.model_state.optimizer.step()
            self.model_state.keep(self.committed + 1, generation)
        self._applied = 0
        if self._position is not None:
            self.sampler.load_state_dict(self._position)
        torch.set_rng_state(self._random)
        self.model_state.optimizer.zero_grad()

    def agree(self, group: Any) -> None:
        """Have what counts in this world, and train with it. Raises StateLostError where nobody has it whole.

        `group` is a process group on the CPU of all ranks; a world of one needs none.
        """
        self.committed, self._clean = self.model_state.restore(self.committed, self._clean, group)
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._compare(group)
        elif not self._clean:
            raise state.StateLostError("the only rank was interrupted in the middle of applying a step")
        self.model_state.settle()

    def _compare(self, group: Any) -> None:
        inventory = transfer.take_inventory(self._state())
        mine = torch.tensor([self.committed, int(self._clean), transfer.digest_inventory(inventory)], dtype=torch.int64)
        everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, mine, group=group)
        rank_states = [state.RankState(int(a), bool(b), int(c)) for a, b, c in (t.tolist() for t in everybody)]
        if state.are_equal(rank_states):
            return
        rank, source = dist.get_rank(), state.choose_source(rank_states)
        # A joiner has nothing to lose: it receives into what it has, and is whole again when all has come.
        keep = self.committed >= 0
        self._clean = self._clean and (keep or rank == source)
        received = transfer.Exchange(rank, source, group, self.model_state.device, keep).run(inventory)
        if received is not None:
            self._take_over(received)
        self.committed, self._clean = rank_states[source].step, True

    def _state(self) -> dict[str, Any]:
        """What must be equal on all ranks, in the parts in which it is compared and sent."""
        extras = {name: extra.state_dict() for name, extra in self._extras.items()}
        return {**self.model_state.state(), "extras": extras, "position": self._position}

    def _take_over(self, value: dict[str, Any]) -> None:
        self.model_state.load(value)
        for name, extra in self._extras.items():
            extra.load_state_dict(value["extras"][name])
        if self.sampler is not None and value["position"] is not None:
            self.sampler.load_state_dict(value["position"])
        self._position = value["position"]
