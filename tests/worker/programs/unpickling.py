"""Makes unpickling an error, so that a program shows that it executes nothing from another rank."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import torch.distributed.distributed_c10d as c10d


def forbid_unpickling(but_by: str = "") -> None:
    """Forbid it from now on. `but_by` is a part of a path: torch code whose calls are allowed."""
    assert c10d._unpickler is pickle.Unpickler, "torch unpickles by another name now: forbid that"

    class Forbidden(pickle.Unpickler):
        def __init__(self, *args: Any, **more: Any) -> None:
            if not but_by or not any(but_by in frame.filename for frame in traceback.extract_stack()):
                raise AssertionError("something is unpickled")
            super().__init__(*args, **more)

    pickle.Unpickler = c10d._unpickler = Forbidden  # type: ignore[misc]
