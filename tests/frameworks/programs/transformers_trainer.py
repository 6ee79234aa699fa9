"""Trainer without elasticjob: it resumes from its newest whole checkpoint."""

from __future__ import annotations

from pathlib import Path

from small_gpt2 import make_trainer

trainer = make_trainer(10)
# The file that Trainer writes last: a folder without it is of a process that was killed while it saved.
whole = [file.parent for file in Path(trainer.args.output_dir).glob("checkpoint-*/trainer_state.json")]
newest = max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)
trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
