"""What a script cannot know about its session: it is told once, by one rank, with the remedy."""

from __future__ import annotations

import contextlib
import copy
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import elasticjob
from elasticjob.data.samplers import ElasticDistributedSampler
from elasticjob.errors import ConfigurationError
from elasticjob.sessions.advice import (
    Adviser,
    check_sampler,
    find_script,
    judge_loader,
    judge_scheduled,
    judge_schedules,
)
from worker.gang_helper import PROGRAMS, run_gang

DATA = TensorDataset(torch.ones(8, 1))
OWN = ElasticDistributedSampler(8, global_batch_size=4, rank=0, world_size=1)
SENTENCES = (
    "this loader has no sampler that knows the ranks",
    "Adam, which the session does not know, has stepped",
    "'scheduler' was stepped outside of",
    "the loader repeats a sample",
    "an optimizer has got another parameter group",
    "has ended without optimizer.step()",
    "come from no call of session.model",
    "SGD trains parameters that are not of the session's model",
)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_each_is_told_once_and_only_where_it_is() -> None:
    said = "".join(member.stderr for member in run_gang(PROGRAMS / "advice_program.py", 2, "wrong"))
    assert [said.count(one) for one in SENTENCES] == [1, 1, 1, 3, 1, 1, 1, 1], said  # three samplers for evaluation
    said = "".join(member.stderr for member in run_gang(PROGRAMS / "advice_program.py", 2, "right"))
    assert [said.count(one) for one in SENTENCES] == [0] * len(SENTENCES), said


@pytest.mark.parametrize(
    ("loader", "sampler", "told"),
    [
        pytest.param(DataLoader(DATA, batch_sampler=OWN), OWN, "", id="right"),
        pytest.param(DataLoader(DATA), None, "has no sampler that knows the ranks", id="no sampler"),
        pytest.param(DataLoader(DATA), OWN, "does not use the session's sampler", id="another sampler"),
        pytest.param(DataLoader(Stream()), None, "the whole IterableDataset", id="a stream"),
        pytest.param(DataLoader(Stream()), OWN, "the whole IterableDataset", id="a stream, and a sampler of indices"),
        pytest.param(DataLoader(Stream()), object(), "", id="a stream whose position the session has"),
        pytest.param(
            DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
            None,
            "of the world in which it was made",
            id="torch's sampler",
        ),
        pytest.param([1, 2], None, "", id="something else"),
    ],
)
def test_loaders(loader: object, sampler: object, told: str) -> None:
    assert told in judge_loader(loader, sampler)
    assert bool(told) == bool(judge_loader(loader, sampler))


@pytest.mark.parametrize(
    ("loader", "sampler", "is_refused"),
    [
        pytest.param(DataLoader(DATA, batch_sampler=OWN), OWN, False, id="right"),
        pytest.param(DataLoader(DATA, batch_sampler=OWN), copy.copy(OWN), True, id="another one"),
        pytest.param(DataLoader(DATA, batch_sampler=OWN), None, True, id="not passed to the session"),
        pytest.param(DataLoader(DATA, batch_sampler=OWN), object(), False, id="led by an object of the script's"),
        pytest.param(DataLoader(DATA), OWN, False, id="no sampler of ours"),
    ],
)
def test_samplers_of_loaders(loader: object, sampler: object, is_refused: bool) -> None:
    with pytest.raises(ConfigurationError, match="sampler=sampler") if is_refused else contextlib.nullcontext():
        check_sampler(loader, sampler)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        pytest.param({}, {"scheduler": 0}, False, id="no block before"),
        pytest.param({"scheduler": 3}, {"scheduler": 3}, False, id="not between blocks"),
        pytest.param({"scheduler": 3}, {"scheduler": 4}, True, id="between blocks"),
    ],
)
def test_schedules(before: Mapping[str, int], now: Mapping[str, int], told: bool) -> None:
    assert bool(judge_schedules(before, now)) is told


