"""The operator, with a look at where its event loop computes for long at a stretch.

    python -m chaos.stretches FILE run …

runs `elasticjob-operator run …`. Another thread looks at the stack of the event loop's thread a few hundred times a
second, while `loop_lag.Pulse` says where one stretch ends and the next one begins. Long stretches go to FILE, one JSON
line each, with the places that were seen most often in them.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

SECONDS = 0.02  # of computing at a stretch: what is shorter is not looked at
LOOK_SECONDS = 0.003
FRAMES = 6  # of a place: the innermost ones that are the operator's
OURS = "elasticjob_operator"


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stretch of computing."""

    seconds: float  # CPU time of the event loop's thread
    places: tuple[tuple[str, int], ...]  # where it was seen, and how often; the most frequent first
    at: float = 0.0  # since 1970

    def __str__(self) -> str:
        return f"{self.seconds:.3f} s in {self.places[0][0] if self.places else 'a place that was not seen'}"


def name_place(frames: Sequence[tuple[str, str, int]]) -> str:
    """The operator's innermost functions in a stack of (file, function, line), the innermost first. Pure."""
    inner = [f"{function}:{line}" for file, function, line in frames[:1] if OURS not in file]
    ours = [
        f"{file.rpartition(OURS + '/')[2]}:{function}:{line}" for file, function, line in frames if OURS + "/" in file
    ]
    return " < ".join([*inner, *ours[:FRAMES]])


def walk(frame: FrameType | None) -> list[tuple[str, str, int]]:
    found = []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found


class Looker:
    """Looks at the thread that made it, from `start` on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._thread = threading.get_ident()
        self._seen: Counter[str] = Counter()

    def start(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def end_stretch(self, seconds: float) -> None:
        """The stretch that began with the last call has ended."""
        seen, self._seen = self._seen, Counter()
        if seconds >= SECONDS:
            with self._file.open("a") as file:
                file.write(json.dumps(asdict(Stretch(seconds, tuple(seen.most_common(4)), time.time()))) + "\n")

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            self._seen[name_place(walk(sys._current_frames().get(self._thread)))] += 1


def read(file: Path) -> list[Stretch]:
    """The stretches of a file, the longest first."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = [Stretch(**{**line, "places": tuple(map(tuple, line["places"]))}) for line in map(json.loads, lines)]
    return sorted(found, key=lambda stretch: -stretch.seconds)


def main() -> None:
    from elasticjob_operator.__main__ import main as run
    from elasticjob_operator.run.metrics import Metrics

    looker, observe = Looker(Path(sys.argv.pop(1))), Metrics.observe_loop

    def observe_loop(self: Metrics, lag: float, busy: float) -> None:
        looker.end_stretch(busy)
        observe(self, lag, busy)

    Metrics.observe_loop = observe_loop  # type: ignore[method-assign]
    looker.start()
    run()


if __name__ == "__main__":
    main()
