"""Processes objects one by one, so that an error in one of them does not affect the others.

An object that cannot be processed is reported in a warning, once per error, and counted. Its previous state is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from elasticjob_operator.recent import Recent

logger = logging.getLogger(__name__)

Raw = Mapping[str, Any]

REMEMBERED = 10_000  # warnings that are not repeated


class Intake:
    """Processes objects. `count` is called with the kind of object and of problem, `tell` with what is skipped."""

    def __init__(
        self,
        count: Callable[[str, str], None] = lambda kind, problem: None,
        tell: Callable[[str, Raw, str], None] = lambda kind, raw, why: None,
    ) -> None:
        self._count = count
        self._tell = tell
        self._said: Recent[tuple[str, str, str], None] = Recent(REMEMBERED)

    def take(self, kind: str, raw: Raw, enter: Callable[[], None]) -> None:
        """Call `enter`, which may raise."""
        try:
            enter()
        except Exception as error:
            logger.debug("%s %s", kind, name_of(raw), exc_info=True)
            why = f"{error!r:.200}"
            if self.skip(kind, name_of(raw), type(error).__name__, why):
                self._tell(kind, raw, why)

    def skip(self, kind: str, name: str, problem: str, why: str) -> bool:
        """Report an object that is not processed. Returns whether that is news."""
        self._count(kind, problem)
        said = (kind, name, why)
        if said in self._said:
            return False
        self._said[said] = None
        namespace = name.rpartition("/")[0]  # it has a budget of lines
        logger.warning("skipping %s %s: %s", kind, name or "(of unknown name)", why, extra={"namespace": namespace})
        return True


def name_of(raw: Mapping[str, Any]) -> str:
    """namespace/name of anything that claims to be an object."""
    metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
    if not isinstance(metadata, Mapping):
        return ""
    return "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
