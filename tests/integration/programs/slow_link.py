"""Starts the agent. On nodes that have a file of their name in the folder of the first argument, its network is slow.

Only what agents send each other is slowed down, not what the script does.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from elasticjob.peers.transport import Link
from elasticjob.run import main

BYTES_PER_SECOND = 500_000.0

if __name__ == "__main__":
    receive = Link._read

    def receive_slowly(link: Link, size: int, deadline: float | None = None) -> bytes:
        time.sleep(size / BYTES_PER_SECOND)
        return receive(link, size, deadline)

    if (Path(sys.argv[1]) / os.environ["ELASTICJOB_NODE_NAME"]).exists():
        Link._read = receive_slowly  # type: ignore[assignment, method-assign]
    main(sys.argv[2:])
