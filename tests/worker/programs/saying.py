"""How a gang's program reports: one JSON line per check, on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(check: str, result: Any) -> None:
    sys.stdout.write(json.dumps({"check": check, "result": result}) + "\n")
    sys.stdout.flush()
