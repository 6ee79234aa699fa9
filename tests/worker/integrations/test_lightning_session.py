"""Lightning's loop on a session, with stand-ins for both. tests/frameworks runs it with Lightning itself."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elasticjob.data.samplers import ElasticDistributedSampler
from elasticjob.errors import ConfigurationError

FILES = {
    "lightning-2.6.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: lightning\nVersion: 2.6.0\n",
    "lightning/__init__.py": "",
    "lightning/fabric/__init__.py": "",
    "lightning/fabric/plugins/__init__.py": "",
    "lightning/fabric/plugins/environments/__init__.py": "class LightningEnvironment:\n    pass\n",
    "lightning/pytorch/__init__.py": "",
    "lightning/pytorch/loops/__init__.py": "",
    "lightning/pytorch/loops/optimization/__init__.py": "",
    "lightning/pytorch/loops/optimization/automatic.py": (
        "class ClosureResult:\n    def __init__(self, loss):\n        self.closure_loss = loss\n"
    ),
    "lightning/pytorch/strategies/__init__.py": (
        "class SingleDeviceStrategy:\n"
        "    def __init__(self, device):\n        self.global_rank = 0\n"
        "    def setup(self, trainer):\n        pass\n"
        "    def optimizer_step(self, optimizer, closure, model=None):\n        return closure()\n"
    ),
    "lightning/pytorch/utilities/__init__.py": (
        "def rank_zero_only(function):\n    return function\nrank_zero_only.rank = 0\n"
    ),
}


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    before = set(sys.modules)
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("elasticjob.integrations.lightning_session")
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "lightning" or name.startswith("elasticjob.integrations."):
            del sys.modules[name]


def test_a_session_of_lightning_does_not_go_back(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICJOB_COMPARE_EVERY_STEPS", "100")
    strategy = adapter.SessionStrategy("cpu")
    strategy._trainer = SimpleNamespace(
        training=True,
        accumulate_grad_batches=1,
        lightning_module=SimpleNamespace(automatic_optimization=True),
        precision_plugin=SimpleNamespace(),
    )
    with pytest.raises(ConfigurationError, match=r"health\.compareEverySteps is not supported.*set it to 0"):
        strategy.process_dataloader(SimpleNamespace(batch_sampler=make_sampler()))


def test_a_second_fit_is_refused_before_it_begins(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticjob.sessions.session._has_been", True)
    with pytest.raises(
        ConfigurationError, match=r"second fit\(\).*elastic_arguments\(\), callbacks=\[ElasticJobCallback"
    ):
        adapter.SessionStrategy("cpu").setup(SimpleNamespace(training=True))
    adapter.SessionStrategy("cpu").setup(SimpleNamespace(training=False))  # test(), for example


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_writes_after_the_training_too(adapter: Any, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """`trainer.save_checkpoint(...)` after `fit`: the session has left its world, and says rank 0 everywhere."""
    strategy = adapter.SessionStrategy("cpu")
    strategy._steps = SimpleNamespace()
    strategy._on_world(SimpleNamespace(rank=rank, committed=0))
    strategy.session = SimpleNamespace(rank=0)
    assert strategy.is_global_zero is (rank == 0)
    monkeypatch.setattr("elasticjob.sessions.session._has_been", True)
    assert adapter.SessionStrategy("cpu").is_global_zero is (rank == 0), "of a Trainer for test()"


def make_sampler(**more: Any) -> ElasticDistributedSampler:
    sizes = {"global_batch_size": 4, "micro_batch_size": 4, "rank": 0, "world_size": 1, "shuffle": False, **more}
    return ElasticDistributedSampler(10, **sizes)


@pytest.mark.parametrize(
    ("sampler", "trainer", "problem"),
    [
        pytest.param(make_sampler(), {}, None, id="all is well"),
        pytest.param(None, {}, "batch_sampler=ElasticDistributedSampler", id="another sampler"),
        pytest.param(make_sampler(micro_batch_size=2), {}, r"micro_batch_size=4\)", id="micro batches"),
        pytest.param(make_sampler(virtual_ranks=2), {}, "leave virtual_ranks out", id="virtual ranks"),
        pytest.param(make_sampler(), {"accumulate_grad_batches": 2}, "accumulate_grad_batches=2", id="accumulation"),
        pytest.param(
            make_sampler(), {"lightning_module": SimpleNamespace(automatic_optimization=False)}, "manual", id="by hand"
        ),
        pytest.param(make_sampler(), {"precision_plugin": SimpleNamespace(scaler=1)}, "bf16-mixed", id="a scaler"),
    ],
)
def test_what_a_session_cannot_train(adapter: Any, sampler: Any, trainer: dict[str, Any], problem: str | None) -> None:
    usual: dict[str, Any] = {
        "accumulate_grad_batches": 1,
        "lightning_module": SimpleNamespace(automatic_optimization=True),
        "precision_plugin": SimpleNamespace(),
    }
    found = adapter.find_problem(SimpleNamespace(batch_sampler=sampler), SimpleNamespace(**usual | trainer))
    assert (found is None) if problem is None else re.search(problem, found)


class FakeSession:
    """`outcomes` of the next steps: done, broken, or done by others, which is learned with the next batch."""

    rank, scale = 0, 1.0

    def __init__(self, sampler: ElasticDistributedSampler, optimizer: torch.optim.Optimizer) -> None:
        self.sampler, self.optimizer = sampler, optimizer
        self.committed = -1
        self.outcomes: list[str] = []
        self._last = "done"

    def batches(self, loader: Any) -> Iterator[Any]:
        for _, batch in self.sampler.steps(loader):
            yield batch
            while self._last == "broken":
                self._last = ""
                yield batch  # of the same step, as it is divided in the new world
            if self._last == "by others":
                self.committed += 1
                for group in self.optimizer.param_groups:
                    group["lr"] = 0.5  # the others have stepped their schedulers

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        self._last = self.outcomes.pop(0)
        with contextlib.suppress(ConnectionError):
            yield
            self.committed += 1


class Loop:
    """What Lightning does with a strategy and its loader."""

    def __init__(self, adapter: Any) -> None:
        parameter = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([parameter], lr=1.0)
        self.sampler = make_sampler()
        self.session = FakeSession(self.sampler, self.optimizer)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)
        self.nothing = adapter._NOTHING
        self.strategy = adapter.SessionStrategy("cpu")
        self.strategy.session, self.strategy._trainer = self.session, SimpleNamespace(max_steps=0)
        self.strategy.optimizers = [self.optimizer]
        self.strategy.lr_scheduler_configs = [SimpleNamespace(scheduler=self.scheduler)]
        self.strategy.precision_plugin = SimpleNamespace(convert_input=lambda batch: batch)
        self.strategy.lightning_module = SimpleNamespace(_on_before_batch_transfer=lambda batch, dataloader_idx: batch)
        self.strategy.batch_to_device = lambda batch, dataloader_idx: batch
        self.steps = self.strategy._steps = adapter.Steps(self.sampler, self.sampler)
        self.steps.session = self.session
        self._iterator = iter(self.steps)
        self.seen: list[Any] = []

    def run(self, *outcomes: str) -> Any:
        """One pass of the loop; returns what the closure left for the loop, as Lightning's does."""
        batch = next(self._iterator)
        self.session.outcomes = list(outcomes)

        def closure() -> torch.Tensor:
            closure._result = None  # type: ignore[attr-defined]
            again = self.strategy._again
            self.seen.append(batch if again is self.nothing else again)
            if self.session._last != "done":
                raise ConnectionError
            closure._result = "the loss"  # type: ignore[attr-defined]
            return torch.ones(1)

        self.strategy.optimizer_step(self.optimizer, closure)
        self.optimizer.step()
        self.scheduler.step()
        return closure._result  # type: ignore[attr-defined]


