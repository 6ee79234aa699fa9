"""Trainer with the adapter of elasticjob: no step is repeated at an announced change."""

from __future__ import annotations

from small_gpt2 import make_trainer

from elasticjob.integrations.transformers import ElasticJobCallback, find_checkpoint

trainer = make_trainer(200, ElasticJobCallback())
trainer.train(resume_from_checkpoint=find_checkpoint(trainer.args.output_dir))
