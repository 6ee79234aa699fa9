"""The common part of the benchmark's loops: their arguments, and their output lines.

They run as scripts, so they find this module in their own folder. A line is JSON in `OUT/<pid>.jsonl`: a mark `{"t",
"mark", "pid"}` for `script` (first line of the file), `imported` (torch is imported), `connected` (the process group
exists), or a step `{"t", "step", "count", "rank", "world", "pid"}`. `t` is the time after the step.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def parse_arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    return parser.parse_args()


class Lines:
    """One write per line, so that a SIGKILL never leaves a partial line."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(out / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **values: float | str) -> None:
        os.write(self.descriptor, (json.dumps({**values, "pid": os.getpid()}) + "\n").encode())
