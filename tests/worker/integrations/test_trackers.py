"""Experiment trackers: one run over all attempts, and neither a step nor the end of the script waits for them.

Trackers themselves are in tests/frameworks.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from elasticjob.integrations.tracking import MAX_WAITING, Point, Tracker
from worker.gang_helper import clean_environment


class Notes:
    """A tracker that remembers, and can be away."""

    def __init__(self, *, away: int = 0) -> None:
        self.away = away  # for so many calls
        self.points: list[Point] = []
        self.calls: list[str] = []
        self.held = threading.Event()
        self.held.set()

    def _call(self, name: str) -> None:
        self.held.wait()
        if self.away:
            self.away -= 1
            raise ConnectionError("no route to the tracker")
        self.calls.append(name)

    def open(self) -> None:
        self._call("open")

    def write(self, points: Sequence[Point]) -> None:
        self._call("write")
        self.points += points

    def end(self, failed: bool) -> None:
        self._call("failed" if failed else "finished")


@pytest.fixture(autouse=True)
def rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ELASTICJOB_GENERATION"):
        monkeypatch.delenv(name, raising=False)


def test_a_run_is_written_in_order_and_ended() -> None:
    notes = Notes()
    with Tracker(notes) as tracker:
        for step in range(300):
            tracker.log(step, loss=1 / (step + 1))
    assert (notes.calls[0], notes.calls[-1]) == ("open", "finished")
    assert [point.step for point in notes.points] == list(range(300))
    assert notes.points[7].values == {"loss": 1 / 8}


def test_a_change_of_the_world_is_logged_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    with Tracker(notes) as tracker:
        for step, generation, size in ((1, "1", "2"), (2, "1", "2"), (3, "4", "3"), (4, "4", "3")):
            for name, value in {"ELASTICJOB_GENERATION": generation, "WORLD_SIZE": size, "RANK": "0"}.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("MASTER_ADDR", "h")
            monkeypatch.setenv("MASTER_PORT", "1")
            tracker.log(step, loss=0.5)
    changes = {
        point.step: (point.values["elasticjob/generation"], point.values["elasticjob/world_size"])
        for point in notes.points
        if "elasticjob/generation" in point.values
    }
    assert changes == {1: (1, 2), 3: (4, 3)}


def test_other_ranks_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    monkeypatch.setenv("RANK", "1")
    with Tracker(notes) as tracker:
        tracker.log(1, loss=0.5)
    assert notes.calls == []


@pytest.mark.parametrize(
    ("error", "last"),
    [(ValueError("no"), "failed"), (SystemExit(143), "write"), (KeyboardInterrupt(), "write")],
    ids=["an error", "SIGTERM", "Ctrl-C"],
)
def test_a_run_that_was_interrupted_stays_open(error: BaseException, last: str) -> None:
    notes = Notes()
    with pytest.raises(type(error)), Tracker(notes) as tracker:
        tracker.log(1, loss=0.5)
        while notes.calls != ["open", "write"]:
            time.sleep(0.01)
        raise error
    assert notes.calls[-1] == last


def test_a_tracker_that_was_away_gets_all(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("elasticjob.integrations.tracking._AGAIN", 0.01)
    notes = Notes(away=3)
    with Tracker(notes, patience=60) as tracker:
        for step in range(5):
            tracker.log(step, loss=0.5)
    assert [point.step for point in notes.points] == list(range(5))
    assert notes.calls[-1] == "finished"
    assert caplog.text.count("no route to the tracker") == 1


def test_a_tracker_that_does_not_answer_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes()
    notes.held.clear()
    with Tracker(notes, patience=0.1) as tracker:
        for step in range(MAX_WAITING + 50):
            tracker.log(step, loss=0.5)
    assert "further ones are left out" in caplog.text
    assert "did not answer within 0.1 s" in caplog.text
    notes.held.set()
    while tracker._thread is not None and tracker._thread.is_alive():
        tracker.finish()


WANDB = """
import json, sys
class Run:
    define_metric = lambda *_, **__: None
    log = lambda self, values: print(json.dumps(values, ensure_ascii=False).encode().decode(), file=sys.stderr)
    finish = lambda self, exit_code: print("finished", file=sys.stderr)
init = lambda **_: Run()
"""
LOGS_A_FILE_NAME = """
import os
from elasticjob.integrations.wandb import start_run
with start_run(patience=3) as tracker:
    tracker.log(1, **{os.fsdecode(b"caf\\xe9"): 1.0, "caf\u00e9": 2.0})
    tracker.log(2, loss=0.5)
"""


def test_wandb_gets_names_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text(WANDB)  # encodes names as wandb 0.31 does
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{LOGS_A_FILE_NAME}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=clean_environment(PYTHONUTF8="1"),
    )
    written = done.stderr.splitlines()
    assert '"caf?": 1.0, "caf\u00e9": 2.0' in written[0]
    assert '"loss": 0.5' in written[1]
    assert written[2:] == ["finished"]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    for name in ("mlflow", "wandb"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('no such thing')")
        script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import elasticjob.integrations.{name}"
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=clean_environment(),
        )
        assert f"pip install {name}" in done.stderr
