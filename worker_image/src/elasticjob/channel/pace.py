"""The own time of this rank for a step: without the time for which it waits for other ranks.

In synchronous training all ranks make a step in the same time, because the fast ones wait for the slowest. So single
steps are measured: from the optimizer of one step until all gradients of the next are computed here is the rank's own
time; from there to the optimizer it waits for the gradients of the others. One step in many is measured, with hooks
on a few parameters, so it costs next to nothing. The median of a window is reported.

This needs an optimizer of torch and gradients that are reduced during or after the backward pass, as DDP and sessions
do. Nothing is reported where the hooks see no gradients (FSDP). Collectives elsewhere in the script count as own time.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Protocol

from elasticjob import env

SAMPLES: Final = 30  # steps that are measured in a window, at most
LEAST: Final = 5  # ... and at least, for a median
_HOOKED: Final = 4  # parameters at each end of the model: the gradients of the first ones come last


class Samples:
    """Measured steps of the last `window` seconds."""

    def __init__(self, window: float) -> None:
        self.window = window
        self._began: float | None = None
        self.found: deque[tuple[float, float]] = deque(maxlen=2 * SAMPLES)

    def add(self, now: float, own: float) -> None:
        """Note a step's own seconds. `now`: seconds of a monotonic clock."""
        self._began = now if self._began is None else self._began
        self.found.append((now, own))

    def median(self, now: float) -> float | None:
        """Own seconds of a step; None until a whole window was observed."""
        while self.found and self.found[0][0] < now - self.window:
            self.found.popleft()
        if self._began is None or now - self._began < self.window or len(self.found) < LEAST:
            return None
        return statistics.median(own for _, own in self.found)


class _Clock(Protocol):
    """Moments of a device's work, and the seconds between two of them once both have passed."""

    def mark(self) -> Any: ...

    def between(self, first: Any, last: Any) -> float | None: ...


class _Host:
    def mark(self) -> float:
        return time.perf_counter()

    def between(self, first: float, last: float) -> float:
        return last - first


class _Cuda:
    """A GPU works behind its process: events of its stream have the times, and are read when they have passed."""

    def mark(self) -> Any:
        import torch

        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, first: Any, last: Any) -> float | None:
        return first.elapsed_time(last) / 1000 if last.query() else None


class Stopwatch:
    """Measures a step now and then, by hooks on the optimizers of this process. One per process."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self._next = 0.0
        self._optimizer: Any = None  # a weak reference to the optimizer of the step that is measured
        self._clock: _Clock = _Host()
        self._start: Any = None
        self._ready: Any = None
        self._hooks: list[Any] = []
        self._open: tuple[_Clock, Any, Any] | None = None  # a step whose times the device does not have yet

    def install(self) -> None:
        """Begin. Torch is imported already."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self.before_step)

    def before_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
        """An optimizer is about to make its step: a measured step ends, or begins."""
        now = time.monotonic()
        self._collect(now)
        if self._optimizer is not None:
            if self._optimizer() is optimizer or self._optimizer() is None:
                self._finish()
        elif now >= self._next and self._open is None:
            self._begin(optimizer)
            self._next = now + self.samples.window / SAMPLES

    def _begin(self, optimizer: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if not parameters:
            return
        self._optimizer = weakref.ref(optimizer)
        self._clock = _Cuda() if parameters[0].device.type == "cuda" else _Host()
        ends = {id(p): p for p in (*parameters[:_HOOKED], *parameters[-_HOOKED:])}
        self._hooks = [p.register_hook(self._on_gradient) for p in ends.values()]
        self._ready, self._start = None, self._clock.mark()

    def _on_gradient(self, gradient: Any) -> None:
        self._ready = self._clock.mark()  # the last one counts

    def _finish(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._optimizer = [], None
        if self._ready is not None:
            self._open = (self._clock, self._start, self._ready)

    def _collect(self, now: float) -> None:
        """Take the times of the last measured step, once they are known."""
        if self._open is None:
            return
        clock, start, ready = self._open
        own = clock.between(start, ready)
        if own is not None:
            self.samples.add(now, own)
            self._open = None


def start(environ: Mapping[str, str] = os.environ) -> Samples | None:
    """Measure from now on, if the job asks for it; None if not, or in a script without torch."""
    try:
        window = float(environ.get(env.STRAGGLER_SECONDS) or 0)
    except ValueError:
        return None
    if window <= 0 or "torch" not in sys.modules:
        return None
    samples = Samples(window)
    Stopwatch(samples).install()
    return samples
