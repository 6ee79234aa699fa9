"""Lightning's Trainer in a session: the process and its memory outlive every change of the world.

    from elasticjob.integrations.lightning_session import session_arguments

    sampler = ElasticDistributedSampler(dataset, global_batch_size=48, micro_batch_size=48)
    trainer = Trainer(**session_arguments(), ...)
    trainer.fit(module, DataLoader(dataset, batch_sampler=sampler), ckpt_path=find_checkpoint(folder))

For Lightning this is one device: it starts no processes, shares no samples and calls no collective. The strategy makes
the session when the training starts, gives the loop the batches of this rank, and repeats a step that the loss of a
member broke. An epoch has the same number of steps in worlds of any size, so the loop never learns of a change.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import os
import signal
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from elasticjob.channel import progress
from elasticjob.data.samplers import ElasticDistributedSampler
from elasticjob.errors import ConfigurationError
from elasticjob.integrations import versions
from elasticjob.sessions.replicas import read_every
from elasticjob.sessions.session import Session, has_been

if importlib.util.find_spec("lightning") is not None:
    versions.require("lightning")
    from lightning.fabric.plugins.environments import (  # type: ignore[import-not-found, unused-ignore]
        LightningEnvironment,
    )
    from lightning.pytorch.loops.optimization.automatic import (  # type: ignore[import-not-found, unused-ignore]
        ClosureResult,
    )
    from lightning.pytorch.strategies import SingleDeviceStrategy  # type: ignore[import-not-found, unused-ignore]
    from lightning.pytorch.utilities import rank_zero_only  # type: ignore[import-not-found, unused-ignore]
else:  # the same package under its older name
    versions.require("pytorch-lightning")
    from lightning_fabric.plugins.environments import (  # type: ignore[import-not-found, no-redef, unused-ignore]
        LightningEnvironment,
    )
    from pytorch_lightning.loops.optimization.automatic import (  # type: ignore[import-not-found, no-redef, unused-ignore]
        ClosureResult,
    )
    from pytorch_lightning.strategies import (  # type: ignore[import-not-found, no-redef, unused-ignore]
        SingleDeviceStrategy,
    )
    from pytorch_lightning.utilities import rank_zero_only  # type: ignore[import-not-found, no-redef, unused-ignore]

_NOTHING = object()

_ONE_FIT = (
    "this process has trained in a session, and can do so only once: a pod that joins could not tell which fit() the"
    " others are in. validate(), test() and predict() may follow. For a second fit(), restart at each change of the"
    " world instead, with a folder of its own for the checkpoints of each fit: Trainer(**elastic_arguments(),"
    " callbacks=[ElasticJobCallback(folder)]) of elasticjob.integrations.lightning. Or train in one fit(), in which"
    " callbacks change the learning rate, the data or what is frozen, or in two jobs."
)


def session_arguments() -> dict[str, Any]:
    """`strategy`, `accelerator`, `devices` and `plugins` for a Trainer whose training is a session."""
    has_device = torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if has_device else "cpu"
    return {
        "strategy": SessionStrategy(device),
        "accelerator": "gpu" if has_device else "cpu",
        "devices": 1,
        "plugins": [LightningEnvironment()],
    }


def find_problem(loader: Any, trainer: Any, compare_every: int = 0) -> str | None:
    """Why this Trainer cannot train with this loader in a session, with the remedy; None if it can.

    `compare_every`: the job's `health.compareEverySteps`.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(sampler, ElasticDistributedSampler):
        return "the training DataLoader needs batch_sampler=ElasticDistributedSampler(...), which divides each batch"
    if sampler.virtual_ranks is not None:
        return "virtual ranks are not supported: leave virtual_ranks out"
    if sampler.micro_batch_size < sampler.global_batch_size:
        remedy = f"ElasticDistributedSampler(..., micro_batch_size={sampler.global_batch_size})"
        return f"a step takes one batch on each rank, whatever the size of the world: {remedy}"
    if trainer.accumulate_grad_batches != 1:
        return f"accumulate_grad_batches={trainer.accumulate_grad_batches} is not supported: a step is one global batch"
    if not trainer.lightning_module.automatic_optimization:
        return "manual optimization is not supported: the session has to repeat a step"
    if compare_every:
        return (
            "health.compareEverySteps is not supported, because Lightning's loop cannot go back by steps: set it to 0"
        )
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        return "a gradient scaler is not supported: use precision='bf16-mixed' or '32-true'"
    return None


