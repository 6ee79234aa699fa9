"""Elastic scripts of Horovod: a state that outlives its worlds."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections import OrderedDict, defaultdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elasticjob.compat.horovod import elastic
from elasticjob.errors import ConfigurationError
from worker.gang_helper import PROGRAMS, Member, run_gang


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    return run_gang(PROGRAMS / "horovod_elastic_program.py", 3, str(tmp_path_factory.mktemp("commits")))


def say(gang: list[Member], check: str, ranks: int = 3) -> Any:
    """What all ranks of the world have said."""
    said = [member.results[check] for member in gang[:ranks]]
    assert said == [said[0]] * ranks
    return said[0]


def test_the_first_world_begins_at_the_beginning_and_resets_nothing(gang: list[Member]) -> None:
    assert say(gang, "0 begins")[:2] == [0, 0]
    assert say(gang, "0 resets") == []


def test_after_a_kill_a_world_of_another_size_goes_on_from_a_commit(gang: list[Member]) -> None:
    assert say(gang, "1 begins", 2)[:2] in ([0, 6], [0, 12])
    assert say(gang, "1 resets", 2) == [2]


def test_an_announced_change_costs_nothing(gang: list[Member]) -> None:
    assert say(gang, "1 answered", 2) is True
    assert say(gang, "2 begins") == say(gang, "1 committed", 2)
    assert say(gang, "2 resets") == [3]


def test_every_sample_of_every_epoch_is_used_once(gang: list[Member]) -> None:
    seen = say(gang, "seen")
    epochs = {epoch: sorted(number for _, number in part) for epoch, part in groupby(seen, key=lambda one: one[0])}
    assert epochs == {epoch: list(range(24)) for epoch in range(3)}
    assert say(gang, "2 returns") == "done"


def test_a_damaged_file_is_skipped(gang: list[Member]) -> None:
    assert say(gang, "3 begins", 2) == say(gang, "2 committed")
    assert "skipped" in gang[0].stderr


def test_the_rest_of_an_epoch_is_divided_and_filled_up() -> None:
    sampler = elastic.ElasticSampler(range(5), shuffle=False)
    assert list(sampler) == [0, 1, 2, 3, 4]
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 2)
    sampler.reset()
    assert list(sampler) == [4]
    other = elastic.ElasticSampler(range(5), shuffle=False)
    other.load_state_dict(sampler.state_dict())
    assert list(other) == [4]
    other.record_batch(0, 2)
    other.reset()
    assert (list(other), len(other)) == ([], 0)
    other.set_epoch(1)
    assert (len(other), other.epoch) == (5, 1)


def test_each_epoch_has_an_order_of_its_own() -> None:
    sampler = elastic.ElasticSampler(range(50), seed=3)
    first = list(sampler)
    sampler.set_epoch(1)
    assert sorted(first) == sorted(sampler) == list(range(50))
    assert first != list(sampler)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"_x": 1}, "_x: a state has this name for itself"),
        ({"commit": 1}, "commit: a state has this name for itself"),
        ({"place": Path("a")}, "place of the state has a PosixPath"),
        ({"deep": {"a": [1, (2, object())]}}, "deep of the state has a object"),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused(values: dict[str, Any], message: str, alone: None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        elastic.ObjectState(**values)
    assert message in str(caught.value)


def test_a_value_that_cannot_be_kept_is_refused_later_too(alone: None) -> None:
    state: Any = elastic.ObjectState(place="a")
    state.place = Path("a")
    with pytest.raises(ConfigurationError, match="place of the state has a PosixPath"):
        state.commit()


def test_restore_goes_back_to_what_was_kept(alone: None) -> None:
    model = torch.nn.Linear(1, 1)
    state: Any = elastic.TorchState(model=model, epoch=0, seen=[1])
    state.save()
    before = model.weight.item()
    with torch.no_grad():
        model.weight.add_(1)
    state.epoch, state.seen = 3, [1, 2]
    state.restore()
    assert (model.weight.item(), state.epoch, state.seen) == (before, 0, [1])


def test_commits_that_training_has_left_behind_are_not_loaded(alone: None, tmp_path: Path) -> None:
    for number in (7, 8, 9):
        torch.save({"epoch": number}, tmp_path / f"horovod-{number:012d}.pt")
    (tmp_path / "horovod-000000000009.pt").write_bytes(b"damaged")

    @elastic.run
    def loop(state: Any) -> int:
        begun = int(state.epoch)
        state.epoch = begun + 100
        state.commit()
        return begun

    assert loop(elastic.ObjectState(epoch=0)) == 8
    assert loop(elastic.ObjectState(epoch=0)) == 108
    left = sorted(int(path.name[8:20]) for path in tmp_path.glob("horovod-*.pt"))
    assert left == [9, 10]


class Counting:
    """A part of a state that has a state of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": [self.value]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (self.value,) = state["value"]


