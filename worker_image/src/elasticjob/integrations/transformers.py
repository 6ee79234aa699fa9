"""For transformers' Trainer: checkpoints before announced changes, progress, and the newest whole checkpoint.

from elasticjob.integrations.transformers import ElasticJobCallback, find_checkpoint

trainer = Trainer(..., callbacks=[ElasticJobCallback()])
trainer.train(resume_from_checkpoint=find_checkpoint(args.output_dir))
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from elasticjob.channel import progress
from elasticjob.checkpoint import requests
from elasticjob.context import context
from elasticjob.integrations import ranks, versions

versions.require("transformers")
from transformers import TrainerCallback  # noqa: E402 - after the check of its version

logger = logging.getLogger(__name__)

_LAST = "trainer_state.json"  # the file that the Trainer writes last


def find_checkpoint(folder: str | Path) -> str | None:
    """The newest checkpoint in the Trainer's `output_dir` that is whole; None if there is none, to start from scratch.

    The newest is the one that was written last: after training has gone back, its number is not the highest. Where the
    same error has stopped the training twice without progress, it is an older one. transformers' own
    `get_last_checkpoint` also returns one whose writer was killed, and resuming from it fails.
    """
    found = [place for place in Path(folder).glob("checkpoint-*") if _is_whole(place)]
    found.sort(key=lambda place: ((place / _LAST).stat().st_mtime_ns, _number_of(place)), reverse=True)
    chosen = context.choose_start(found, _number_of)
    return str(chosen) if chosen else None


def _number_of(place: Path) -> int:
    number = place.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _is_whole(place: Path) -> bool:
    try:
        json.loads((place / _LAST).read_text())
    except (OSError, ValueError):
        return False
    return _number_of(place) >= 0


def remove_unfinished(folder: str | Path, step: int) -> None:
    """Delete what killed writers have left after this step.

    The Trainer keeps the highest numbers (`save_total_limit`): it would delete each new checkpoint at once instead.
    """
    for place in Path(folder).glob("checkpoint-*"):
        if _number_of(place) > step and not _is_whole(place):
            logger.warning("removed %s: its writer ended before it was whole", place)
            shutil.rmtree(place, ignore_errors=True)


def find_loader_problem(loader: Any) -> str | None:
    """Why training cannot continue at the same sample with this DataLoader, with the remedy; None if it can."""
    dataset = getattr(loader, "dataset", None)
    if dataset is None or hasattr(dataset, "__getitem__") or hasattr(dataset, "state_dict"):
        return None
    return (
        f"The training dataset ({type(dataset).__name__}) is iterable and has no state_dict: after every change of the "
        "world the Trainer reads all samples again up to its step. Use a dataset with __getitem__ and __len__, or set "
        "ignore_data_skip=True to start at its beginning."
    )


def count_samples(args: Any) -> int:
    """The samples of a step on all ranks, by the Trainer's arguments. A batch that is split is already that of all."""
    is_split = getattr(getattr(args, "accelerator_config", None), "split_batches", False)
    return int(args.train_batch_size * args.gradient_accumulation_steps * (1 if is_split else args.world_size))


class WorkOfSteps:
    """The floating-point operations of a step on all ranks, by the Trainer's own estimate.

    It takes six for each token and parameter without the embeddings. It adds them up, on all ranks, when it logs a loss
    or saves; an evaluation and the script itself may log meanwhile, with the sum of an earlier step.
    """

    def __init__(self) -> None:
        self.of_a_step: float | None = None
        self._before: tuple[int, float] | None = None

    def note(self, step: int, total: float) -> None:
        """`total`: of all steps so far, also of those before a restart."""
        if self._before is not None and total == self._before[1]:
            return
        if self._before is not None and step > self._before[0]:
            done = (total - self._before[1]) / (step - self._before[0])
            self.of_a_step = done if done > 0 else None
        self._before = step, total


class ElasticJobCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Saves a checkpoint when a change of the world is announced, so no step is repeated, and reports the progress.

    All ranks call it after every step and agree on the step to save: that costs one all-reduce of one number per step.
    On devices whose peak the runtime knows, the model FLOPs utilization is part of the progress.
    The Trainer tells its work when it logs a loss or saves a checkpoint, so it is known from then on.
    """

    def __init__(self) -> None:
        self._work = WorkOfSteps()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        problem = find_loader_problem(kwargs.get("train_dataloader"))
        if problem is not None and state.is_world_process_zero:
            logger.warning(problem)
        if state.is_world_process_zero:
            remove_unfinished(args.output_dir, state.global_step)
        self._work = WorkOfSteps()  # another model may have been trained before
        self._work.note(state.global_step, state.total_flos)
        return control

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._work.note(state.global_step, state.total_flos)
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if ranks.agree(requests.requested(), args.device):
            control.should_save = True
        loss = next((entry["loss"] for entry in reversed(state.log_history) if "loss" in entry), None)
        metrics = {} if loss is None else {"loss": loss}
        flops = self._work.of_a_step
        progress.report(state.global_step, state.max_steps, samples=count_samples(args), flops=flops, **metrics)
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._work.note(state.global_step, state.total_flos)
        ranks.wait_for_all()
        requests.clear()
        return control
