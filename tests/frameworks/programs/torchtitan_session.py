"""torchtitan's trainer in a session: one is made in each world, on the session's mesh, and no process restarts."""

from __future__ import annotations

import sys

import torch
from titan_debug import BATCH, Record, RecordedTrainer, Sequences, make_config
from torchtitan.distributed import ParallelDims

import elasticjob

STEPS = int(sys.argv[1])
data = Sequences()
sampler = elasticjob.ElasticDistributedSampler(data, global_batch_size=BATCH)
loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
record = Record(STEPS)


class SessionDims(ParallelDims):
    """The mesh of a session in place of torchtitan's own: copies x shards, or shards alone."""

    mesh = None

    def build_mesh(self):
        whole = self.mesh if self.mesh.ndim == 1 else self.mesh._flatten(f"all_{self.mesh.mesh_dim_names[0]}")
        shards = self.mesh[self.mesh.mesh_dim_names[-1]]
        self._meshes = {"batch": whole, "loss": whole, "fsdp": shards}
        self._world_mesh = whole
        return whole

    def get_optional_mesh(self, dims):
        if not self._meshes:
            self.build_mesh()
        found = self._meshes.get(dims if isinstance(dims, str) else dims[-1])
        return found if found is not None and found.size() > 1 else None


class Trainer(RecordedTrainer):
    """Of one world."""

    def init_distributed(self):
        dims = SessionDims(1, -1, 1, 1, 1, 1, 1, torch.distributed.get_world_size())
        dims.mesh = SessionDims.mesh
        return dims


class Schedule:
    """The trainer of the present world, and the state of its schedules, which joiners get."""

    def build(self, mesh):
        SessionDims.mesh = mesh
        self.trainer = Trainer(make_config(STEPS, lambda **_: None, mesh.size()), record)
        (model,), (optimizer,) = self.trainer.model_parts, self.trainer.optimizers
        self.trainer.optimizers.step = optimizer.step  # of several optimizers the session would know one
        return model, optimizer

    def state_dict(self):
        return self.trainer.lr_schedulers.state_dict()

    def load_state_dict(self, state):
        self.trainer.lr_schedulers.load_state_dict(state)


schedule = Schedule()
session = elasticjob.Session(build=schedule.build, copy_every=1, sampler=sampler, schedule=schedule)
while session.committed + 1 < STEPS:
    sampler.set_epoch(sampler.epoch + sampler.is_over())
    for batch in session.batches(loader):
        with session.step():
            schedule.trainer.step = session.committed + 2
            schedule.trainer.train_step(schedule.trainer.batch_generator([batch]))
        if session.committed + 1 >= STEPS:
            break
session.close()
