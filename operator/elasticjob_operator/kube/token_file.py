"""The service account's token in a pod, which the kubelet renews: read again every minute, by a clock that nobody sets.

The client's own rule goes by the wall clock: an operator whose clock was set back by an hour would go on for an hour
with what it had read, and that expires meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kubernetes.aio import client
from kubernetes.aio.config import incluster_config

from elasticjob_operator.kube.leadership import read_clock

SECONDS: Final = 60.0


class TokenFile:
    def __init__(
        self, path: Path = Path(incluster_config.SERVICE_TOKEN_FILENAME), clock: Callable[[], float] = read_clock
    ) -> None:
        self._path, self._clock = path, clock
        self._read_at = float("-inf")

    def refresh(self, configuration: client.Configuration) -> None:
        """Give the configuration the token of the file if the last one is old; where there is none, that stays."""
        if self._clock() - self._read_at < SECONDS:
            return
        with contextlib.suppress(OSError):
            token = self._path.read_text().strip()
            if token:
                configuration.api_key["BearerToken"] = f"Bearer {token}"
                self._read_at = self._clock()
