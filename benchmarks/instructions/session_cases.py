"""What a session does in each step. It needs torch, whose version is a part of the count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from elasticjob.data.samplers import ElasticDistributedSampler
from elasticjob.sessions.session import Session

Work = Callable[[], object]

STEPS: Final = 1000


def make_steps() -> Work:
    """Steps in which the script does nothing, without an agent."""
    model = torch.nn.Linear(1, 1)
    sampler = ElasticDistributedSampler(STEPS, global_batch_size=1)
    session = Session(model=model, optimizer=torch.optim.SGD(model.parameters()), sampler=sampler)

    def work() -> None:
        began = session.committed
        for _ in range(STEPS):
            with session.step():
                pass
        assert session.committed == began + STEPS

    work()
    return work


CASES: Final[Mapping[str, Callable[[], Work]]] = {"a session: 1,000 steps": make_steps}
