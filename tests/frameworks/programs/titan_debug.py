"""torchtitan's debug model of Llama 3 on CPUs, and data for it: what the programs with its trainer share."""

from __future__ import annotations

import itertools
import os

import titan_on_cpus  # noqa: F401 - before anything else of torchtitan
import torch
import torch.distributed as dist
from record import SAMPLES, Record
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torchtitan.config import JobConfig
from torchtitan.protocols.train_spec import get_train_spec, register_train_spec
from torchtitan.train import Trainer

BATCH = 24  # of all ranks together
LENGTH = 16  # tokens of a sequence
_numbers = itertools.count()


class Sequences(torch.utils.data.Dataset):
    """Sequences that count up by one; the first token is the number of the sample."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        tokens = 1000 + (index + torch.arange(LENGTH + 1)) % 61
        inputs = tokens[:-1].clone()
        inputs[0] = index
        return {"input": inputs}, tokens[1:]


class RecordedTrainer(Trainer):
    """Writes down each step, before it is saved."""

    def __init__(self, config, record):
        super().__init__(config)
        self.record = record
        for part in self.model_parts:
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
        # The ranks of one copy of the model have the same samples: one of them names them.
        meshes = [self.parallel_dims.get_optional_mesh(name) for name in ("tp", "pp", "cp")]
        self.is_first = not any(mesh is not None and mesh.get_local_rank() for mesh in meshes)

    def forward_backward_step(self, *, input_dict, **more):
        self.samples = input_dict["input"][:, 0].tolist() if self.is_first else []
        loss = super().forward_backward_step(input_dict=input_dict, **more)
        self.loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        return loss

    def train_step(self, data_iterator):
        super().train_step(data_iterator)
        # Each has a part of the sum; a stage of a pipeline that is not the last one says -1.
        loss = self.loss.detach().reshape(()).clamp(min=0) / self.parallel_dims.tp
        dist.all_reduce(loss)
        self.record.step(self.step, float(loss), (self.step - 1) * BATCH // SAMPLES, self.samples)


def make_config(steps, build_dataloader, copies):
    """The configuration of a world in which so many copies, or parts, of the model have data of their own."""
    spec = get_train_spec("llama3")
    spec.build_dataloader_fn, spec.build_tokenizer_fn = build_dataloader, None
    name = f"counting-{next(_numbers)}"  # a session comes here in each world
    register_train_spec(name, spec)
    config = JobConfig()
    config.job.dump_folder = os.environ["OUT"]
    config.model.name, config.model.flavor = name, "debugmodel"
    config.training.steps, config.training.seq_len = steps, LENGTH
    config.training.local_batch_size = BATCH // copies
    config.training.mixed_precision_param = "float32"
    config.lr_scheduler.warmup_steps = 5
    config.activation_checkpoint.mode = "none"
    return config


__all__ = ["BATCH", "Record", "RecordedTrainer", "Sequences", "make_config"]
