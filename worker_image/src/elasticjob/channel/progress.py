"""`elasticjob.report(...)`: training progress for `status.progress`, the hang watch and the terminal.

It is cheap enough for every step: most calls only record the numbers. At most once per `INTERVAL` seconds the latest
are sent to the agent over `elasticjob.channel.control`; without an agent nothing is sent. The last report is sent at
exit. If a terminal is attached, rank 0 draws a progress bar.

A report never ends a training. An argument that is no number is left out, and said once.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import operator
import os
import reprlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from elasticjob import env
from elasticjob.channel import pace
from elasticjob.errors import ConfigurationError

logger = logging.getLogger("elasticjob")

MAX_COUNT = 2**53  # both as in a message of `protocol.wire`
MAX_METRICS = 32
INTERVAL = 0.5  # minimum seconds between two messages to the agent
BAR_INTERVAL = 0.1
_SMOOTHING = 0.1  # weight of the newest step in the moving average
_NOTHING: Mapping[str, Any] = {}
_WORK = ("flops", "peak_flops")


def smooth_step_time(before: float | None, seconds: float, steps: int) -> float | None:
    """Update the moving average of seconds per step after `steps` more took `seconds`; None without data."""
    if steps <= 0:
        return before  # a repeated step, or an older checkpoint was restored
    newest = seconds / steps
    if before is None:
        return newest
    weight = 1 - (1 - _SMOOTHING) ** steps
    return before + weight * (newest - before)


def estimate_remaining(step: int, total: int | None, step_seconds: float | None) -> float | None:
    """Seconds until the last step; None if unknown."""
    if total is None or step_seconds is None:
        return None
    return max(0.0, (total - step) * step_seconds)


def format_seconds(seconds: float) -> str:
    """A readable duration: 42 s, 3:07 or 2:03:07."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def render_bar(
    step: int, total: int | None, step_seconds: float | None, metrics: Mapping[str, float], width: int = 80
) -> str:
    """One line for the terminal, at most `width` characters."""
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    speed = f"{step_seconds:.3g} s/step" if step_seconds is not None else ""
    remaining = estimate_remaining(step, total, step_seconds)
    left = f"{format_seconds(remaining)} left" if remaining is not None else ""
    tail = "  ".join(part for part in (speed, left, numbers) if part)
    if not total:
        return f"step {step}  {tail}"[:width]
    share = min(1.0, max(0.0, step / total))
    cells = 20
    filled = round(share * cells)
    return f"{'█' * filled}{'·' * (cells - filled)} {share:4.0%}  {step}/{total}  {tail}"[:width]


