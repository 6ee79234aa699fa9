"""Two ranks of the model of NCCL whose processors run ahead: the second one comes when the first one has gone on."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from worker import fake_device, fake_nccl
from worker.programs.saying import say

fake_device.run_ahead()
dist.init_process_group(fake_nccl.NAME)
store: Any = dist.distributed_c10d._get_default_store()
dist.all_reduce(torch.zeros(1))  # makes the communicator
fake_nccl.synchronize_all()
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
value, other = torch.full((3,), 2.0), torch.zeros(1)
if dist.get_rank():
    store.wait(["the first one has gone on"])
dist.all_reduce(value)  # and waits for it, as a script sees that
(weight * value[:2].sum()).sum().backward()  # type: ignore[no-untyped-call]
optimizer.step()
other += 1
say("is ahead", fake_device.is_busy())
say("others are done at once", other.item() == 1)
store.set("the first one has gone on", "")
say("value", value.tolist())
say("weight", [round(one, 6) for one in weight.tolist()])
fake_nccl.synchronize_all()
say("is done", not fake_device.is_busy())
dist.barrier()
dist.destroy_process_group()
