"""`dlrover-run` without its effects on other processes of this machine.

In a pod it kills every worker process whose parent has ended. A node of the benchmark is not a container, so it would
kill workers of other jobs.
"""

from __future__ import annotations

from dlrover.python.elastic_agent.torch.training import ElasticTrainingAgent  # type: ignore[import-not-found]
from dlrover.trainer.torch.elastic_run import main  # type: ignore[import-not-found]


def leave_alone(self: object, group: object) -> None:
    """Replaces the search for orphans."""


if __name__ == "__main__":
    ElasticTrainingAgent._stop_orphan_workers = leave_alone
    main()
