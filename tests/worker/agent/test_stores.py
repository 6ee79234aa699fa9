"""The agent's way into a world, with the checkpoint that it begins with: real stores and connections, no workers."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from elasticjob import env
from elasticjob.agent import events
from elasticjob.agent.events import HubView
from elasticjob.agent.state import State
from elasticjob.agent.stores import Stores
from elasticjob.peers.directory import Workers
from elasticjob.protocol import wire
from worker.peers.gang import wait_for

pytestmark = pytest.mark.timeout(240)
PATIENCE = 60.0


class FakeAgent:
    """An agent's stores, without its machine and its workers."""

    def __init__(self, folder: Path, *, checkpoints: bool = True, key: str = "secret") -> None:
        self.path = folder / "files"
        asked = env.Checkpoints(self.path, folder / "copies", node=folder.name) if checkpoints else None
        settings = env.Settings("ws://hub", folder / "token", "127.0.0.1", checkpoints=asked)
        welcome = wire.Welcome(1.0, 5.0, peer_key=key)
        self.state = State(wire.AgentState(phase=wire.READY), 30.0, hub=HubView(welcome=welcome))
        self.workers = Workers.RUN
        self.posted: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self.kept = wire.Checkpoint()
        self.stores = Stores(settings, lambda: self.state, self.posted.put, _no_finish, lambda: (self.workers, []))

    def take(self, kind: type[events.Event]) -> events.Event:
        """The next event of this kind."""
        while True:
            event = self.posted.get(timeout=PATIENCE)
            if isinstance(event, events.Kept):
                self.kept = event.checkpoint
            if isinstance(event, kind):
                return event

    def listen(self) -> wire.Store:
        self.stores.open()
        event = self.take(events.Listening)
        assert isinstance(event, events.Listening)
        return event.store


def _no_finish(look: Callable[[], bool], seconds: float) -> None:
    """No worker ends here."""


def enter(generation: int, *agents: FakeAgent) -> None:
    where = agents[0].listen()
    for rank, agent in enumerate(agents):
        agent.stores.enter(wire.World(generation, rank, (1,) * len(agents), where))
    for agent in agents:
        agent.take(events.Entered)


def test_a_world_begins_with_the_files_of_a_lost_pod(tmp_path: Path) -> None:
    agents = [FakeAgent(tmp_path / f"pod-{i}") for i in range(3)]
    first, second, third = agents
    try:
        enter(1, first, second)
        (first.path / "a.pt").write_bytes(b"saved")

        def is_copied() -> bool:
            first.take(events.Kept)
            return first.kept == wire.Checkpoint(1, 1)

        wait_for(is_copied, "the file is copied")
        first.stores.end()
        second.stores.close_all()
        enter(2, second, third)
        assert (third.path / "a.pt").read_bytes() == b"saved"
        assert second.kept == wire.Checkpoint(1, 1)
    finally:
        for agent in agents:
            agent.stores.end()


def test_a_world_that_is_over_is_missed(tmp_path: Path) -> None:
    first = FakeAgent(tmp_path / "pod-0")
    try:
        where = first.listen()
        first.stores.enter(wire.World(1, 0, (1, 1), where))  # the other one never comes
        first.take(events.Kept)
        over = wire.Regroup(1, "a member was lost")
        first.state = replace(first.state, hub=replace(first.state.hub, directive=over))
        first.take(events.Missed)
    finally:
        first.stores.end()


def test_without_checkpoints_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path / "pod-0", checkpoints=False)
    where = agent.listen()
    agent.stores.enter(wire.World(1, 0, (1,), where))
    entered = agent.posted.get_nowait()
    assert isinstance(entered, events.Entered), "at once, in the same thread"
    assert not agent.path.exists()
    agent.stores.end()


def test_a_directory_that_cannot_be_used_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file")
    with pytest.raises(env.SettingsError, match=r"spec\.checkpoints cannot be used"):
        FakeAgent(tmp_path)