@pytest.mark.parametrize(
    ("before", "added", "told"),
    [
        pytest.param([["a"]], ["b"], False, id="known"),
        pytest.param([["a"]], ["b", ""], True, id="not known"),
        pytest.param([[""]], ["b"], False, id="known, beside one that was there"),
    ],
)
def test_groups_that_are_added(
    before: list[list[str]], added: list[str], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
    groups = {"": before}
    adviser = Adviser({}, [optimizer], lambda _: True, lambda _: True, lambda: True, lambda: groups)
    adviser.begin(1)
    optimizer.add_param_group({"params": [torch.ones(1)]})
    groups[""] = [*before, added]
    with caplog.at_level("WARNING", "elasticjob"):
        adviser.begin(1)
    adviser.close()
    assert ("another parameter group" in caplog.text) is told


_OWN = str(Path(elasticjob.__file__).parent)
_TORCH = str(Path(torch.__file__).parent / "distributed" / "distributed_c10d.py")
_LOOK = ((f"{_OWN}/sessions/session.py", 9), (f"{_OWN}/torchcompat/waits.py", 9), (_TORCH, 9))
_START: tuple[tuple[str, int], ...] = (
    ("<frozen runpy>", 88),
    (f"{_OWN}/launch/main_module.py", 9),
    (f"{_OWN}/launch/standby.py", 9),
)
_START += ((f"{_OWN}/launcher.py", 9), ("/bin/elasticjob-run", 9))  # the agent from which it was forked


@pytest.mark.parametrize(
    ("files", "place"),
    [
        pytest.param((*_LOOK, ("/a/train.py", 7), *_START), "/a/train.py, line 7,", id="a script"),
        pytest.param((*_LOOK, ("/a/train.py", 7)), "/a/train.py, line 7,", id="a script that nobody has started"),
        pytest.param((*_LOOK, ("/a/b.py", 3), ("/a/train.py", 7), *_START), "/a/b.py, line 3,", id="its function"),
        pytest.param(
            (*_LOOK, (f"{Path(contextlib.__file__)}", 81), ("/a/train.py", 7), *_START),
            "/a/train.py, line 7,",
            id="through a function of Python's",
        ),
        pytest.param(
            (*_LOOK, (f"{sysconfig.get_path('purelib')}/metrics/sync.py", 81), ("/a/train.py", 7), *_START),
            "/a/train.py, line 7,",
            id="through a package that is installed",
        ),
        pytest.param(
            (*_LOOK, (f"{_OWN}/sessions/session.py", 3), ("/a/train.py", 7), *_START), "", id="the session itself"
        ),
        pytest.param(
            (*_LOOK, ("/a/train.py", 7), (f"{_OWN}/sessions/session.py", 3), ("/a/train.py", 9), *_START),
            "",
            id="a function that the session calls",
        ),
        pytest.param((*_LOOK, (f"{_OWN}/checkpoint/checkpointer.py", 3), ("/a/train.py", 7)), "", id="a Checkpointer"),
        pytest.param(
            (
                *_LOOK[:2],
                (f"{_OWN}/sessions/sharded/copies.py", 3),
                (f"{_OWN}/sessions/session.py", 3),
                (f"{Path(contextlib.__file__)}", 81),
                ("/a/train.py", 7),
                *_START,
            ),
            "",
            id="the end of a block, which asks whether copies have arrived",
        ),
    ],
)
def test_who_waits_for_other_ranks(files: Iterable[tuple[str, int]], place: str) -> None:
    assert find_script(files) == place


@pytest.mark.parametrize(
    ("schedules", "extras", "told"),
    [
        (True, [], True),
        (True, [torch.nn.Linear(1, 1), torch.amp.GradScaler("cpu")], True),
        (False, [], False),
        (True, [object()], False),  # perhaps it has the scheduler
    ],
)
def test_a_scheduler_that_the_session_does_not_have(schedules: bool, extras: list[object], told: bool) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    if schedules:
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert ("Session(..., scheduler=scheduler)" in judge_scheduled(optimizer, extras)) is told
