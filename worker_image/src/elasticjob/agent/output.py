"""What the workers write, on its way to the log of the pod: each line is looked at for the rules of the job.

Only in a job with such rules. What is written is passed on first and as it is, and an error here stops the looking, not
the passing on: a worker whose pipe nobody reads would stand still.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from elasticjob.channel import patterns

logger = logging.getLogger("elasticjob")

_READ: Final = 64 * 1024
_MOST_RULES: Final = 16
_FIELDS: Final = {"rule", "pattern", "metric"}
_SHARE: Final = 0.05  # of a processor that looking may take
_SPARE: Final = 1.0  # seconds of it that a calm log saves for a chatty one
_MOST_LINE: Final = 4 * patterns.MOST_OF_A_LINE  # bytes


@dataclass(frozen=True)
class LogRule:
    """A line to look for; with a metric, for the number that its group holds."""

    name: str
    pattern: patterns.Pattern
    metric: str | None = None


def read_rules(text: str) -> list[LogRule]:
    """The rules from the operator, without those that this version does not understand: the log names them."""
    found, parsed = [], _parse(text)
    if not isinstance(parsed, list):
        logger.warning("The rules about the output of the workers are not understood.")
    for one in _list_rules(parsed):
        rule = _read_rule(one)
        if isinstance(rule, LogRule):
            found.append(rule)
        else:
            named = one.get("rule") if isinstance(one, dict) else one
            logger.warning("Rules about the output of the workers are not understood: %.100s: %s", named, rule)
    return found


def _parse(text: str) -> Any:
    try:
        return json.loads(text or "[]")
    except ValueError:
        return None


def _list_rules(parsed: Any) -> list[Any]:
    return parsed[:_MOST_RULES] if isinstance(parsed, list) else []


def _read_rule(one: Any) -> LogRule | str:
    """The rule, or why it is not understood: another field might say where it does not hold."""
    try:
        unknown = sorted(set(one) - _FIELDS)
        if unknown:
            return f"{unknown[0]} is no field of a rule"
        return LogRule(str(one["rule"]), patterns.compile_pattern(one["pattern"]), one.get("metric"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{error!r:.200}"


def digest(text: str) -> str:
    """By which the operator knows which rules are looked for; "" if none are."""
    parsed = _parse(text)
    known = [one for one in _list_rules(parsed) if isinstance(_read_rule(one), LogRule)]
    looked_for = text if known == parsed else json.dumps(known)
    return hashlib.sha256(looked_for.encode()).hexdigest()[:12] if known else ""


@dataclass
class _Stream:
    """One pipe from a worker."""

    target: int  # the file that the worker would write to by itself
    rank: int  # local
    rest: bytes = b""  # of a line that is not over


@dataclass
class Budget:
    """Seconds that looking may take now. It fills up with time."""

    left: float = _SPARE
    at: float = field(default_factory=time.monotonic)

    def has_some(self, now: float) -> bool:
        self.left, self.at = min(_SPARE, self.left + _SHARE * (now - self.at)), now
        return self.left > 0


class Output:
    """Passes on what workers write, in a thread of its own."""

    def __init__(
        self,
        rules: list[LogRule],
        on_line: Callable[[LogRule, int, str], None],
        on_number: Callable[[str, int, float], None],
    ) -> None:
        """`on_line` gets a rule, a local rank and the line; `on_number` a metric, a local rank and a number."""
        self._rules, self._on_line, self._on_number = rules, on_line, on_number
        self._streams: dict[int, _Stream] = {}
        self._budget, self._unseen = Budget(), 0
        self._ends, self._wakes = os.pipe()
        self._over = False
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def tap(self, environ: Mapping[str, str], stdout: Any, stderr: Any) -> Iterator[tuple[Any, Any]]:
        """The files to start a worker with, in place of these (None: those of this process)."""
        if not self._rules:
            yield stdout, stderr
            return
        rank = int(environ.get("LOCAL_RANK", "0"))
        files = []
        for given, standard in ((stdout, 1), (stderr, 2)):
            ours, theirs = os.pipe()
            self._streams[ours] = _Stream(os.dup(standard if given is None else given.fileno()), rank)
            files.append(os.fdopen(theirs, "wb", buffering=0))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="elasticjob-output", daemon=True)
            self._thread.start()
        os.write(self._wakes, b"w")
        try:
            yield files[0], files[1]
        finally:
            for file in files:
                file.close()

    def close(self, seconds: float = 2.0) -> None:
        """Pass on what the workers have written so far."""
        if self._thread is not None:
            self._over = True
            os.write(self._wakes, b"o")
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            poll = select.poll()
            for number in (self._ends, *self._streams):
                poll.register(number, select.POLLIN)
            ready = [number for number, _ in poll.poll(0 if self._over else None)]
            if self._ends in ready:
                os.read(self._ends, _READ)
            streams = [number for number in ready if number != self._ends]
            if self._over and not streams:
                return
            for number in streams:
                self._read(number)

    def _read(self, number: int) -> None:
        stream = self._streams[number]
        try:
            data = os.read(number, _READ)
        except OSError:
            data = b""
        if not data:
            os.close(number)
            os.close(stream.target)
            del self._streams[number]
            self._look_at(stream, [stream.rest] if stream.rest else [])
            return
        with contextlib.suppress(OSError):  # nobody reads the log: it is lost, as it would be without this
            written = 0
            while written < len(data):
                written += os.write(stream.target, data[written:])
        # A progress bar goes back to the start of its line, and has no new one until its end.
        *lines, rest = (stream.rest + data).replace(b"\r", b"\n").split(b"\n")
        stream.rest = rest[:_MOST_LINE]
        self._look_at(stream, lines)

    def _look_at(self, stream: _Stream, lines: list[bytes]) -> None:
        try:
            for line in lines if self._rules else ():
                if line:
                    self._look(stream.rank, line)
        except Exception:
            logger.exception("The output of the workers is not looked at any more.")
            self._rules = []

    def _look(self, rank: int, line: bytes) -> None:
        now = time.monotonic()
        if not self._budget.has_some(now):
            if not self._unseen:
                logger.warning("The workers write more than the rules of the job can look at: some lines are left out.")
            self._unseen += 1
            return
        text = patterns.read_line(line[:_MOST_LINE].decode("utf-8", "replace"))
        for rule in self._rules:
            if rule.metric is None:
                if rule.pattern.matches(text):
                    self._on_line(rule, rank, text)
            elif (number := patterns.read_number(rule.pattern.find_group(text))) is not None:
                self._on_number(rule.metric, rank, number)
        self._budget.left -= time.monotonic() - now