class Steps:
    """What the loop takes for its DataLoader: this rank's share of each global batch, through all changes."""

    def __init__(self, loader: Iterable[Any], sampler: ElasticDistributedSampler) -> None:
        self.loader, self.positions = loader, sampler  # Lightning would set the epoch of a `sampler`
        self.session: Session | None = None
        self._batches: Iterator[Any] = iter(())
        self._next: Any = _NOTHING  # fetched too early
        used, sampler.used = sampler.used, 0
        self._length, sampler.used = len(sampler), used

    def __len__(self) -> int:
        """The steps of a whole epoch."""
        return self._length

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.fetch()

    def fetch(self) -> Any:
        """The next batch, after the change of the world if one is due. The end of an epoch is the start of the next."""
        assert self.session is not None, "the training has started"
        if self._next is not _NOTHING:
            batch, self._next = self._next, _NOTHING
            return batch
        while (batch := next(self._batches, _NOTHING)) is _NOTHING:
            if len(self.positions) == 0:
                self.positions.set_epoch(self.positions.epoch + 1)
            self._batches = self.session.batches(self.loader)
        return batch

    def put_back(self, batch: Any) -> None:
        """This batch is of the next step."""
        self._next = batch

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the place follows from the number of the step."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The place follows from the number of the step."""

    def go_to(self, step: int) -> None:
        """Continue after this many steps from the start of the training."""
        epoch, done = divmod(step, len(self))
        used = done * self.positions.global_batch_size
        self.positions.load_state_dict({**self.positions.state_dict(), "epoch": epoch, "used": used})