def test_the_loop_gets_each_batch_once_through_the_epochs(adapter: Any) -> None:
    loop = Loop(adapter)
    assert len(loop.steps) == 3
    for _ in range(4):
        assert loop.run("done") == "the loss"
    assert loop.seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    assert (loop.session.committed, loop.sampler.epoch) == (3, 1)


def test_a_broken_step_is_repeated_inside_of_the_call(adapter: Any) -> None:
    loop = Loop(adapter)
    loop.run("done")
    assert loop.run("broken", "done") == "the loss"
    loop.run("done")
    assert loop.seen == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7], [8, 9]]
    assert loop.session.committed == 2


def test_a_step_that_others_have_made_is_counted_and_the_schedulers_step_once(adapter: Any) -> None:
    loop = Loop(adapter)
    assert loop.run("by others").closure_loss is None, "the loop asks for a result"
    assert loop.session.committed == 0
    assert loop.optimizer.param_groups[0]["lr"] == 0.5, "as on the other ranks"
    loop.run("done")
    assert loop.seen == [[0, 1, 2, 3], [4, 5, 6, 7]], "the batch of the next step is not lost"


@pytest.mark.parametrize(("step", "place"), [(0, (0, 0)), (2, (0, 8)), (3, (1, 0)), (7, (2, 4))])
def test_the_place_follows_from_the_step(adapter: Any, step: int, place: tuple[int, int]) -> None:
    sampler = make_sampler()
    adapter.Steps([], sampler).go_to(step)
    assert (sampler.epoch, sampler.used) == place


class Counters(SimpleNamespace):
    """One of Lightning's loops, or of its counters, as a checkpoint of another step has left it."""

    restarting = True

    def reset_restart_stage(self) -> None:
        self.stage = None


def make_counters() -> SimpleNamespace:
    return SimpleNamespace(**dict.fromkeys(("ready", "started", "processed", "completed"), 2))


def test_a_joiner_begins_where_the_others_are_whatever_checkpoint_it_has_loaded(adapter: Any) -> None:
    loop = Loop(adapter)
    total = make_counters()
    batches = SimpleNamespace(current=make_counters(), total=make_counters(), is_last_batch=True)
    optimizer = SimpleNamespace(
        optim_progress=SimpleNamespace(optimizer=SimpleNamespace(step=SimpleNamespace(total=total)))
    )
    inner = Counters(batch_progress=batches, automatic_optimization=optimizer, stage="on_train_batch_end")
    outer = Counters(epoch_progress=SimpleNamespace(current=make_counters()), epoch_loop=inner, stage="mid_epoch")
    loop.strategy._trainer.fit_loop = outer
    loop.strategy._enter_loop(7)
    found = [vars(one) for one in (outer.epoch_progress.current, batches.current, batches.total, total)]
    assert [set(one.values()) for one in found] == [{2}, {1}, {7}, {7}], "the third epoch, and one batch of it"
    assert (batches.is_last_batch, inner.stage, outer.stage) == (False, None, None), "nothing of the checkpoint's step"
    assert (outer.restarting, inner.restarting) == (False, True)
