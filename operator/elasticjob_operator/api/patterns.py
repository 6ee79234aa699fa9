"""Regular expressions that take time in proportion to a line, whatever the expression and the line are.

The syntax is a part of RE2's, and so of Python's: letters, `.`, classes, `\\d`, `\\w`, `\\s`, groups, `|`, `*`, `+`,
`?`, `{n,m}`, `^`, `$`, and `(?i)` at the start. An expression becomes a list of at most MOST_INSTRUCTIONS instructions,
all of which are followed at once through a line (Thompson, 1968), so nothing is tried twice. Most lines are not even
followed: they lack a text without which the expression cannot match.

This file is the same in the operator, which checks expressions, and in the runtime, which looks for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

MOST_CHARACTERS: Final = 256  # of an expression
MOST_INSTRUCTIONS: Final = 256
MOST_REPETITIONS: Final = 64
MOST_DEPTH: Final = 16  # of groups
MOST_OF_A_LINE: Final = 1024  # characters that are looked at
MOST_MOVES: Final = 4096  # that are remembered of an expression

Ranges = tuple[tuple[str, str], ...]

_DIGIT: Final[Ranges] = (("0", "9"),)
_WORD: Final[Ranges] = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE: Final[Ranges] = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_CLASSES: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_LAST: Final = "\U0010ffff"
_CLASS_NAME: Final = re.compile(r"\[:\^?[A-Za-z]+:\]")
# Colours, movements of the cursor, character sets and links of a terminal. None goes on where the next one begins.
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")


class PatternError(ValueError):
    """An expression that is not understood. The message says what to write instead."""


@dataclass(frozen=True)
class Node:
    """A part of an expression: `kind` is set, cat, alt, repeat, group, start or end."""

    kind: str
    ranges: Ranges = ()
    parts: tuple[Node, ...] = ()
    least: int = 0
    most: int | None = 0  # None: any number
    is_lazy: bool = False  # it takes as little as it can, which only makes a difference to what a group holds


def _complement(ranges: Ranges) -> Ranges:
    found, after = [], 0
    for low, high in sorted(ranges):
        if ord(low) > after:
            found.append((chr(after), chr(ord(low) - 1)))
        after = max(after, ord(high) + 1)
    return (*found, (chr(after), _LAST)) if after <= ord(_LAST) else tuple(found)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.groups, self.depth = text, 0, 0, 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        self.at += 1
        return self.text[self.at - 1 : self.at]

    def parse(self) -> Node:
        found = self.parse_either()
        if self.peek():
            raise PatternError("a ) closes nothing: write \\) for the character")
        return found

    def parse_either(self) -> Node:
        parts = [self.parse_sequence()]
        while self.peek() == "|":
            self.take()
            parts.append(self.parse_sequence())
        return parts[0] if len(parts) == 1 else Node("alt", parts=tuple(parts))

    def parse_sequence(self) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.parse_repeated())
        return parts[0] if len(parts) == 1 else Node("cat", parts=tuple(parts))

    def parse_repeated(self) -> Node:
        one = self.parse_one()
        while self.peek() and self.peek() in "*+?{":
            bounds = self.parse_bounds(self.take())
            if bounds is None:
                return Node("cat", parts=(one, Node("set", (("{", "{"),))))
            is_lazy = self.peek() == "?"
            if is_lazy:
                self.take()
            if one.kind == "repeat" and one.most is None and bounds[1] is None:
                raise PatternError("a repetition is repeated: write one of the two")
            one = Node("repeat", parts=(one,), least=bounds[0], most=bounds[1], is_lazy=is_lazy)
        return one

    def parse_bounds(self, sign: str) -> tuple[int, int | None] | None:
        """Least and most; None if a { is only a character."""
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        inside, closed, _ = self.text[self.at :].partition("}")
        least, comma, most = inside.partition(",")
        if not closed or not least.isdecimal() or (most and not most.isdecimal()):
            return None
        self.at += len(inside) + 1
        low = int(least[:6])
        high = low if not comma else int(most[:6]) if most else None
        if max(low, high or 0) > MOST_REPETITIONS or (high is not None and high < low):
            raise PatternError(f"{{{inside}}} is out of range: repeat at most {MOST_REPETITIONS} times, or use + or *")
        return low, high

    def parse_one(self) -> Node:
        sign = self.take()
        if sign == "(":
            return self.parse_group()
        if sign == "[":
            return Node("set", self.parse_class())
        if sign == "\\":
            return Node("set", self.parse_escape())
        if sign in "*+?":
            raise PatternError(f"{sign} repeats nothing: write \\{sign} for the character")
        if sign == ".":
            return Node("set", _complement((("\n", "\n"),)))
        if sign in "^$":
            return Node("start" if sign == "^" else "end")
        return Node("set", ((sign, sign),))

    def parse_group(self) -> Node:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise PatternError(f"groups are nested deeper than {MOST_DEPTH}: leave some out")
        is_plain = self.text.startswith("?:", self.at)
        if is_plain:
            self.at += 2
        elif self.peek() == "?":
            raise PatternError("(? is not supported but for (?: and a (?i) at the start: it could take any time")
        else:
            self.groups += 1
        inner = self.parse_either()
        if self.take() != ")":
            raise PatternError("a ( is not closed: write \\( for the character")
        self.depth -= 1
        return inner if is_plain else Node("group", parts=(inner,))

    def parse_escape(self) -> Ranges:
        sign = self.take()
        if sign.lower() in _CLASSES and sign:
            ranges = _CLASSES[sign.lower()]
            return ranges if sign.islower() else _complement(ranges)
        if sign in _CONTROLS:
            return ((_CONTROLS[sign],) * 2,)
        if not sign or sign.isalnum():
            raise PatternError(f"\\{sign} is not supported: use letters, classes and \\d, \\w, \\s")
        return ((sign, sign),)

    def parse_class(self) -> Ranges:
        negated = self.peek() == "^"
        if negated:
            self.take()
        found: list[tuple[str, str]] = []
        while self.peek() != "]" or not found:
            low = self.take()
            if not low:
                raise PatternError("a [ is not closed: write \\[ for the character")
            if low == "[" and (named := _CLASS_NAME.match(self.text, self.at - 1)):
                raise PatternError(f"{named[0]} is not supported: write its characters, as in [a-z], or \\d, \\w, \\s")
            if low == "\\":
                found += self.parse_escape()
            elif self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("", "]"):
                self.take()
                high = self.take()
                high = self.parse_escape()[0][0] if high == "\\" else high
                if high < low:
                    raise PatternError(f"the range {low}-{high} is empty: write it from the lower to the higher one")
                found.append((low, high))
            else:
                found.append((low, low))
        self.take()
        return _complement(tuple(found)) if negated else tuple(found)


@dataclass(frozen=True)
class Step:
    """An instruction: `set` consumes a character; `split`, `jump`, `start`, `end` and `save` do not; `match` ends.

    Of those that a split leads to, the first is preferred.
    """

    kind: str
    ranges: Ranges = ()
    to: tuple[int, ...] = ()

    def accepts(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges)


def _compile(node: Node, into: list[Step]) -> None:
    if len(into) > MOST_INSTRUCTIONS:
        raise PatternError(
            f"it is too long: it has more than {MOST_INSTRUCTIONS} parts once repetitions are written out"
        )
    if node.kind in ("set", "start", "end"):
        into.append(Step(node.kind, node.ranges))
    elif node.kind == "cat":
        for part in node.parts:
            _compile(part, into)
    elif node.kind == "group":
        into.append(Step("save", to=(0,)))
        _compile(node.parts[0], into)
        into.append(Step("save", to=(1,)))
    elif node.kind == "alt":
        _compile_either(node, into)
    else:
        _compile_repeated(node, into)


def _compile_either(node: Node, into: list[Step]) -> None:
    ends: list[int] = []
    for part in node.parts[:-1]:
        at = len(into)
        into.append(Step("split"))
        _compile(part, into)
        ends.append(len(into))
        into.append(Step("jump"))
        into[at] = Step("split", to=(at + 1, len(into)))
    _compile(node.parts[-1], into)
    for end in ends:
        into[end] = Step("jump", to=(len(into),))


def _compile_repeated(node: Node, into: list[Step]) -> None:
    part = node.parts[0]
    for _ in range(node.least):
        before = len(into)
        _compile(part, into)
        if len(into) == before:  # nothing, such as a{0}: its repetitions would have no limit
            break
    if node.most is None:
        at = len(into)
        into.append(Step("split"))
        _compile(part, into)
        into.append(Step("jump", to=(at,)))
        into[at] = _split(node, at + 1, len(into))
        return
    splits: list[int] = []
    for _ in range(node.most - node.least):
        splits.append(len(into))
        into.append(Step("split"))
        _compile(part, into)
    for at in splits:
        into[at] = _split(node, at + 1, len(into))


def _split(node: Node, again: int, end: int) -> Step:
    return Step("split", to=(end, again) if node.is_lazy else (again, end))


def _find_needed(node: Node) -> tuple[str, ...]:
    """Texts of which a line that matches has at least one; nothing if that is not known."""
    if node.kind in ("group", "repeat"):
        return _find_needed(node.parts[0]) if node.kind == "group" or node.least else ()
    if node.kind == "alt":
        found = [_find_needed(part) for part in node.parts]
        return tuple(text for one in found for text in one) if all(found) else ()
    best: tuple[str, ...] = ()
    for one in _find_runs(node):
        if min(map(len, one), default=0) > min(map(len, best), default=0):
            best = one
    return best


def _find_runs(node: Node) -> Iterator[tuple[str, ...]]:
    """The texts between what is not plain text in a sequence, and what those parts need."""
    run = ""
    for part in node.parts if node.kind == "cat" else (node,):
        is_letter = part.kind == "set" and len(part.ranges) == 1 and part.ranges[0][0] == part.ranges[0][1]
        if is_letter:
            run += part.ranges[0][0]
            continue
        yield (run,) if run else ()
        run = ""
        if part.kind in ("group", "repeat", "alt") or (part.kind == "cat" and part is not node):
            yield _find_needed(part)
    yield (run,) if run else ()


Thread = tuple[int, int, int]  # the instruction that it has come to, and where its group begins and ends


@dataclass(frozen=True)
class Pattern:
    """An expression that can be looked for."""

    text: str
    groups: int
    steps: tuple[Step, ...]
    needed: tuple[str, ...]  # of these texts, at least one is in a line that matches; (): any line may
    ignores_case: bool = False
    _moves: dict[tuple[frozenset[int], str], frozenset[int]] = field(default_factory=dict, compare=False, repr=False)

    def matches(self, line: str) -> bool:
        """Whether it is somewhere in the line."""
        line = self._prepare(line)
        if self.needed and not any(text in line for text in self.needed):
            return False
        last = len(line)
        now = self._follow(frozenset((0,)), is_start=True, is_end=not last)
        for at, character in enumerate(line, 1):
            if -1 in now:
                return True
            known = None if at == last else self._moves.get((now, character))
            if known is None:
                known = self._move(now, character, is_end=at == last)
            now = known
        return -1 in now

    def find_group(self, line: str) -> str | None:
        """What the group has at the leftmost place where it matches; None if it does not, or the group is not in it."""
        if not self.matches(line):
            return None
        line = self._prepare(line)
        threads: list[Thread] = []  # by their worth: what is begun first, and then what the expression prefers
        best: Thread | None = None
        for at in range(len(line) + 1):
            if best is None:
                threads.append((0, -1, -1))
            threads, ended = self._follow_threads(threads, at, len(line))
            best = ended or best
            if at < len(line):
                character = line[at]
                threads = [(pc + 1, low, high) for pc, low, high in threads if self.steps[pc].accepts(character)]
        return line[best[1] : best[2]] if best is not None and 0 <= best[1] <= best[2] else None

    def _prepare(self, line: str) -> str:
        line = line[:MOST_OF_A_LINE]
        return line.lower() if self.ignores_case else line

    def _move(self, now: frozenset[int], character: str, *, is_end: bool) -> frozenset[int]:
        moved = frozenset(pc + 1 for pc in now if pc >= 0 and self.steps[pc].accepts(character)) | {0}
        found = self._follow(moved, is_start=False, is_end=is_end)
        if not is_end:
            if len(self._moves) >= MOST_MOVES:
                self._moves.clear()
            self._moves[now, character] = found
        return found

    def _follow(self, pcs: frozenset[int], *, is_start: bool, is_end: bool) -> frozenset[int]:
        """The instructions that consume a character, after those that do not; -1 if it has matched."""
        found, seen, stack = set[int](), set[int](), [*pcs]
        while stack:
            pc = stack.pop()
            if pc in seen:
                continue
            seen.add(pc)
            step = self.steps[pc]
            if step.kind == "set":
                found.add(pc)
            elif step.kind == "match":
                found.add(-1)
            elif step.kind in ("split", "jump"):
                stack += step.to
            elif step.kind == "save" or (is_start if step.kind == "start" else is_end):
                stack.append(pc + 1)
        return frozenset(found)

    def _follow_threads(self, threads: list[Thread], at: int, end: int) -> tuple[list[Thread], Thread | None]:
        """The threads before the instructions that consume a character, and the one that has matched: it ends those
        that are worth less.
        """
        found: list[Thread] = []
        seen: set[int] = set()
        stack = threads[::-1]
        while stack:
            pc, low, high = stack.pop()
            if pc in seen:
                continue
            seen.add(pc)
            step = self.steps[pc]
            if step.kind == "set":
                found.append((pc, low, high))
            elif step.kind == "match":
                return found, (pc, low, high)
            elif step.kind in ("split", "jump"):
                stack += [(to, low, high) for to in reversed(step.to)]
            elif step.kind == "save":
                stack.append((pc + 1, low, at) if step.to[0] else (pc + 1, at, high))
            elif at == (0 if step.kind == "start" else end):
                stack.append((pc + 1, low, high))
        return found, None


def compile_pattern(text: str) -> Pattern:
    """Raises PatternError, which says what to write instead."""
    if not text or len(text) > MOST_CHARACTERS:
        raise PatternError(f"it has {len(text)} characters: write 1 to {MOST_CHARACTERS}")
    ignores_case = text.startswith("(?i)")
    body = text[4:].lower() if ignores_case and "\\" not in text else text[4:] if ignores_case else text
    if ignores_case and "\\" in text:
        body = _lower_but_escapes(body)
    parser = _Parser(body)
    node = parser.parse()
    steps: list[Step] = []
    _compile(node, steps)
    if len(steps) > MOST_INSTRUCTIONS:
        raise PatternError(
            f"it is too long: it has more than {MOST_INSTRUCTIONS} parts once repetitions are written out"
        )
    found = Pattern(text, parser.groups, (*steps, Step("match")), _find_needed(node), ignores_case)
    if found.matches(""):
        raise PatternError("it matches every line: write what only the lines have that you look for")
    return found


def _lower_but_escapes(text: str) -> str:
    found, is_escaped = "", False
    for sign in text:
        found += sign if is_escaped else sign.lower()
        is_escaped = sign == "\\" and not is_escaped
    return found


def read_line(text: str) -> str:
    """What is looked at of a line that a rank has written: without its end, and without what colours it."""
    line = text.rstrip("\r\n")
    return _ESCAPE.sub("", line) if "\x1b" in line else line


def read_number(text: str | None) -> float | None:
    """The number that a group holds, as logs have them: also 1,234.5, nan and inf, which is NaN here."""
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else math.nan
