"""Times in objects of Kubernetes: RFC 3339 texts and seconds since the epoch. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

LONGEST: Final = 64  # characters


def parse_time(text: object) -> float | None:
    """Parse an RFC 3339 timestamp to seconds since the epoch; None if `text` is not a timestamp."""
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None


def format_time(seconds: float) -> str:
    """Format seconds since the epoch as RFC 3339 with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
