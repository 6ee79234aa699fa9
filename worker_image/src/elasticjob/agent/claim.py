"""A pod has one agent. Another launcher in it would take the agent's place, which ends the world that trains."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Final

_PATIENCE: Final = 3.0  # seconds for an agent that was just killed to be gone: its memory is freed before its sockets
_MESSAGE: Final = (
    "This pod has an agent already: a second launcher would take its place, and end the training."
    " To run another program beside the training, use `torchrun --standalone --nnodes=1 --max-restarts=0 SCRIPT`."
)


class TakenError(Exception):
    """The pod has an agent. The message names the remedy."""


def claim(pod_uid: str, patience: float = _PATIENCE) -> socket.socket | None:
    """The place of this pod's agent, held until the socket is closed or the process ends. Raises TakenError.

    It is a name in the network of the pod, which all its containers share, and the kernel frees it. Pods that share a
    network differ in their UIDs. None where nobody can tell: without a UID, or on a system without such names.
    """
    if not pod_uid:
        return None
    place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + patience
    while True:
        try:
            place.bind(f"\0elasticjob-agent-{pod_uid}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            place.close()
            if error.errno == errno.EADDRINUSE:
                raise TakenError(_MESSAGE) from None
            return None
        os.register_at_fork(after_in_child=place.close)  # a worker that outlives its agent must not hold it
        return place
