"""`dlrover-run`, but it leaves the other processes of this machine alone.

In a pod it kills every worker process whose parent is gone. A node of the benchmark is no container, so that would
reach workers of other jobs.
"""

from __future__ import annotations

from dlrover.python.elastic_agent.torch.training import ElasticTrainingAgent  # type: ignore[import-not-found]
from dlrover.trainer.torch.elastic_run import main  # type: ignore[import-not-found]


def leave_alone(self: object, group: object) -> None:
    """In the place of the search for orphans."""


if __name__ == "__main__":
    ElasticTrainingAgent._stop_orphan_workers = leave_alone
    main()
