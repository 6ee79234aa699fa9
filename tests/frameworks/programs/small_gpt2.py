"""A small random GPT-2 under transformers' Trainer, as its documentation shows it. Nothing of elasticjob."""

from __future__ import annotations

import os
import sys
from typing import ClassVar

import torch
from record import SAMPLES, Record
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

STEPS = int(sys.argv[1])


class Sequences(torch.utils.data.Dataset):
    """Counting sequences: the next token is always known."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        tokens = (torch.arange(16) + index) % 64
        return {"input_ids": tokens, "labels": tokens, "index": index}


class Tell(TrainerCallback):
    def __init__(self, record, seen):
        self.record, self.seen = record, seen

    def on_step_end(self, args, state, control, **kwargs):
        loss = self.seen["loss"]
        self.record.step(state.global_step, loss, int(state.epoch - 1e-9), self.seen.pop("samples", []))


class Noting:
    """Notes which samples a step used, and its loss: all that differs from the Trainer that it is mixed into."""

    seen: ClassVar[dict] = {}

    def find_samples(self, inputs):
        return inputs.pop("index").tolist()

    def compute_loss(self, model, inputs, *args, **kwargs):
        Noting.seen.setdefault("samples", []).extend(self.find_samples(inputs))
        found = super().compute_loss(model, inputs, *args, **kwargs)
        Noting.seen["loss"] = float((found[0] if isinstance(found, tuple) else found).detach())
        return found


class NotingTrainer(Noting, Trainer):
    pass


def make_model(tokens=64):
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=32, vocab_size=tokens, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)


def make_trainer(save_steps, *callbacks, **more):
    """The trainer of the program, which records every step; `callbacks` come before the recording one."""
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=os.environ["OUT"] + "/checkpoints",
        max_steps=STEPS,
        learning_rate=5e-3,
        save_steps=save_steps,
        save_total_limit=3,
        logging_steps=1000,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
        **{"per_device_train_batch_size": 4, **more},
    )
    return NotingTrainer(
        model=make_model(),
        args=arguments,
        train_dataset=Sequences(),
        callbacks=[*callbacks, Tell(Record(STEPS), Noting.seen)],
    )
