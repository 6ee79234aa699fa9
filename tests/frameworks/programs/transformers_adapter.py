"""Trainer with the adapter of elasticjob, and with a global batch that is the same in every world.

No step is repeated at an announced change, and every sample of an epoch is used once.
"""

from __future__ import annotations

from small_gpt2 import make_trainer

from elasticjob.integrations.transformers import ElasticJobCallback, find_checkpoint

trainer = make_trainer(
    200,
    ElasticJobCallback(),
    per_device_train_batch_size=12,  # of all ranks together, with split_batches
    accelerator_config={"split_batches": True},
)
trainer.train(resume_from_checkpoint=find_checkpoint(trainer.args.output_dir))
