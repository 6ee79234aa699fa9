"""`benchmarks/scripts/session_cost.py`, whose sessions train over the backend that the environment wants."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from elasticjob.sessions import session
from worker import fake_nccl

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "scripts" / "session_cost.py"


def main() -> None:
    spec = importlib.util.spec_from_file_location("session_cost", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.__file__ = __file__  # what it starts for each rank
    session.Session = functools.partial(session.Session, backend=fake_nccl.choose())  # type: ignore[misc, assignment]
    script.main()


if __name__ == "__main__":
    main()
