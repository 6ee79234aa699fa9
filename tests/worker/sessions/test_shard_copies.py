"""When a rank begins the next copy of its shards: without processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elasticjob.sessions.sharded.copies import ShardCopies


class Answer:
    """What all ranks have said of their copies: how many are on their way, and how many have failed."""

    def __init__(self, pending: int, failed: int) -> None:
        self.work, self.tensor = SimpleNamespace(wait=lambda: None), torch.tensor([float(pending), float(failed)])


@pytest.mark.parametrize(
    ("pending", "failed", "left"),
    [(0, 0, "last"), (1, 0, "present"), (0, 1, "spare"), (1, 1, "present")],
)
def test_the_memory_of_a_copy_is_not_used_again_while_it_is_on_its_way(pending: int, failed: int, left: str) -> None:
    """One rank has got a damaged one, and others still send and receive theirs: with new messages between them."""
    copies: Any = ShardCopies(1)
    present, answer = object(), Answer(pending, failed)
    copies._present, copies._asked = present, (answer.work, answer.tensor)
    copies._hear()
    assert {name: getattr(copies, f"_{name}") is present for name in ("last", "present", "spare")} == {
        name: name == left for name in ("last", "present", "spare")
    }
