"""What a script gives to its session, and how it reads batches: mistakes are told in words before they cost a thing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from elasticjob import ElasticDistributedSampler, Session
from elasticjob.errors import ConfigurationError

DATA = TensorDataset(torch.ones(12, 4))


class Noam:
    """A schedule around an optimizer, as the Annotated Transformer has one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


class Parts:
    """A model, its optimizer and its data."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.sampler = ElasticDistributedSampler(DATA, global_batch_size=4, rank=0, world_size=1)
        self.loader = DataLoader(DATA, batch_sampler=self.sampler)
        self.given: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "sampler": self.sampler}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("optimizer", Noam, "Session(optimizer=...) got a Noam"),
        ("optimizer", lambda optimizer: [optimizer], "Session(optimizer=...) got a list"),
        ("optimizer", torch.optim.SGD.__class__, "Session(optimizer=...) got a type"),
        ("model", lambda _: {"one": torch.nn.Linear(1, 1)}, "Session(model=...) got a dict"),
        ("sampler", lambda _: DataLoader(DATA), "Session(sampler=...) got a DataLoader"),
        ("sampler", lambda _: RandomSampler(DATA), "Session(sampler=...) got a RandomSampler"),
        ("sampler", lambda _: DistributedSampler(DATA, 1, 0), "Session(sampler=...) got a DistributedSampler"),
        ("schedule", Noam, "Session(schedule=...) got a Noam"),
        ("epochs", lambda _: 3, "Session(epochs=...) got an int"),
    ],
)
def test_what_a_session_cannot_keep_is_refused_with_the_remedy(name: str, value: Any, told: str) -> None:
    parts = Parts()
    with pytest.raises(ConfigurationError) as error:
        Session(**{**parts.given, name: value(parts.optimizer)})
    assert told in str(error.value)


def read_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """As prefetchers do."""
    following = next(batches, None)
    while following is not None:
        present, following = following, next(batches, None)
        yield present


@pytest.mark.parametrize(("reads_ahead", "leaves_out", "told"), [(True, 9, True), (False, 1, True), (False, 9, False)])
def test_a_batch_of_which_no_step_is_made_before_the_next_one_is_read_is_told(
    reads_ahead: bool, leaves_out: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts()
    session = Session(**parts.given)
    batches = session.batches(parts.loader)
    for number, (x,) in enumerate(read_ahead(batches) if reads_ahead else batches):
        if number == leaves_out:
            continue
        with session.step():
            session.backward(session.model(x).sum())
            parts.optimizer.step()
            parts.optimizer.zero_grad()
    session.close()
    found = [one.message for one in caplog.records if "no step was made of it" in one.message]
    assert len(found) == told
    assert all("session.batches(Prefetcher(loader))" in one for one in found)


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_second_block_of_a_batch_is_told(blocks: int, caplog: pytest.LogCaptureFixture) -> None:
    """As the two turns of a GAN are written. Passes of one step that are accumulated have a batch each."""
    parts = Parts()
    parts.sampler.micro_batch_size = 2
    session = Session(**parts.given)
    for (x,) in session.batches(parts.loader):
        for _ in range(blocks):
            with session.step():
                session.backward(session.model(x).sum())
                if session.ends_step:
                    parts.optimizer.step()
                    parts.optimizer.zero_grad()
    session.close()
    assert any("a batch has a second block" in one.message for one in caplog.records) == (blocks > 1)