@pytest.mark.parametrize(
    "value",
    [np.ones(2), defaultdict(int, {1: 2}), Path("a"), frozenset((1,)), range(3), torch.Generator()],
    ids=lambda one: type(one).__name__,
)
def test_a_commit_that_could_not_be_read_is_refused(value: Any, alone: None, tmp_path: Path) -> None:
    state: Any = elastic.ObjectState(part=Counting(1))
    state.part.value = value
    with pytest.raises(ConfigurationError, match=f"part of the state has a {type(value).__name__}"):
        state.commit()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5),
        np.float32(0.5),
        np.int64(3),
        np.bool_(True),
        OrderedDict(a=1),
        torch.Size([1]),
        torch.float16,
        1j,
    ],
    ids=repr,
)
def test_what_can_be_read_without_running_code_is_kept(value: Any, alone: None) -> None:
    @elastic.run
    def loop(state: Any) -> Any:
        begun = state.part.value, state.own
        state.part.value = state.own = value
        state.commit()
        return begun

    for expected in (None, value):
        assert loop(elastic.ObjectState(part=Counting(None), own=None)) == (expected, expected)


def test_a_change_that_is_announced_before_the_first_commit_costs_nothing(alone: None) -> None:
    @elastic.run
    def loop(state: Any) -> int:
        begun = int(state.epoch)
        if not begun:
            state.epoch = 3
            os.kill(os.getpid(), signal.SIGUSR1)
            while not state.check_host_updates():
                pass
        return begun

    assert [loop(elastic.ObjectState(epoch=0)) for _ in range(2)] == [0, 3]


def test_what_was_kept_stays_as_it_was_when_training_goes_on(alone: None) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    state: Any = elastic.TorchState(model=model, optimizer=optimizer, part=Counting(1))

    def train() -> None:
        torch.autograd.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()

    def look() -> list[float]:
        return [float(one) for values in optimizer.state.values() for one in values.values()]

    train()
    state.save()
    kept = look()
    for _ in range(2):
        state.restore()
        train()
    state.restore()
    assert look() == kept


def test_a_disk_that_is_full_is_said_and_tried_again(
    alone: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: Any = elastic.ObjectState(weights=torch.zeros(300_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(threading, "excepthook", lambda told: pytest.fail(str(told)))
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        state.commit()
        state._wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "commit 1 is not saved" in caplog.text
    assert "File too large" in caplog.text
    assert not list(tmp_path.iterdir())
    state.commit()
    state._wait()
    assert [path.name for path in tmp_path.iterdir()] == ["horovod-000000000002.pt"]


def test_a_commit_of_a_million_processed_samples_takes_no_list_of_them(alone: None, tmp_path: Path) -> None:
    sampler = elastic.ElasticSampler(range(1_000_000), shuffle=False)
    sampler.record_batch(0, 900_000)
    state: Any = elastic.ObjectState(sampler=sampler)
    state.commit()
    state._wait()
    (path,) = tmp_path.iterdir()
    saved = torch.load(path, weights_only=True)["sampler"]
    assert isinstance(saved["processed_indices"], torch.Tensor)
    again = elastic.ElasticSampler(range(1_000_000), shuffle=False)
    again.load_state_dict(saved)
    assert (len(again), again.indices[0], len(again.processed_indices)) == (100_000, 900_000, 900_000)
    assert (again.num_replicas, again.rank, again.num_samples, again.total_size) == (1, 0, 100_000, 100_000)


def test_a_commit_that_is_a_file_already_is_not_written_again_at_the_end(alone: None, tmp_path: Path) -> None:
    def look() -> list[tuple[str, int]]:
        return [(path.name, path.stat().st_ino) for path in tmp_path.iterdir()]

    @elastic.run
    def loop(state: Any) -> list[tuple[str, int]]:
        if not state.epoch:
            state.epoch = 1
            state.commit()
            state._wait()
        return look()

    written = loop(elastic.ObjectState(epoch=0))
    assert look() == written, "the world that wrote it"
    assert loop(elastic.ObjectState(epoch=0)) == written
    assert look() == written, "a later world, in which nothing was left to do"


def test_what_was_committed_while_a_file_was_written_is_a_file_at_the_end(alone: None, tmp_path: Path) -> None:
    @elastic.run
    def loop(state: Any) -> None:
        for state.epoch in range(1, 4):
            state.commit()

    loop(elastic.ObjectState(epoch=0))
    newest = max(tmp_path.iterdir())
    assert (newest.name, torch.load(newest)["epoch"]) == ("horovod-000000000003.pt", 3)