def build_message(
    rank: int,
    step: int,
    total: int | None,
    step_seconds: float | None,
    metrics: Mapping[str, float],
    checkpoint_seconds: float = 0.0,
    own_seconds: float | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The message to the agent. Of numbers that JSON cannot represent, it has the names.

    `more`: what `BatchTimes`, `StateTransfer`, `Throughput` and `Saves` say.
    """
    saved = {"checkpointSeconds": round(checkpoint_seconds, 3)} if checkpoint_seconds else {}
    own = {"ownSeconds": float(f"{own_seconds:.4g}")} if own_seconds else {}
    wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
    return {
        **saved,
        **own,
        **({"notFinite": wrong} if wrong else {}),
        **(more or {}),
        "type": "progress",
        "rank": rank,
        "step": int(step),
        "total": total if total is None else int(total),
        "stepSeconds": step_seconds,
        "metrics": {name: value for name, value in metrics.items() if name not in wrong},
    }


class Arguments:
    """Reads the arguments of reports, which may be of any type. What is wrong with one is logged once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def read_count(self, name: str, value: Any, remedy: str) -> int | None:
        """A whole number that a message can carry: also one of NumPy, a tensor, or a float without a fraction."""
        with contextlib.suppress(Exception):  # any type may raise anything, and a report must not
            number = _to_integer(value)
            if 0 <= number <= MAX_COUNT:
                return number
        self._say(name, f"{name}={_show(value)} is no whole number from 0 to 2**53: {remedy}.")
        return None

    def read_counts(self, counts: Mapping[str, Any]) -> dict[str, int | None]:
        """What was processed, by name; None where that is no number. This and `read_metrics` wait for the GPU."""
        return {name: self.read_count(name, value, "it is left out") for name, value in counts.items()}

    def read_metrics(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Metrics as floats."""
        if "" in metrics:
            self._say("", "a metric has no name: it is left out.")
        named = {name: value for name, value in metrics.items() if name}
        if len(named) > MAX_METRICS:
            self._say(
                "metrics", f"{len(named)} metrics are more than {MAX_METRICS}: the first {MAX_METRICS} are shown."
            )
        read = ((name, self.read_metric(name, value)) for name, value in list(named.items())[:MAX_METRICS])
        return {name: value for name, value in read if value is not None}

    def read_metric(self, name: str, value: Any) -> float | None:
        try:
            return float(value)
        except Exception:
            self._say(f"metric {name}", f"{name}={_show(value)} is no number: it is left out.")
            return None

    def _say(self, about: str, text: str) -> None:
        if about not in self._said:
            self._said.add(about)
            logger.warning("elasticjob.report: %s", text)


def _to_integer(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        if isinstance(value, str) or not float(value).is_integer():
            raise
        return int(value)


def _show(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__}"


class Waiting(contextlib.ContextDecorator):
    """Measures how long the steps of this process have waited for something, in all."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._began = 0.0

    def __enter__(self) -> None:
        if self._depth == 0:
            self._began = time.monotonic()
        self._depth += 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.monotonic() - self._began


saving = Waiting()  # for checkpoints


class StateTransfer:
    """What it took to give the ranks of a session the state that they share, when they entered their world."""

    def __init__(self) -> None:
        self.most_bytes = 0  # that one rank has received from others
        self.seconds = 0.0

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """A world is entered in this block."""
        self.most_bytes, began = 0, time.monotonic()
        yield
        self.seconds = time.monotonic() - began

    def as_message(self) -> dict[str, float]:
        """What the agent is to know; nothing if no rank lacked anything."""
        return {"stateBytes": self.most_bytes, "stateSeconds": round(self.seconds, 4)} if self.most_bytes else {}


transfer = StateTransfer()  # of the session of this process


class Growth(Protocol):
    """What is known of a batch that grows: `elasticjob.data.batch_growth` has it."""

    steps: int  # of the optimizer so far

    @property
    def batch_size(self) -> int | None: ...
    @property
    def noise_scale(self) -> float | None: ...


class BatchTimes:
    """Measures the steps of the optimizer, whatever the script counts as a step, while its batch grows."""

    def __init__(self) -> None:
        self.growth: Growth | None = None  # of the session of this process
        self._batch: int | None = None  # all that follows is of this batch
        self._steps, self._at = 0, 0.0
        self._seconds: float | None = None

    def report(self, now: float) -> None:
        """The script has reported a step."""
        if self.growth is None:
            return
        batch, steps = self.growth.batch_size, self.growth.steps
        if batch != self._batch:
            self._batch, self._seconds = batch, None  # the time so far was that of a change
        elif steps > self._steps:
            self._seconds = smooth_step_time(self._seconds, now - self._at, steps - self._steps)
        else:
            return
        self._steps, self._at = steps, now

    def as_message(self) -> dict[str, float]:
        """What the agent is to know; nothing unless the batch grows."""
        if self.growth is None or self._batch is None:
            return {}
        noise = self.growth.noise_scale
        found = {"batchSeconds": self._seconds, "noiseScale": None if noise is None else float(f"{noise:.4g}")}
        return {"batchSize": self._batch} | {name: value for name, value in found.items() if value is not None}


batches = BatchTimes()


class Throughput:
    """What all ranks process in a step, by name, smoothed over the messages."""

    def __init__(self) -> None:
        self._of_a_step: dict[str, float] = {}

    def as_message(self, counts: Mapping[str, int | None], step_seconds: float | None) -> dict[str, float]:
        """What the agent is to know, if the script counts. `counts`: of the latest step."""
        found: dict[str, float] = {}
        for name, count in counts.items():
            if count is not None:
                mean = self._smooth(name, count)
                if step_seconds:
                    found[f"{name}PerSecond"] = float(f"{mean / step_seconds:.6g}")
        return found

    def find_utilization(
        self, flops: float | None, peak: float | None, ranks: int | None, step_seconds: float | None
    ) -> dict[str, float]:
        """The share of what the devices of all ranks could compute at most. `peak`: of one of them, in a second."""
        if not flops or not peak or not ranks or not step_seconds or not 0 < flops < math.inf:
            return {}
        share = self._smooth("flops", flops) / step_seconds / peak / ranks
        return {"mfu": float(f"{share:.4g}")} if 0 <= share < math.inf else {}

    def _smooth(self, name: str, count: float) -> float:
        mean = smooth_step_time(self._of_a_step.get(name), count, 1)
        self._of_a_step[name] = float(count) if mean is None else mean
        return self._of_a_step[name]


class Saves:
    """When the state was taken that the last finished checkpoint of each tier holds."""

    def __init__(self) -> None:
        self._taken: dict[str, float] = {}  # by tier, on the monotonic clock

    def note(self, tier: str, taken: float | None = None) -> None:
        """A checkpoint is finished, with the state of `taken` (default: now). The tiers are those of the protocol."""
        self._taken[tier] = time.monotonic() if taken is None else taken

    def as_message(self, now: float) -> dict[str, dict[str, float]]:
        """What the agent is to know: the ages of the checkpoints. Clocks of machines differ, ages do not."""
        ages = {tier: round(max(0.0, now - taken), 1) for tier, taken in self._taken.items()}
        return {"checkpointAges": ages} if ages else {}


saves = Saves()  # of this process


class Reporter:
    """Records reports and sends the latest one at intervals. One per process; `report` uses it."""

    def __init__(self, rank: int, terminal: TextIO | None) -> None:
        from elasticjob.channel import control

        self._client = control.connect()
        if self._client is not None:
            self._client.want()  # introduces this process, so that the agent can attribute its reports
        self._samples = None if self._client is None else pace.start()
        self._rank = rank
        self._terminal = terminal
        self._step: int | None = None
        self._at = 0.0
        self._step_seconds: float | None = None
        self._latest: tuple[int, Any, Mapping[str, Any], Mapping[str, Any]] | None = None
        self._throughput = Throughput()
        self._arguments = Arguments()
        self._device = ""
        self._next_send = self._next_draw = 0.0 if self._client or terminal else math.inf

    def report(
        self, now: float, step: Any, total: Any, metrics: Mapping[str, Any], counts: Mapping[str, Any] = _NOTHING
    ) -> None:
        """Record the report; send or draw it if that is due. `now` is in seconds of a monotonic clock.

        `counts`: what all ranks have processed in this step.
        """
        if type(step) is not int or not 0 <= step <= MAX_COUNT:
            step = self._arguments.read_count("step", step, "such reports are left out")
            if step is None:
                return
        if self._step is not None:
            self._step_seconds = smooth_step_time(self._step_seconds, now - self._at, step - self._step)
        self._step, self._at = step, now
        batches.report(now)
        if env.TRACE in os.environ and "loss" in metrics:
            _trace(step, self._arguments.read_metric("loss", metrics["loss"]))
        self._latest = (step, total, metrics, counts)
        if now >= self._next_send or now >= self._next_draw:
            self._pass_on(now)

    def _pass_on(self, now: float) -> None:
        if self._latest is None:
            return
        step, raw_total, raw, raw_counts = self._latest
        total = None if raw_total is None else self._arguments.read_count("total", raw_total, "it is left out")
        metrics = self._arguments.read_metrics(raw)
        if self._client is not None and now >= self._next_send:
            own = None if self._samples is None else self._samples.median(now)
            waited, more = saving.seconds, batches.as_message() | transfer.as_message() | saves.as_message(now)
            work = self._arguments.read_metrics({name: raw_counts[name] for name in _WORK if name in raw_counts})
            counts = {name: count for name, count in raw_counts.items() if name not in _WORK}
            more |= self._throughput.as_message(self._arguments.read_counts(counts), self._step_seconds)
            if work:
                flops, peak = (work.get(name) for name in _WORK)
                peak = _read_peak() if peak is None else peak
                more |= self._throughput.find_utilization(flops, peak, _count_ranks(), self._step_seconds)
            self._device = self._device or _read_device()
            told = {**more, **({"device": self._device} if self._device else {})}
            self._client.send(build_message(self._rank, step, total, self._step_seconds, metrics, waited, own, told))
            self._next_send = now + INTERVAL
            self._latest = None if self._terminal is None else self._latest
        elif self._client is None:
            self._next_send = math.inf
        if self._terminal is not None and now >= self._next_draw:
            self._draw("\r\x1b[K" + render_bar(step, total, self._step_seconds, metrics, _width()))
            self._next_draw = now + BAR_INTERVAL
        elif self._terminal is None:
            self._next_draw = math.inf

    def _draw(self, text: str) -> None:
        try:
            if self._terminal is not None:
                self._terminal.write(text)
                self._terminal.flush()
        except (OSError, ValueError):  # it is gone
            self._terminal = None

    def close(self) -> None:
        """Send the last report."""
        if self._client is not None:
            self._next_send = 0.0
        if self._terminal is not None:
            self._next_draw = 0.0
        self._pass_on(time.monotonic())
        if self._terminal is not None and self._step is not None:
            self._draw("\n")


def _trace(step: int, loss: float | None) -> None:
    if loss is None:
        return
    with Path(os.environ[env.TRACE], f"{os.getpid()}-reported.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "reported": loss}) + "\n")


def _count_ranks() -> int | None:
    """None if the script has changed the launcher's variables meanwhile."""
    from elasticjob.context.context import current

    try:
        return current().world_size
    except ConfigurationError:
        return None


def _read_device() -> str:
    from elasticjob.torchcompat import peaks

    return peaks.read_device()


def _read_peak() -> float | None:
    from elasticjob.torchcompat import peaks

    return peaks.read_peak()


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80  # a new pseudo-terminal has 0 columns
    except (OSError, ValueError):
        return 80


_reporter: Reporter | None = None


def _start() -> Reporter:
    from elasticjob.context.context import current

    global _reporter  # noqa: PLW0603 - one per process, created by the first report
    rank = current().rank
    terminal = sys.stderr if rank == 0 and sys.stderr.isatty() else None
    _reporter = Reporter(rank, terminal)
    atexit.register(_reporter.close)
    return _reporter


def report(
    step: int,
    total: int | None = None,
    *,
    samples: Any = None,
    tokens: Any = None,
    flops: Any = None,
    peak_flops: Any = None,
    **metrics: Any,
) -> None:
    """Report that `step` (of `total`) is complete, with any metrics: `report(step=3, total=100, loss=0.5)`.

    `samples` and `tokens`: how many all ranks together have processed in this step. The operator shows them per second.
    With `flops`, the floating-point operations of the model in this step on all ranks together, it shows the model
    FLOPs utilization (MFU). `peak_flops` is what the device of one rank could do at most in a second; left out, what
    the data sheet of the device says for bfloat16, if it is one that the runtime knows.

    Call it on every rank after every step. It does not block; a metric that is a device tensor is read only when a
    message is sent. `status.progress` shows rank 0's metrics, the percentage and the remaining time, and names those
    that are NaN or infinite. What is no number is logged once and left out.
    """
    counts = _NOTHING
    if not samples is tokens is flops is peak_flops is None:
        counts = _counted(samples=samples, tokens=tokens, flops=flops, peak_flops=peak_flops)
    (_reporter or _start()).report(time.monotonic(), step, total, metrics, counts)


def _counted(**counts: Any) -> dict[str, Any]:
    return {name: count for name, count in counts.items() if count is not None}
