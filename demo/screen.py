"""The output of the demo: a live table on a terminal, plain lines elsewhere. Everything is written to
standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.training import History

# Measured times of stock torchrun on such a machine (docs/performance.md); None: it never recovers.
STOCK: dict[str, str] = {
    "start": "33 s",
    "scale-up": "never",
    "worker-0-killed": "job dead",
    "scale-down": "46 s",
    "operator-restarted": "job dead",
}
_WORDS = {
    "start": "start with 2 pods",
    "scale-up": "scale 2 → 3 (pause)",
    "worker-0-killed": "SIGKILL of rank 0's pod",
    "operator-restarted": "operator killed and restarted",
    "scale-down": "scale 3 → 2 (pause)",
    "complete": "complete",
}


class Screen:
    """Displays the demo; independent of its sequence of events."""

    def __init__(self, *, plain: bool) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._live = None if plain else Live(console=self.console, refresh_per_second=8, transient=True)
        self._last = ""
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        self.console.print(text)

    def tell(self, event: Mapping[str, Any]) -> None:
        """Show an observed event."""
        self.say(f"  ✔ {_WORDS.get(event['event'], event['event'])}: {event['seconds']:.2f} s")

    def show(
        self,
        status: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        history: History,
        events: Sequence[Mapping[str, Any]],
    ) -> None:
        """Show the current state."""
        world = status.get("rendezvous") or {}
        latest = history.latest()
        epochs = history.select(lambda x: x.event == "epoch" and x.accuracy is not None)
        accuracy = epochs[-1].accuracy if epochs else None
        values = {
            "phase": str(status.get("phase", "-")),
            "world size": str(world.get("worldSize", 0)),
            "generation": str(world.get("generation", 0)),
            "epoch": str(latest.epoch if latest else 0),
            "step": str(latest.step if latest else 0),
            "loss": f"{latest.loss:.4f}" if latest and latest.loss is not None else "-",
            "accuracy": f"{accuracy:.3f}" if accuracy is not None else "-",
        }
        if self._live is not None:
            self._live.update(self._picture(values, world, pods, events))
            return
        line = "  ".join(f"{k} {v}" for k, v in values.items() if k in ("phase", "world size", "generation"))
        if line != self._last:
            self._last = line
            self.say(f"[{time.monotonic() - self._began:6.1f} s] {'  '.join(f'{k} {v}' for k, v in values.items())}")

    def _picture(
        self,
        values: Mapping[str, str],
        world: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        events: Sequence[Mapping[str, Any]],
    ) -> Group:
        head = Table(title="ElasticJob digits", title_justify="left", expand=False)
        for name in values:
            head.add_column(name)
        head.add_row(*values.values())
        ranks = {m["pod"]: m["rank"] for m in world.get("members", [])}
        table = Table(expand=False)
        for name in ("pod", "node", "state", "rank"):
            table.add_column(name)
        for pod in sorted(pods, key=lambda p: str(p["metadata"]["name"])):
            name = pod["metadata"]["name"]
            state = "Terminating" if pod["metadata"].get("deletionTimestamp") else pod["status"].get("phase", "")
            table.add_row(name, pod["spec"].get("nodeName", ""), state, str(ranks.get(name, "")))
        done = ", ".join(f"{e['event']} {e['seconds']:.1f} s" for e in events)
        bar = ProgressBar(total=6, completed=len(events), width=60)
        return Group(head, table, bar, Text(f"events: {done or '-'}"))

    def timeline(self, events: Sequence[Mapping[str, Any]]) -> None:
        table = Table(title="event → first training step of every rank in the new world", title_justify="left")
        for name in ("event", "world", "seconds", "stock torchrun"):
            table.add_column(name, justify="right" if name == "seconds" else "left")
        for event in events:
            kind = event["event"]
            table.add_row(
                _WORDS.get(kind, kind), str(event["worldSize"]), f"{event['seconds']:.2f}", STOCK.get(kind, "")
            )
        self.console.print(table)
        sys.stderr.flush()
