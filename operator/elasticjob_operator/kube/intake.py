"""Processes objects one by one, so that an error in one of them does not affect the others.

An object that cannot be processed is reported in a warning, once per error, and counted. Its previous state is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from elasticjob_operator.recent import Recent

logger = logging.getLogger(__name__)

REMEMBERED = 10_000  # warnings that are not repeated


class Intake:
    """Processes objects. `count` is called with the object's kind and the kind of problem."""

    def __init__(self, count: Callable[[str, str], None] = lambda kind, problem: None) -> None:
        self._count = count
        self._said: Recent[tuple[str, str, str], None] = Recent(REMEMBERED)

    def take(self, kind: str, raw: Mapping[str, Any], enter: Callable[[], None]) -> None:
        """Call `enter`, which may raise."""
        try:
            enter()
        except Exception as error:
            logger.debug("%s %s", kind, name_of(raw), exc_info=True)
            self.skip(kind, name_of(raw), type(error).__name__, f"{error!r:.200}")

    def skip(self, kind: str, name: str, problem: str, why: str) -> None:
        self._count(kind, problem)
        said = (kind, name, why)
        if said in self._said:
            return
        self._said[said] = None
        logger.warning("skipping %s %s: %s", kind, name or "(of unknown name)", why)


def name_of(raw: Mapping[str, Any]) -> str:
    """namespace/name of anything that claims to be an object."""
    metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
    if not isinstance(metadata, Mapping):
        return ""
    return "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
