"""CUDA graphs of nothing, of a collective, and of a message: what each replay counts, and in a later world."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import graphs, groups
from worker import fake_nccl
from worker.programs.saying import say

RANK = int(os.environ["RANK"])
VALUE = torch.ones(4)


def send() -> None:
    if RANK == 0:
        dist.send(VALUE, 1)
    else:
        dist.recv(VALUE, 0)


CAPTURED: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "collective": lambda: dist.all_reduce(VALUE),
    "message": send,
}
groups.watch_messages()
graphs.watch()
dist.init_process_group(fake_nccl.NAME)
made: dict[str, Any] = {}
for name, capture in CAPTURED.items():
    made[name] = torch.cuda.CUDAGraph()
    made[name].capture_begin()
    capture()
    made[name].capture_end()
    before = graphs.count()
    for _ in range(2):
        made[name].replay()
    say(name, graphs.count() - before)
fake_nccl.synchronize_all()
graphs.enter_world()
for name in CAPTURED:
    try:
        made[name].replay()
        say(f"{name} later", "replayed")
    except ConfigurationError:
        say(f"{name} later", "refused")
os._exit(0)