class SessionStrategy(SingleDeviceStrategy):  # type: ignore[misc, unused-ignore]
    """A single device for Lightning, a rank of the session's world for the model.

    Every rank validates the whole validation set. Only the session's rank 0 writes checkpoints and logs.
    """

    def __init__(self, device: str) -> None:
        super().__init__(device)
        if has_been():  # a Trainer for test(), after the one that has trained
            self.global_rank = rank_zero_only.rank
        self.session: Session | None = None
        self._trainer: Any = None
        self._steps: Steps | None = None
        self._again: Any = _NOTHING  # the batch of a step that is repeated
        self._handler: Any = None

    @property
    def is_global_zero(self) -> bool:
        """Also after the training, when the world has been left."""
        return bool(self.global_rank == 0)

    def setup(self, trainer: Any) -> None:
        if trainer.training and has_been():
            raise ConfigurationError(_ONE_FIT)
        self._trainer = trainer
        self._handler = signal.getsignal(signal.SIGTERM)
        super().setup(trainer)

    def process_dataloader(self, dataloader: Any) -> Any:
        if not self._trainer.training:
            return dataloader
        problem = find_problem(dataloader, self._trainer, read_every(os.environ))
        if problem is not None:
            raise ConfigurationError(problem)
        self._steps = Steps(dataloader, dataloader.batch_sampler)
        return self._steps

    def on_train_start(self) -> None:
        """Everything is as the checkpoint says: enter the first world."""
        with contextlib.suppress(ValueError):  # not the main thread, where no handler can be set
            signal.signal(signal.SIGTERM, self._handler or signal.SIG_DFL)
        assert self._steps is not None
        schedulers = {f"scheduler_{n}": one.scheduler for n, one in enumerate(self.lr_scheduler_configs)}
        self.session = Session(
            model=self.lightning_module,
            optimizer=self.optimizers[0],
            sampler=self._steps.positions,
            on_world=self._on_world,
            **schedulers,
        )
        self._steps.session = self.session
        if self.session.committed + 1 != self._trainer.global_step:
            self._enter_loop(self.session.committed + 1)

    def _on_world(self, session: Session) -> None:
        assert self._steps is not None
        self.global_rank = rank_zero_only.rank = session.rank
        if session.committed < 0 and self._trainer.global_step:
            self._steps.go_to(self._trainer.global_step)
            session.committed = self._trainer.global_step - 1

    def _enter_loop(self, step: int) -> None:
        """A joiner: begin the loop where the others are, as after a checkpoint of this step, whatever it has loaded."""
        epoch, batches = divmod(step, len(self._steps or ()))
        loop = self._trainer.fit_loop
        inner = loop.epoch_loop
        loop.restarting = False
        for one in (loop, inner):
            one.reset_restart_stage()
        inner.batch_progress.is_last_batch = False
        _set(loop.epoch_progress.current, epoch)
        _set(inner.batch_progress.current, batches)
        _set(inner.batch_progress.total, step)
        _set(inner.automatic_optimization.optim_progress.optimizer.step.total, step)
        inner._batches_that_stepped = step - 1  # Lightning adds the one of the checkpoint
        inner.restarting = True

    def training_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Through the DDP of this world; validation uses the plain module, and so no collective."""
        assert self.session is not None
        batch = batch if self._again is _NOTHING else self._again
        with self.precision_plugin.train_step_context():
            return self._forward_redirection(
                self.session.model, self.lightning_module, "training_step", batch, *args, **kwargs
            )

    def backward(self, closure_loss: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        assert self.session is not None
        result: torch.Tensor = super().backward(closure_loss * self.session.scale, *args, **kwargs)
        return result

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """Make one step, in as many worlds as it takes."""
        session, result = self.session, None
        assert session is not None
        assert self._steps is not None
        before = session.committed
        while session.committed == before:
            with session.step():
                loss = closure()  # not inside of the optimizer's step, in which the session lets nothing interrupt it
                result = super().optimizer_step(optimizer, functools.partial(_give, loss), model, **kwargs)
            if session.committed > before:
                break
            rates = self._read_rates()
            batch = self._steps.fetch()
            if session.committed == before:
                self._again = self._prepare(batch)
                continue
            # Others had applied this step, and sent what they made of it. The loop counts it, and steps the schedulers.
            self._steps.put_back(batch)
            self._write_rates(rates)
            closure._result = ClosureResult(None)
        self._again = _NOTHING
        total = self._trainer.max_steps if self._trainer.max_steps > 0 else None
        metrics = {"loss": result.detach()} if isinstance(result, torch.Tensor) else {}
        progress.report(session.committed + 1, total, **metrics)
        return result

    def _read_rates(self) -> tuple[list[Any], list[Any]]:
        """The states of the schedulers, and the learning rates."""
        rates = [group["lr"] for group in self.optimizers[0].param_groups]
        return [copy.deepcopy(one.scheduler.state_dict()) for one in self.lr_scheduler_configs], rates

    def _write_rates(self, rates: tuple[list[Any], list[Any]]) -> None:
        for config, state in zip(self.lr_scheduler_configs, rates[0], strict=True):
            config.scheduler.load_state_dict(state)
        for group, rate in zip(self.optimizers[0].param_groups, rates[1], strict=True):
            group["lr"] = rate

    def _prepare(self, batch: Any) -> Any:
        """What the loop does with a batch before its step."""
        batch = self.precision_plugin.convert_input(batch)
        batch = self.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return self.batch_to_device(batch, dataloader_idx=0)

    def on_train_end(self) -> None:
        """Leave the world once every rank has finished."""
        assert self.session is not None
        self.session.close()


def _give(value: Any) -> Any:
    return value


def _set(tracker: Any, count: int) -> None:
    for name in vars(tracker):
        setattr(tracker, name, count)
