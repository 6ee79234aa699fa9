"""How a session counts its steps, without an agent and without a process group."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import torch

from elasticjob.channel.place import Place
from elasticjob.data.samplers import ElasticDistributedSampler
from elasticjob.errors import WorldLostError
from elasticjob.sessions.session import Session
from elasticjob.sessions.worlds import Worlds

pytestmark = pytest.mark.timeout(60)

THERE = Place(3, rank=0, world_size=2, address="127.0.0.1", port=9)  # nothing listens there


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_the_step_that_is_promised_counts_those_before_the_end_was_told(steps: int) -> None:
    hear: list[Callable[[dict[str, Any]], None]] = []
    client = MagicMock()
    client.listen.side_effect = hear.append
    worlds = Worlds(MagicMock(committed=-1), MagicMock(), client, lambda: None)
    with patch.dict(os.environ, THERE.as_environ()):
        worlds.enter_first(alone=False)
    for _ in range(steps):
        worlds.end_step()
    with patch("elasticjob.sessions.worlds.Promises") as promises:
        hear[0]({"type": "regroup", "generation": 3, "announced": True})
        assert promises.call_args.args[:2] == (THERE, steps + 1), "the step that it may be in"
        worlds.end_step()
        promises.return_value.wait.assert_called_once_with()


def test_the_device_is_waited_for_before_the_world_is_judged() -> None:
    """An abort frees the device, and a loss is known before that: a look before the wait would find nothing."""
    hear: list[Callable[[dict[str, Any]], None]] = []
    client, groups = MagicMock(), MagicMock()
    client.listen.side_effect = hear.append
    worlds = Worlds(MagicMock(committed=-1), groups, client, lambda: None)
    with patch.dict(os.environ, THERE.as_environ()):
        worlds.enter_first(alone=False)
    worlds.hold()
    groups.wait_for_device.side_effect = lambda _: hear[0]({"type": "regroup", "generation": 3, "announced": False})
    with pytest.raises(WorldLostError):
        worlds.hold()


def test_a_loss_after_a_checkpoint_was_loaded_leaves_the_position_in_the_data_with_the_step() -> None:
    """Both go to a joiner of the next world, in which nothing is loaded any more."""
    model, sampler = torch.nn.Linear(2, 1), ElasticDistributedSampler(96, global_batch_size=8, rank=0, world_size=1)
    session = Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), sampler=sampler)

    def load(_: Session) -> None:
        sampler.advance(56)
        session.committed = 6
        raise WorldLostError("a member was lost")  # in a barrier of the script's, for example

    session._on_world = load
    with pytest.raises(WorldLostError):
        session._enter_world()
    assert session.committed == 6
    assert session._memory._others()["position"] == sampler.state_dict()
