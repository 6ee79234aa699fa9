"""torchtitan's trainer with its own checkpoints, restarted at each change, in meshes of one and two dimensions.

    torchtitan_llama3.py STEPS [tensor=2] [pipeline=2] [replicas=2] [async]

What elasticjob adds is `Loader`: a position of torchtitan's own loader cannot be loaded at another number of ranks.
"""

from __future__ import annotations

import itertools
import os
import sys

import torch
import torch.distributed as dist
from titan_debug import BATCH, Record, RecordedTrainer, Sequences, make_config
from torchtitan.components.dataloader import BaseDataLoader

from elasticjob import ElasticDistributedSampler

STEPS = int(sys.argv[1])


class Loader(BaseDataLoader):
    """Its position in the data holds at any number of ranks."""

    def __init__(self, dp_world_size, dp_rank, tokenizer, job_config):
        data = Sequences()
        size = job_config.training.local_batch_size * dp_world_size
        self.sampler = ElasticDistributedSampler(data, global_batch_size=size, rank=dp_rank, world_size=dp_world_size)
        self.loader = torch.utils.data.DataLoader(data, batch_sampler=self.sampler)

    def __iter__(self):
        for epoch in itertools.count(self.sampler.epoch):
            self.sampler.set_epoch(epoch)
            for _, batch in self.sampler.steps(self.loader):
                yield batch

    def state_dict(self):
        return self.sampler.state_dict()

    def load_state_dict(self, state):
        self.sampler.load_state_dict(state)


options = dict(option.partition("=")[::2] for option in sys.argv[2:])
tensor, pipeline, replicas = (int(options.get(name, "1")) for name in ("tensor", "pipeline", "replicas"))
copies = int(os.environ["WORLD_SIZE"]) // tensor // pipeline
config = make_config(STEPS, Loader, copies)
config.parallelism.tensor_parallel_degree = tensor
config.parallelism.pipeline_parallel_degree = pipeline
config.parallelism.pipeline_parallel_microbatch_size = BATCH // copies // 2
config.parallelism.data_parallel_replicate_degree = replicas if copies % replicas == 0 else 1
config.checkpoint.enable, config.checkpoint.interval, config.checkpoint.keep_latest_k = True, 10, 3
config.checkpoint.async_mode = "async" if "async" in options else "disabled"
trainer = RecordedTrainer(config, Record(STEPS))
try:
    trainer.train()
finally:
    trainer.close()
dist.destroy_process_group()
