"""TRL's SFTTrainer with the adapter of transformers. Texts, tokenizer and model are made here."""

from __future__ import annotations

import os

import datasets
import torch
from record import SAMPLES, Record
from small_gpt2 import STEPS, Noting, Tell, make_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from elasticjob.integrations.transformers import ElasticJobCallback, find_checkpoint

WORDS = 64


class NotingTrainer(Noting, SFTTrainer):
    def find_samples(self, inputs):
        """The first two words of a text are its number."""
        return (inputs["input_ids"][:, 0] * WORDS + inputs["input_ids"][:, 1]).tolist()


def make_text(index: int) -> str:
    """Its number, then words that count on from it."""
    return " ".join(f"w{n % WORDS}" for n in (index // WORDS, index % WORDS, *range(index, index + 12)))


torch.manual_seed(0)
vocabulary = {**{f"w{n}": n for n in range(WORDS)}, "<pad>": WORDS, "</s>": WORDS + 1}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
arguments = SFTConfig(
    output_dir=os.environ["OUT"] + "/checkpoints",
    max_steps=STEPS,
    learning_rate=5e-3,
    save_steps=200,
    save_total_limit=3,
    logging_steps=1000,
    report_to=[],
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
    bf16=False,
    gradient_checkpointing=False,
    per_device_train_batch_size=12,  # of all ranks together, with split_batches
    accelerator_config={"split_batches": True},
)
trainer = NotingTrainer(
    model=make_model(tokens=WORDS + 2),
    args=arguments,
    train_dataset=datasets.Dataset.from_dict({"text": [make_text(index) for index in range(SAMPLES)]}),
    processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>"),
    callbacks=[ElasticJobCallback(), Tell(Record(STEPS), Noting.seen)],
)
trainer.train(resume_from_checkpoint=find_checkpoint(arguments.output_dir))
