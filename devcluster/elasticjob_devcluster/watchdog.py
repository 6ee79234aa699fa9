"""Waits until a supervisor ends, kills all processes with its cluster's mark, and removes its directories. Usage: PID
ID PATH...
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import time

from elasticjob_devcluster.containerd.sweep import remove_cgroups
from elasticjob_devcluster.system import processes


def main() -> None:
    pid, cluster, *paths = sys.argv[1:]
    try:
        handle = os.pidfd_open(int(pid))
    except ProcessLookupError:
        pass
    else:
        select.select([handle], [], [])
    processes.kill_marked(processes.MARK_CLUSTER, cluster)
    remove_cgroups(cluster)
    for path in paths:
        for _ in range(20):
            shutil.rmtree(path, ignore_errors=True)
            if not os.path.exists(path):  # noqa: PTH110
                break
            time.sleep(0.05)


if __name__ == "__main__":
    main()
