"""The agent's way into a world, with the checkpoint that it begins with: real stores and connections, no workers."""

from __future__ import annotations

import queue
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from elasticjob import env
from elasticjob.agent import events
from elasticjob.agent.events import HubView
from elasticjob.agent.state import State
from elasticjob.agent.stores import Stores
from elasticjob.peers import unfinished
from elasticjob.peers.directory import Workers
from elasticjob.protocol import wire
from worker.peers.gang import limit_names, make_deep, wait_for

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


def await_kept(agent: FakeAgent, wanted: wire.Checkpoint) -> None:
    def is_kept() -> bool:
        agent.take(events.Kept)
        return agent.kept == wanted

    wait_for(is_kept, f"{wanted} is told")


def test_a_world_begins_with_the_files_of_a_lost_pod(tmp_path: Path) -> None:
    agents = [FakeAgent(tmp_path / f"pod-{i}") for i in range(3)]
    first, second, third = agents
    try:
        enter(1, first, second)
        (first.path / "a.pt").write_bytes(b"saved")

        await_kept(first, wire.Checkpoint(1, 1))
        first.stores.end()
        second.stores.close_all()
        enter(2, second, third)
        assert (third.path / "a.pt").read_bytes() == b"saved"
        assert second.kept == wire.Checkpoint(1, 1)
    finally:
        for agent in agents:
            agent.stores.end()


LONG = "a-name-of-" + 190 * "x" + ".pt"


def test_a_name_that_a_pod_cannot_have_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator names it in a condition of the job: who looks at the log of one agent of many?"""
    first, second = agents = [FakeAgent(tmp_path / f"pod-{i}") for i in range(2)]
    limit_names(monkeypatch, second.path, 143)
    try:
        enter(1, first)
        for number, name in enumerate(("a.pt", LONG), 1):
            (first.path / name).write_bytes(b"saved")
            await_kept(first, wire.Checkpoint(number))
        enter(2, first, second)
        assert (second.path / "a.pt").exists() and not (second.path / LONG).exists()
        assert not first.kept.unfit
        assert LONG[:80] in second.kept.unfit and "too long" in second.kept.unfit
        monkeypatch.undo()  # its path is on another file system now
        enter(3, first, second)
        assert not second.kept.unfit, "it can have all that is to be had"
    finally:
        for agent in agents:
            agent.stores.end()


def test_a_path_that_no_pod_can_have_is_told_as_long_as_it_is_there(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path / "pod")
    try:
        enter(1, agent)
        make_deep(agent.path / "step-1")

        def tells(is_unfit: bool) -> Callable[[], bool]:
            def told() -> bool:
                agent.take(events.Kept)
                return bool(agent.kept.unfit) is is_unfit

            return told

        wait_for(tells(True), "the path is told")
        assert agent.kept.unfit.startswith("'step-1/ddd")
        shutil.rmtree(agent.path / "step-1", ignore_errors=True)
        wait_for(tells(False), "it is gone")
    finally:
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


def test_a_checkpoint_that_another_file_holds_up_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "HELD_SECONDS", 1.0)
    agent = FakeAgent(tmp_path / "pod")
    folder, lines = agent.path / "run", iter(range(1_000_000))

    def tells(is_held: bool) -> bool:
        if is_held:
            (folder / "log.csv").write_text(f"{next(lines):9}")
        while not agent.posted.empty():
            event = agent.posted.get()
            if isinstance(event, events.Kept):
                agent.kept = event.checkpoint
        return bool(agent.kept.unfinished) is is_held

    try:
        enter(1, agent)
        folder.mkdir()
        (folder / "step-1.bin").write_bytes(b"saved")
        wait_for(lambda: tells(True), "it is told")
        assert agent.kept.unfinished.startswith("'run/step-1.bin'") and "log.csv" in agent.kept.unfinished
        wait_for(lambda: tells(False), "the folder is finished")
    finally:
        agent.stores.end()
